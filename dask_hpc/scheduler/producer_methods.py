"""What producers can ask the scheduler side; the methods join those of `service`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler import dask_writes
from dask_hpc_policies.constraints import largest_at_most, smallest_at_least
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.jobspec import InvalidJob
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from dask_hpc.scheduler.jobs import JobRecord
    from dask_hpc.scheduler.service import Service
    from dask_hpc.scheduler.windows import Windows


def _windows(service: Service) -> Windows:
    return service.engine.rounds.windows


def _job(service: Service, job: str) -> JobRecord:
    return service.engine.state.jobs.find(job)


async def await_start(service: Service, job: str, timeout_s: float) -> dict[str, Any]:
    """Row of a job once it runs or has ended, or after `timeout_s` seconds."""
    record, state = _job(service, job), service.engine.state
    deadline_s = state.now_s() + timeout_s
    while record.state in ("pending", "adapting") and state.now_s() < deadline_s:
        await asyncio.sleep(min(state.settings.sweep_s / 10, 0.01))
    return await service.job(job)


async def produce(service: Service, job: str, client: str, topic: str) -> list[str]:
    """A running job keeps state on its nodes from now on; returns their ids.

    `client` is told about windows on `topic`, from this moment: its own message that it listens may come
    after the first of them.
    """
    members = _windows(service).register(_job(service, job), topic)
    service.scheduler.subscribe_topic(topic, client)
    return members


async def produced(service: Service, job: str) -> None:
    """The job keeps no state any more."""
    _windows(service).forget(_job(service, job))


async def phase(service: Service, job: str, name: str, elastic: bool) -> None:
    """A phase of the job begins; in one that is not elastic it is not resized."""
    record = _job(service, job)
    _windows(service).phase(record, name, elastic)
    record.meter.begin_phase(service.engine.state.now_s(), name, elastic=elastic)


async def joined(service: Service, job: str, reconfig_id: int) -> None:
    """The joining nodes of a window are ready."""
    _windows(service).joined(_job(service, job), reconfig_id)


async def begin(service: Service, job: str, reconfig_id: int) -> dict[str, Any]:
    """The job is at a step boundary and changes its layout now; returns who stays, joins and leaves."""
    return _windows(service).begin(_job(service, job), reconfig_id)


async def commit(service: Service, job: str, reconfig_id: int) -> list[str]:
    """The job's state lies on the new nodes; returns them."""
    return _windows(service).commit(_job(service, job), reconfig_id)


async def abort(service: Service, job: str, reconfig_id: int, reason: str) -> None:
    """The job's layout stays as it is."""
    _windows(service).abort(_job(service, job), reconfig_id, reason)


async def keep_copies(service: Service, job: str, copies: Sequence[tuple[Any, str]]) -> bool:
    """Make data of its own of copies of the job's blocks, each on its node and nowhere else.

    `copies` gives keys and nodes. Returns whether that was done: not unless all are there.
    """
    record, state = _job(service, job), service.engine.state
    places = {}
    for key, node in copies:
        if key not in state.owner or state.owner[key].job is not record or node not in state.nodes.nodes:
            return False
        places[key] = set(state.nodes.nodes[node].workers)
    return dask_writes.keep_copies(service.scheduler, places, f"hpc-keep-{record.id}")


async def request(service: Service, job: str, nodes: int, wait: bool = True) -> dict[str, Any]:
    """A running job asks for so many nodes more (or, negative, fewer).

    Returns
    -------
    dict
        The outcome, with ``asked`` and ``granted`` (differences of nodes). What cannot be granted now is
        refused with a reason. Without `wait` it may be ``under way``: granted, and not carried out yet.

    Raises
    ------
    InvalidJob
        When the job could never have as many.
    """
    record, state = _job(service, job), service.engine.state
    now, low, high = state.nodes_up(record), record.resolved.min_nodes, record.resolved.max_nodes
    if isinstance(nodes, bool) or not isinstance(nodes, int) or not nodes or not low <= now + nodes <= high:
        raise InvalidJob(
            f"a request for {nodes!r} nodes more; allowed for {record.id}, which has {now}: whole numbers "
            f"from {low - now} to {high - now} without 0 (min_nodes {low}, max_nodes {high})"
        )
    size = _grantable(record, now, nodes, state.idle_nodes())
    if size is None:
        idle = counted(state.idle_nodes(), "idle node")
        constraint = record.spec.constraint
        text = f"it asked for {nodes:+d} at {counted(now)}; there are {idle}, constraint {constraint}"
        return {"result": "refused", "reason": text, "asked": nodes, "granted": 0, "nodes": now}
    reason = Reason(ReasonCode.JOB_REQUEST, f"it asked for {nodes:+d} at {counted(now)}", {"nodes": nodes})
    kind = Shrink if size < now else Expand
    answer = await service.enact(kind(job=record.id, nodes=size, reason=reason), wait)
    granted = size - now if answer["result"] in ("done", "under way") else 0
    return {**answer, "asked": nodes, "granted": granted}


def _grantable(record: JobRecord, now: int, nodes: int, idle: int) -> int | None:
    """The legal size nearest to what was asked for that can be had; None when there is none."""
    constraint = record.spec.constraint
    if nodes > 0:
        return largest_at_most(constraint, now + min(nodes, idle), now + 1)
    return smallest_at_least(constraint, now + nodes, now - 1)


METHODS: Mapping[str, Any] = {
    function.__name__: function
    for function in (
        await_start,
        produce,
        produced,
        phase,
        joined,
        begin,
        commit,
        abort,
        keep_copies,
        request,
    )
}
