"""A run on many nodes as rows that can be seen: each stands for neighbours, in the colour of most of them.

Rules of the file: pure; spans in, spans out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter

from dask_hpc.report.spans import LOST, UP, NodeSpan, Spans

#: More nodes than these share rows.
MAX_ROWS = 64
#: What is shorter than this part of the time cannot be seen, and is left to what was before.
_NARROWEST = 1 / 400

#: Who has a node, whether it is lost, whether that is predicted.
_Holder = tuple[str | None, bool, bool]


def each(spans: Spans) -> int:
    """How many nodes share a row."""
    return max(1, -(-len(spans.nodes) // MAX_ROWS))


def told_row(spans: Spans) -> str:
    """What a row is, in words."""
    many = each(spans)
    return "A row is a node." if many == 1 else f"A row is {many} nodes, in the colour of most of them."


def coarse(spans: Spans) -> Spans:
    """The same with at most `MAX_ROWS` rows of nodes, each named by its first and last node.

    A row has at each time the holder that most of its nodes have; of equals the one that it had before.
    """
    many = each(spans)
    if many == 1:
        return spans
    groups = [spans.nodes[i : i + many] for i in range(0, len(spans.nodes), many)]
    names = [one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in groups]
    place = {node: i for i, group in enumerate(groups) for node in group}
    of_row: list[list[NodeSpan]] = [[] for _ in groups]
    for span in spans.node_spans:
        of_row[place[span.node]].append(span)
    least_s = (spans.end_s - spans.start_s) * _NARROWEST
    rows = (one for name, own in zip(names, of_row, strict=True) for one in _row(name, own, least_s))
    return replace(spans, nodes=tuple(names), node_spans=tuple(rows))


def _row(name: str, own: Iterable[NodeSpan], least_s: float) -> list[NodeSpan]:
    changes: list[tuple[float, int, _Holder]] = []
    for span in own:
        holder = (span.job, span.state == LOST, span.predicted)
        changes += [(span.start_s, 1, holder), (span.end_s, -1, holder)]
    changes.sort(key=itemgetter(0))
    counts: dict[_Holder, int] = {}
    found: list[tuple[float, float, _Holder]] = []
    before_s = changes[0][0] if changes else 0.0
    #: For how long others than the one that is shown have had most of its nodes.
    other_s = 0.0
    for t_s, step, holder in changes:
        if t_s > before_s and counts:
            last = found[-1] if found and found[-1][1] == before_s else None
            best = max(counts, key=lambda one: (counts[one], last is not None and one == last[2]))
            other_s = 0.0 if last is None or best == last[2] else other_s + t_s - before_s
            if last is not None and (best == last[2] or other_s < least_s):
                found[-1] = (last[0], t_s, last[2])
            else:
                found.append((before_s, t_s, best))
                other_s = 0.0
        before_s = max(before_s, t_s)
        counts[holder] = counts.get(holder, 0) + step
        if not counts[holder]:  # thousands of jobs may have been there
            del counts[holder]
    return [
        NodeSpan(
            node=name, start_s=begin_s, end_s=end_s, job=job, state=LOST if lost else UP, predicted=predicted
        )
        for begin_s, end_s, (job, lost, predicted) in found
    ]
