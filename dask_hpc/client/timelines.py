"""A running cluster over time: what has happened, as the trace has it, what is to come, and why a job waits.

Rules of the file: what is computed of the scheduler's answers is computed in another thread. What cannot be
predicted is left out, and the picture says why.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dask_hpc.channel import Channel
from dask_hpc.errors import SimulationError, WorkloadError
from dask_hpc.report.picture import TimelinePicture
from dask_hpc.report.spans import Spans, ends_of
from dask_hpc.report.timeline import Timeline, build_timeline
from dask_hpc.trace.records import decode_line
from dask_hpc_policies.codec import decode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import Bool

#: A job that was just opened is looked for so often, so many seconds apart.
OVERTAKEN, POLL_AGAIN_S = 20, 0.05
#: Whether what is to come is drawn, too.
_PREDICT = Bool("predict", True)


async def picture(channel: Channel, predict: bool = True, job: str | None = None) -> TimelinePicture:
    """Nodes and jobs over time, of the whole cluster or of one job.

    Raises
    ------
    ValueError
        When the trace that is kept in memory has nothing of the job, and for a `predict` that is neither
        true nor false.
    """
    predict = _PREDICT.validate(predict)
    for _ in range(OVERTAKEN):
        # the trace last: what is predicted begins before it ends, so that nothing is missing between
        snapshot = decode(ClusterSnapshot, await channel.ask("snapshot"))
        found = await channel.ask("picture", ended=0, decisions=0)
        lines, now_s = await channel.ask_at("trace")
        past = await asyncio.to_thread(_past, lines, now_s)
        if job is None or job in past.spans.labels:
            break
        # what opens a job goes on the stream: the answer to a request may overtake it
        await asyncio.sleep(POLL_AGAIN_S)
    spans, note = past.spans, ""
    if predict:
        policy = found["status"]["policy"]
        later, note = await asyncio.to_thread(_predicted, snapshot, found["jobs"], policy)
        if later is not None:
            spans = spans.followed_by(later.shifted(-past.origin_s), now_s - past.origin_s)
    name = found["status"]["policy"].get("policy", "a policy of yours")
    ends = ends_of(found["jobs"], past.origin_s)
    if job is None:
        spans = spans.with_ends(ends)
        return TimelinePicture(spans, f"This cluster, {name}", note)
    return TimelinePicture(spans.of_job(job).with_ends(ends), f"{job}, {name}", note)


def _past(lines: list[str], now_s: float) -> Timeline:
    return build_timeline(map(decode_line, lines), now_s)


def _predicted(view: ClusterSnapshot, rows: Any, policy: Any) -> tuple[Spans | None, str]:
    """What the simulator says that happens from `view` on, and a sentence about it."""
    # here: most programs never ask
    from dask_hpc.sim.learned import guess, learn
    from dask_hpc.sim.waiting import ASSUMED_S
    from dask_hpc.sim.what_if import simulate_from

    if not any(not one.is_default for one in view.jobs):
        return None, ""
    if policy.get("custom"):
        return None, "Nothing is predicted: the policy is known to the cluster alone."
    try:
        learned, knowledge = learn(view, rows, ASSUMED_S)
        result = simulate_from(learned, policy)
    except (WorkloadError, SimulationError) as error:
        return None, f"Nothing is predicted: {error}."
    except Exception as error:
        # a policy may be anybody's code, and may be registered there alone: what has happened is drawn
        return None, f"Nothing is predicted: {type(error).__name__}: {error}."
    return result.spans(), f"What is pale is predicted by the simulator. {guess(knowledge)}".strip()


async def why_waiting(channel: Channel, job: str) -> Any:
    """Why a job waits, by its id: see `dask_hpc.client.job.Job.why_waiting`."""
    from dask_hpc.sim import waiting

    # what opens a job goes on the stream: the answer to a request may overtake it
    for _ in range(OVERTAKEN):
        snapshot, found = await asyncio.gather(
            channel.ask("snapshot"), channel.ask("picture", ended=0, decisions=0)
        )
        view = decode(ClusterSnapshot, snapshot)
        there = any(one.id == job for one in view.jobs)
        if there or (await channel.ask("job", job=job))["state"] != "pending":
            break
        await asyncio.sleep(POLL_AGAIN_S)
    return await asyncio.to_thread(waiting.why_waiting, view, found["jobs"], found["status"]["policy"], job)
