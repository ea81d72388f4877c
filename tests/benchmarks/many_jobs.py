"""A panel of a cluster with 100 jobs on 500 nodes, each job resized 80 times, without so many processes.

What the scheduler would answer is made up, in the form in which it answers; all behind it is the real panel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.trace.records import CORRIDOR, DRAW, JobEvent, NodeEvent, Other, Record, encode_line
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.views import Picture

JOBS, NODES, CHANGES = 100, 500, 80
#: Jobs beyond these wait.
RUNNING = 60
_EACH = NODES // RUNNING
_BEGIN_S, _PERIOD_S = 800.0, 0.5
_FLOW = "flow-"


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


def _power(step: int) -> dict[str, Any]:
    """A corridor that changes, everybody's draw with it."""
    now_s = _BEGIN_S + _PERIOD_S * step
    chart = [
        [round(0.25 * i - 12, 1), 90_000 + 100 * ((step + i) % 37), 60_000, 95_000, 88_000 + i, 96_000 - i]
        for i in range(49)
    ]
    jobs = [
        {"job": _id(job), "draw_w": 1600.0 + (step + job) % 9, "energy_j": 1e5 * (step + job)}
        for job in range(RUNNING)
    ]
    return {
        "draw_w": 90_000.0 + step % 37, "label": "modelled", "mode": "enforce", "lower_w": 60_000.0,
        "upper_w": 95_000.0, "min_w": 88_000.0 + step % 7, "max_w": 96_000.0 - step % 5,
        "energy_j": 9e4 * now_s, "idle_j": 1e3 * now_s, "plain_j": 1e2 * now_s, "earlier_jobs_j": 5e6,
        "outside_ws": 90.0 * step, "outside_s": 0.1 * step, "problem": "",
        "next_step": [900.0, 0.0, 80_000.0],
        "plan": {"reason": f"{step % 11} W above; lower what runs"}, "jobs": jobs,
        "forecast": {"mean_w": [90_000.0 + 7 * ((step + i) % 31) for i in range(60)], "step_s": 1.0},
        "chart": chart, "withheld": {},
        "caps": [{"host": f"node-{i}", "watts": 120.0 + i, "state": "written"} for i in range(30)],
    }  # fmt: skip


def _io(step: int) -> dict[str, Any]:
    targets = [
        {"target": f"/scratch-{i}", "kind": "lustre", "read_bytes": 2**28 * (step + i), "tokens": None,
         "write_bytes": 2**30 * (step + i), "busy_s": 4.0, "writers": (step + i) % 9,
         "bandwidth_bytes_s": 2.0**28 * (1 + (step + i) % 5)}
        for i in range(4)
    ]  # fmt: skip
    jobs = [
        {"id": _id(job), "name": f"job-{job:03d}", "read_bytes": 2**25 * (step + job),
         "io_s": 0.5 * step + job, "write_bytes": 2**27 * (step + job), "task_s": 16.0 + step,
         "quality": "counted", "law": None,
         "intensity": (step + job) % 50 / 100}
        for job in range(JOBS)
    ]  # fmt: skip
    return {"targets": targets, "jobs": jobs}


def _protected(step: int) -> list[dict[str, Any]]:
    return [
        {"job": _id(job), "name": f"job-{job:03d}", "writes": "results", "under_way": (step + job) % 40 == 0,
         "version_age_s": _PERIOD_S * ((step + job) % 40) + 0.2,
         "due_in_s": _PERIOD_S * (40 - (step + job) % 40) - 0.2,
         "written_results": (step + job) // 2, "left_results": 0, "unwritable_results": 0,
         "loss_core_s": 7.0 * ((step + job) % 40), "loss_is": "about"}
        for job in range(JOBS)
    ]  # fmt: skip


def _checkpoints(step: int) -> dict[str, Any]:
    latest = [
        {"id": job, "name": f"job-{job:03d}", "version": (step + job) // 40, "state": "complete",
         "reason": "", "blocks": 8, "blocks_left": 0, "bytes": 3 * 2**20 + job,
         "age_s": _PERIOD_S * ((step + job) % 40) + 0.2,
         "writing_s": 1.5, "finishing_s": 0.25, "levels": ["L1", "L3"]}
        for job in range(JOBS)
    ]  # fmt: skip
    managers = [
        {"host": f"host-{i}", "held_bytes": 2**20 * (step + i), "limit_bytes": 2**33} for i in range(NODES)
    ]
    return {
        "protected_results": 9 * step, "restored_results": 2, "recomputed_results": 1, "lost_results": 0,
        "commits": {"complete": JOBS}, "latest": latest, "managers": managers,
    }  # fmt: skip


def _flows(step: int) -> list[dict[str, Any]]:
    analysis = {"window": 3, "every": 2, "where": "auto", "first": 0}
    return [
        {"name": f"{_FLOW}{i}", "state": "running", "reason": "", "sources": 4, "size": 4, "steps": step + i,
         "queue": 2, "in_flight": (step + i) % 3, "when_full": "wait", "bytes": 2**20 * (step + i),
         "analyses": {"peak": analysis, "mean": analysis},
         "latest": [{"step_s": 0.25 + step % 7 / 100, "in_situ_work_share": 0.4, "helper_cores": 2,
                     "idle_helper_core_s": 0.125}]}
        for i in range(20)
    ]  # fmt: skip


def _sections(step: int, flows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the views of power, checkpoints, I/O and coupling show, more than they have rows for."""
    real = [flow for flow in flows if not flow["name"].startswith(_FLOW)]
    return {
        "power": _power(step), "io": _io(step), "protected_jobs": _protected(step),
        "checkpoints": _checkpoints(step), "coupling": [*real, *_flows(step)],
    }  # fmt: skip


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


def _watts(step: int) -> list[Record]:
    """What is drawn from a step on; with the first the bounds of the corridor, and what was drawn before."""
    times = [_BEGIN_S + _PERIOD_S * step] if step else [10.0 * change for change in range(CHANGES)]
    bounds = Other(kind=CORRIDOR, data={"t_s": 0.0, "lower_w": 60_000.0, "upper_w": 95_000.0})
    drawn = [Other(kind=DRAW, data={"t_s": t_s, "draw_w": 90_000.0 + t_s % 37}) for t_s in times]
    return drawn if step else [bounds, *drawn]


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


def picture(step: int, status: dict[str, Any] | None = None, since: int = 0, filled: bool = True) -> Picture:
    """What the scheduler would answer at that step; `status`: what else it tells of itself.

    `filled`: all jobs draw power, are at files, and are protected, and programs are coupled.
    """
    jobs = [_row(job, step) for job in range(JOBS)]
    now_s = _BEGIN_S + _PERIOD_S * step
    nodes = [
        {"id": f"node-{i}", "job": _holder(i, jobs), "state": "up", "workers": 1, "nthreads": 4,
         "memory_bytes": 2**33, "walltime_left_s": 7200.0 - now_s + i, "domain": None}
        for i in range(NODES)
    ]  # fmt: skip
    own = {"now_s": now_s, "nodes": nodes, "pool_nodes": NODES, "jobs_running": RUNNING}
    status = {**(status or {}), **own, "jobs_pending": JOBS - RUNNING}
    records = _records(step)
    if filled:
        status |= _sections(step, status.get("coupling", ()))
        records += _watts(step)
    happened = {"lines": [encode_line(one) for one in records], "number": step + 1, "whole": step == 0}
    return Picture(
        status=status,
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
