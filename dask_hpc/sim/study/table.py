"""The results of a study as text and as CSV.

Rules of the file: what stands in a cell is decided here, what it is worth in `results`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.sim.study.findings import Findings
from dask_hpc.sim.study.metrics import METRICS
from dask_hpc.sim.study.results import Checked, Row


def text_of(found: Findings) -> str:
    """Rows, pairs, sign changes, published figures and conditions, one below the other."""
    study = found.study
    parts = [_rows(found)]
    if study.paired and study.baseline is not None:
        parts.append(_pairs(found))
    if found.turns:
        parts.append(_turns(found))
    if found.published:
        parts.append(_published(found))
    if found.conditions:
        parts.append(_conditions(found))
    parts += [f"Note: {note}" for note in study.notes]
    return "\n\n".join(part for part in parts if part)


def failed_condition(one: Checked) -> str:
    """A line that names the condition, where it stands, the row and what came out."""
    if not one.found:
        return f"{one.where}: no row for {_place(one.place)}: {one.condition}"
    values = ", ".join(f"{term} is {_cell(value)}" for term, value in one.found.items())
    return f"{one.where}: does not hold for {_place(one.place)}: {one.condition} ({values})"


def csv_of(found: Findings) -> list[list[Any]]:
    """The rows for a CSV file, the head first."""
    names = list(dict.fromkeys(name for row in found.rows for name in row.place))
    headings = [*names, "runs"]
    for metric in found.study.metrics:
        kinds = [""] if METRICS[metric].by_job else ["", "_lowest", "_highest", "_change_percent"]
        headings += [f"{metric}{kind}" for kind in kinds]
    lines = [headings]
    for row in found.rows:
        line = [*(row.place.get(name, "") for name in names), len(row.runs)]
        for metric in found.study.metrics:
            value = row.statistic(metric)
            if METRICS[metric].by_job:
                line.append(" ".join(str(one) for one in value) if isinstance(value, tuple) else "")
            else:
                line += [row.statistic(metric, name) for name in ("median", "lowest", "highest", "change")]
        lines.append(line)
    return lines


def _rows(found: Findings) -> str:
    study, rows = found.study, found.rows
    if not rows:
        return "no run was done"
    places = [row.place for row in rows]
    names = dict.fromkeys(name for place in places for name in place)
    # what is the same everywhere tells nothing
    shown = [
        name
        for name in names
        if name == "policy" or any(place.get(name) != places[0].get(name) for place in places)
    ]
    counted = any(len(row.runs) > 1 for row in rows)
    changed = any(row.pairs for row in rows)
    headings = [name.upper().replace("_", " ") for name in shown] + (["RUNS"] if counted else [])
    for metric in study.metrics:
        headings.append(METRICS[metric].heading)
        if not METRICS[metric].by_job:
            headings += (["FROM TO"] if counted else []) + (["CHANGE"] if changed else [])
    lines = [headings]
    for row, place in zip(rows, places, strict=True):
        line = [_cell(place.get(name)) for name in shown] + ([str(len(row.runs))] if counted else [])
        for metric in study.metrics:
            line.append(_cell(row.statistic(metric)))
            if METRICS[metric].by_job:
                continue
            if counted:
                line.append(_spread(row, metric))
            if changed:
                change = row.statistic(metric, "change")
                line.append(f"{change:+.1f} %" if isinstance(change, (int, float)) else "-")
        lines.append(line)
    return _aligned(lines, left=len(shown))


def _spread(row: Row, metric: str) -> str:
    values = row.values(metric)
    if not values:
        return "-"
    low, high = min(values), max(values)
    return "same" if low == high else f"{_cell(low)} {_cell(high)}"


def _pairs(found: Findings) -> str:
    """How many pairs of runs are better, equal and worse than the baseline; those that are not better."""
    blocks = []
    for metric in found.study.paired:
        lines = [["POLICY", "PAIRS", "BETTER", "EQUAL", "WORSE", "MEAN", "MEAN OF BASELINE"]]
        rest = []
        for row in found.rows:
            verdicts = [(pair, pair.verdict(metric)) for pair in row.pairs]
            judged = [(pair, verdict) for pair, verdict in verdicts if verdict is not None]
            if not judged:
                continue
            counts = [verdict for _, verdict in judged]
            means = [
                sum(float(values[metric]) for values in side) / len(judged)
                for side in ([p.values for p, _ in judged], [p.baseline for p, _ in judged])
            ]
            numbers = [len(judged), *map(counts.count, ("better", "equal", "worse")), *means]
            lines.append([_label(row), *map(_cell, numbers)])
            worse = [
                f"  {_place(pair.factors)}: {_cell(pair.values[metric])}, baseline "
                f"{_cell(pair.baseline[metric])}"
                for pair, verdict in judged
                if verdict == "worse"
            ]
            equal = [_place(pair.factors) for pair, verdict in judged if verdict == "equal"]
            if equal:
                rest.append(f"{_label(row)}, equal in: {'; '.join(equal)}")
            if worse:
                rest += [f"{_label(row)}, worse in:", *worse]
        head = f"{METRICS[metric].heading}, run by run against {found.study.baseline}:"
        blocks.append("\n".join([head, _aligned(lines, left=1), *rest]))
    return "\n\n".join(blocks)


def _turns(found: Findings) -> str:
    factor = found.study.sign_change
    lines = [["WHERE", "METRIC", "FIRST", "LAST", "TURNS AT"]]
    for one in found.turns:
        at = ", ".join(f"{value:.3g}" for value in one.at) or "nowhere"
        lines.append([_place(one.place), one.metric, f"{one.first:+.1f} %", f"{one.last:+.1f} %", at])
    head = f"Where the change against {found.study.baseline} turns along {factor}:"
    return "\n".join([head, _aligned(lines, left=2)])


def _published(found: Findings) -> str:
    lines = [["WHERE", "OF", "PUBLISHED", "OURS", "DIFFERENCE", "SOURCE"]]
    lines += [
        [_place(one.place), one.of, *map(_cell, (one.published, one.ours, one.difference)), one.source]
        for one in found.published
    ]
    return "\n".join(["Published figures beside ours:", _aligned(lines, left=2)])


def _conditions(found: Findings) -> str:
    held = sum(one.ok is True for one in found.conditions)
    skipped = sum(one.ok is None for one in found.conditions)
    failed = len(found.conditions) - held - skipped
    text = f"Conditions: {held} hold, {failed} do not"
    return text + (f", {skipped} not checked: no run that they speak of" if skipped else "")


def _label(row: Row) -> str:
    return ", ".join([row.policy, *(f"{name} {_cell(value)}" for name, value in row.factors.items())])


def _place(place: Mapping[str, Any]) -> str:
    parts = []
    for name, value in place.items():
        text = ", ".join(map(_cell, value)) if isinstance(value, list) else _cell(value)
        parts.append(text if name in ("policy", "workload") else f"{name} {text}")
    return ", ".join(parts) or "all"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return " ".join(map(_cell, value))
    if isinstance(value, float):
        if value.is_integer() and abs(value) < 1e15:
            return f"{value:.0f}"
        return f"{value:.2f}" if 0.01 <= abs(value) < 1e6 else f"{value:.3g}"
    return "".join(c if c.isprintable() else "?" for c in str(value))


def _aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Cells below each other, the first `left` columns to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    to_left = [i < left or heading == "SOURCE" for i, heading in enumerate(lines[0])]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(line, widths, to_left, strict=True)
        ).rstrip()
        for line in lines
    )
