"""A panel of a cluster with 100 jobs on 500 nodes, each job resized 80 times, without so many processes.

What the scheduler would answer is made up, in the form in which it answers; all behind it is the real panel.
"""

from __future__ import annotations

from typing import Any

from dask_hpc.trace.records import JobEvent, NodeEvent, Record, encode_line
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.views import Picture

JOBS, NODES, CHANGES = 100, 500, 80
#: Jobs beyond these wait.
RUNNING = 60
_EACH = NODES // RUNNING
_BEGIN_S, _PERIOD_S = 800.0, 0.5


def _id(job: int) -> str:
    return f"job-{job:03d}-{job + 1}"


def _sizes(job: int, step: int) -> list[list[float]]:
    """One job is resized at each step: it gives one node away and takes it back, in turn."""
    sizes = [[10.0 * k + job / 10, _EACH - k % 2] for k in range(CHANGES)]
    more = range(job or RUNNING, step + 1, RUNNING)
    return [*sizes, *([_BEGIN_S + _PERIOD_S * at, _EACH - i % 2] for i, at in enumerate(more))]


def _row(job: int, step: int) -> dict[str, Any]:
    runs = job < RUNNING
    sizes = _sizes(job, step)[-CHANGES:] if runs else []
    return {
        "id": _id(job), "name": f"job-{job:03d}", "state": "running" if runs else "pending",
        "kind": "malleable", "nodes": int(sizes[-1][1]) if runs else 0, "min_nodes": 1, "max_nodes": 16,
        "constraint": "any", "priority": 0, "submit_s": job / 10, "start_s": job / 10 + 1.5 if runs else None,
        "end_s": None, "wait_s": 1.5 if runs else None, "turnaround_s": None, "closed": True,
        "unfinished_tasks": 1000 - (step + job) // 10 % 100, "processing_tasks": 4 * _EACH if runs else 0,
        "held_tasks": 0, "below_minimum": False, "expansions": len(sizes) // 2, "shrinks": len(sizes) // 2,
        "lent_tasks": 0, "borrowed_tasks": 0, "sizes": sizes, "mtct": None, "mtct_previous": None,
        "phases": [], "reason": "3 idle nodes" if runs else "waits behind job-060", "user": "someone",
    }  # fmt: skip


def _holder(node: int, jobs: list[dict[str, Any]]) -> str | None:
    job, place = divmod(node, _EACH)
    return _id(job) if job < RUNNING and place < jobs[job]["nodes"] else None


def _decisions(step: int) -> list[dict[str, Any]]:
    held = [
        {"t_s": 700.0 + job, "trigger": "submit", "action": "hold", "job": _id(job), "nodes": None,
         "reason_code": "not-enough-nodes", "reason": "waits behind job-060", "result": "held",
         "latency_s": None}
        for job in range(RUNNING, JOBS)
    ]  # fmt: skip
    done = [
        {"t_s": _BEGIN_S + _PERIOD_S * at, "trigger": "tick", "action": "expand", "job": _id(at % RUNNING),
         "nodes": _EACH, "reason_code": "idle", "reason": f"{at % 9} idle nodes", "result": "done",
         "latency_s": 0.25}
        for at in range(max(0, step - 40), step + 1)
    ]  # fmt: skip
    return held + done


def _records(step: int) -> list[Record]:
    """Of a step; all that happened before, of the first."""
    if step:
        job, t_s = step % RUNNING, _BEGIN_S + _PERIOD_S * step
        nodes = int(_sizes(job, step)[-1][1])
        moved = f"node-{job * _EACH + _EACH - 1}"
        return [
            NodeEvent(t_s=t_s, nodes=(moved,), job=_id(job) if nodes == _EACH else None),
            JobEvent(t_s=t_s, job=_id(job), name=f"job-{job:03d}", state="running", nodes=nodes),
        ]
    found: list[Record] = [NodeEvent(t_s=0.0, nodes=tuple(f"node-{i}" for i in range(NODES)))]
    for job in range(JOBS):
        state = "running" if job < RUNNING else "pending"
        found.append(
            JobEvent(t_s=1.0, job=_id(job), name=f"job-{job:03d}", state=state, nodes=_EACH * (job < RUNNING))
        )
    for change in range(CHANGES):
        for job in range(RUNNING):
            first = job * _EACH
            moved = range(first, first + _EACH) if change == 0 else [first + _EACH - 1]
            held = None if change % 2 else _id(job)
            names = tuple(f"node-{i}" for i in moved)
            found.append(NodeEvent(t_s=10.0 * change + job / 10, nodes=names, job=held))
    return found


def picture(step: int, status: dict[str, Any] | None = None, since: int = 0) -> Picture:
    """What the scheduler would answer at that step; `status`: what else it tells of itself."""
    jobs = [_row(job, step) for job in range(JOBS)]
    now_s = _BEGIN_S + _PERIOD_S * step
    nodes = [
        {"id": f"node-{i}", "job": _holder(i, jobs), "state": "up", "workers": 1, "nthreads": 4,
         "memory_bytes": 2**33, "walltime_left_s": 7200.0 - now_s + i, "domain": None}
        for i in range(NODES)
    ]  # fmt: skip
    own = {"now_s": now_s, "nodes": nodes, "pool_nodes": NODES, "jobs_running": RUNNING}
    happened = {
        "lines": [encode_line(one) for one in _records(step)], "number": step + 1, "whole": step == 0,
    }  # fmt: skip
    return Picture(
        status={**(status or {}), **own, "jobs_pending": JOBS - RUNNING},
        jobs=jobs,
        decisions=_decisions(step),
        happened=happened,
    )


def opened(runtime: Any, all_views: bool = True) -> Any:
    """A panel that shows this cluster instead of that of `runtime`, maybe all views; it goes on by itself."""
    real = runtime.client.sync(questions.picture, runtime).status
    step = 0

    async def next_picture(runtime: Any, since: int = 0) -> Picture:
        nonlocal step
        step += 1
        return picture(step - 1, real, since)

    questions.picture = next_picture  # type: ignore[assignment]
    panel = runtime.panel()
    for tick in panel.ticks.values() if all_views else ():
        tick.value = True
    return panel
