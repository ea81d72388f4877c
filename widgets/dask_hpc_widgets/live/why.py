"""What is answered to a click on a job: what blocks it and would start it, how long it needs, what was said.

Rules of the file: pure; a state of the cluster in, sentences out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.views import Picture
from dask_hpc_widgets.views.jobs import predicted


def about(
    view: ClusterSnapshot,
    rows: Sequence[Mapping[str, Any]],
    present: Mapping[str, Any],
    job: str,
    assumed_s: float,
    going_on: Callable[[], object] = lambda: None,
) -> str:
    """Sentences about `job` in the state `view`, one a line.

    Parameters
    ----------
    view, rows, present, assumed_s, going_on
        As `dask_hpc.sim.waiting.why_waiting` takes them.

    Raises
    ------
    WorkloadError
        When it waits and there is no node to go on from.
    """
    # late: most of the time of opening a panel would go to it
    from dask_hpc.sim.learned import learn
    from dask_hpc.sim.waiting import why_waiting

    found = next((one for one in view.jobs if one.id == job), None)
    row: Mapping[str, Any] = next((one for one in rows if one["id"] == job), {})
    name = row.get("name") or job
    reason = f"Last decision: {row['reason']}." if row.get("reason") else ""
    if found is None:
        return "\n".join(filter(None, [f"{name} neither runs nor waits now.", reason]))
    if not found.nodes and not found.is_default:
        waiting = why_waiting(view, rows, present, job, assumed_s, going_on)
        return f"{name} waits no longer." if waiting is None else str(waiting)
    lines = [f"Nothing blocks {name}: it has {counted(found.nodes)}.", reason]
    _, knowledge = learn(view, rows, assumed_s)
    known = next((one for one in knowledge if one.job == job), None)
    if known is not None:
        left = markup.seconds(known.remaining_s)
        lines.append(f"At this size it needs {left} more ({known.confidence}: {known.text}).")
    return "\n".join(filter(None, lines))


def forecast(picture: Picture, job: str) -> str:
    """A line about what was predicted of `job`, and how often such forecasts held; empty: nothing was."""
    row = next((one for one in picture.jobs if one["id"] == job), {})
    told = predicted(row)
    if not told:
        return ""
    found = picture.section("forecasts")
    held = f" ({found['text']})" if found else ""
    return f"{told[0].upper()}{told[1:]}{held}."
