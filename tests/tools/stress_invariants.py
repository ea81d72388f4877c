"""What must be true of the runtime: at any moment, of every recorded decision, and once it is asleep.

Every function looks and returns what is wrong, one sentence a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from distributed import Scheduler

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals.allotment import HOLD, AllotmentSet
from dask_hpc.scheduler.internals.reads import IN_PLAY
from dask_hpc.trace.files import parse_trace
from dask_hpc.trace.records import NodeEvent, Pass, Record, Result
from dask_hpc.trace.replay import replay
from dask_hpc_policies.decision import Expand, Shrink, Start
from dask_hpc_policies.model import COMPUTE


def now(engine: Engine) -> list[str]:
    """Faults of the tables at this moment."""
    if not engine.awake:
        return []
    return [*_counts(engine), *_allotments(engine), *_restrictions(engine), *_roles(engine)]


def _counts(engine: Engine) -> Iterable[str]:
    """Each job's counts are those of its tasks."""
    tasks = engine.scheduler.tasks
    counted: dict[Any, Counter[str]] = {job: Counter() for job in engine.state.jobs.active.values()}
    for key, lane in engine.state.owner.items():
        ts = tasks.get(key)
        if ts is None:
            yield f"{key!r} has an owner and is not known to the scheduler"
        elif ts.state in IN_PLAY:
            counted.setdefault(lane.job, Counter())[ts.state] += 1
    for job, states in counted.items():
        waits = states["no-worker"] + states["queued"]
        expected = (sum(states.values()), states["processing"], waits)
        found = (job.unfinished, job.processing, job.held)
        if expected != found:
            yield f"{job.id} counts (unfinished, processing, held) {found}, its tasks are {expected}"


def _allotments(engine: Engine) -> Iterable[str]:
    """Each allotment is the addresses of the nodes that the job holds and that are not leaving it."""
    state = engine.state
    holders: dict[str, str] = {}
    for job in state.jobs.named:
        expected = set()
        for id in job.nodes:
            node = state.nodes.nodes.get(id)
            if node is None or node.job != job.id:
                yield f"{job.id} lists node {id}, which is held by {node and node.job}"
                continue
            if id in holders:
                yield f"node {id} is held by {holders[id]} and by {job.id}"
            holders[id] = job.id
            if not node.reserved:
                expected.update(node.workers)
        if set(job.allotment) != expected:
            yield f"{job.id} is allotted {sorted(job.allotment)}, its nodes have {sorted(expected)}"
    lent = [node for job in state.jobs.named for node in state.resting_nodes(job)]
    free = {address for node in (*state.nodes.free(), *lent) for address in node.workers}
    for job in state.jobs.active.values():
        if job.is_default:
            expected = free if job in state.plain else set()
            if set(job.allotment) != expected:
                yield f"{job.id} is allotted {sorted(job.allotment)}, free nodes have {sorted(expected)}"
    for node in state.nodes.nodes.values():
        if node.job is not None and node.job not in state.jobs.active:
            yield f"node {node.id} is held by {node.job}, which has ended"
        if node.reserved and not engine.rounds.active:
            yield f"node {node.id} is reserved for round {node.reserved} and no round is under way"
    if set(state.nodes.at) != set(engine.scheduler.workers):
        yield f"nodes know workers {sorted(state.nodes.at)}, there are {sorted(engine.scheduler.workers)}"
    for address, node in state.nodes.at.items():
        if state.nodes.nodes.get(node.id) is not node:
            yield f"worker {address} belongs to node {node.id}, which is not in the table"


def _restrictions(engine: Engine) -> Iterable[str]:
    """Tasks without a worker are bound to their present job, and nowhere when they are held."""
    for key, lane in engine.state.owner.items():
        ts = engine.scheduler.tasks.get(key)
        if ts is None or lane.kind == "free" or ts.state not in IN_PLAY:
            continue
        bound = ts.worker_restrictions
        if lane.kind == "queue":
            if bound is not None or lane.job not in engine.state.plain:
                yield f"{key!r} ({lane}, {ts.state}) is stock's to queue and bound to {bound!r}"
            continue
        if ts.state == "queued":
            yield f"{key!r} ({lane}) is queued by stock"
        legal = [lane.job.reach, lane.restriction, *_pins(engine, lane)]
        if lane.kind == "root":
            legal = [HOLD] if ts.state == "no-worker" else [HOLD, lane.job.reach]
        elif bound is HOLD and any(entry[2] is ts for entry in lane.job.queue):
            legal = [HOLD]  # without a node of its job it waits for a borrowed slot
        if isinstance(bound, AllotmentSet) and not any(bound is one for one in legal):
            yield f"{key!r} ({lane}, {ts.state}) is bound to {bound!r} of another job"
        if not isinstance(bound, AllotmentSet) and lane.kind != "p2p":
            yield f"{key!r} ({lane}, {ts.state}) is not bound to its job but to {bound!r}"


def _roles(engine: Engine) -> Iterable[str]:
    """On nodes that are not for computing runs what the user has sent there, and nothing else."""
    state = engine.state
    for address, node in state.nodes.at.items():
        if node.role == COMPUTE or node.reserved:
            continue
        for ts in engine.scheduler.workers[address].processing:
            lane = state.owner.get(ts.key)
            if lane is None or lane.kind != "free":
                yield f"{ts.key!r} ({lane}) is on {node.id}, which is for {node.role}"


def _pins(engine: Engine, lane: Any) -> list[Any]:
    pins = engine.state.pins.get(lane.job, {}).values()
    return [lane.restriction] if any(lane is pin for pin in pins) else []


def below_minimum(engine: Engine) -> list[str]:
    """Running jobs below their minimum although idle nodes would lift the first of them to it."""
    state = engine.state
    if not engine.awake:
        return []
    found = []
    for job in state.jobs.named:
        missing = job.request.min_nodes - state.nodes_up(job)
        if job.state == "running" and not job.reconfig_id and 0 < missing <= state.idle_nodes():
            found.append(job.id)
    return found


def asleep(scheduler: Scheduler, engine: Engine, originals: Mapping[str, Any]) -> list[str]:
    """What the sleeping runtime has left in the scheduler."""
    state = engine.state
    left: dict[str, bool] = {
        "the engine is awake": engine.awake,
        "the plugin is registered": "dask-hpc" in scheduler.plugins,
        "valid_workers is replaced": "valid_workers" in vars(scheduler),
        f"tasks have owners: {list(state.owner)[:3]}": bool(state.owner),
        f"jobs are active: {list(state.jobs.active)}": bool(state.jobs.active),
        f"nodes are known: {list(state.nodes.nodes)}": bool(state.nodes.nodes or state.nodes.at),
        "a round is under way": engine.rounds.active,
        "periodic callbacks run": any(name.startswith("hpc") for name in scheduler.periodic_callbacks),
    }
    faults = [text for text, wrong in left.items() if wrong]
    for name, handler in originals.items():
        if scheduler.stream_handlers[name] is not handler and scheduler.stream_handlers[name] != handler:
            faults.append(f"the stream handler {name} is not the original")
    marked = [ts for ts in scheduler.tasks.values() if _ours(ts)]
    if marked:
        faults.append(f"{len(marked)} tasks carry a restriction of ours, first {marked[0]}")
    return faults


def _ours(ts: Any) -> bool:
    kept = (ts.annotations or {}).get("shuffle_original_restrictions")
    return isinstance(ts.worker_restrictions, AllotmentSet) or isinstance(kept, AllotmentSet)


def feed(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of the decision feed without a reason."""
    return [f"no reason: {row}" for row in rows if not row["reason"].strip() or not row["reason_code"]]


def trace(lines: list[str]) -> list[str]:
    """Faults of a recorded trace: reasons, contradictions, order within rounds, replay."""
    read = parse_trace(lines)
    faults = [fault for item in read.passes for fault in _decision(item)]
    outcomes = [record.outcome for record in read.records if isinstance(record, Result)]
    faults += [f"an outcome without a reason: {item}" for item in outcomes if not item.reason.text.strip()]
    faults += _order(read.records)
    report = replay(read)
    if not report.ok:
        faults.append(f"{report.differing} of {report.passes} passes replay otherwise, first {report.first}")
    return faults


def _decision(item: Pass) -> Iterable[str]:
    kinds: dict[str, set[str]] = {}
    for action in item.decision.actions:
        kinds.setdefault(getattr(action, "job", ""), set()).add(action.TAG)
        if not action.reason.text.strip():
            yield f"an action without a reason: {action}"
    for suppressed in item.decision.suppressed:
        if not suppressed.reason.text.strip():
            yield f"a suppressed action without a reason: {suppressed}"
    for job, tags in kinds.items():
        if job and len(tags) > 1:
            yield f"one decision holds {sorted(tags)} of {job}: {item.decision}"


def mixed(record: Record) -> bool:
    """Whether it is a decision that both takes nodes from jobs and hands nodes out."""
    if not isinstance(record, Pass):
        return False
    tags = {action.TAG for action in record.decision.actions}
    return Shrink.TAG in tags and bool(tags & {Start.TAG, Expand.TAG})


def _order(records: tuple[Record, ...]) -> Iterable[str]:
    """In every round the outcomes of reductions come before nodes are handed out.

    The nodes that a job held when the decision was taken may return to it meanwhile.
    """
    for index, item in enumerate(records):
        if not isinstance(item, Pass) or not mixed(item):
            continue
        shrinks = [action for action in item.decision.actions if isinstance(action, Shrink)]
        grows = {a.job for a in item.decision.actions if isinstance(a, (Start, Expand))}
        ends = [_end(records, index, action) for action in shrinks]
        last = max((end for end in ends if end is not None), default=index)
        held = {(node.id, node.job) for node in item.snapshot.nodes}
        for record in records[index:last]:
            if not isinstance(record, NodeEvent) or record.job not in grows:
                continue
            for node in record.nodes:
                if (node, record.job) not in held:
                    yield f"{record.job} got {node} at {record.t_s} before all reductions had ended"


def _end(records: tuple[Record, ...], index: int, action: Shrink) -> int | None:
    """Where the outcome of `action` is; None when it was refused or has not come."""
    for place in range(index + 1, len(records)):
        record = records[place]
        if isinstance(record, Result) and record.outcome.action == action:
            return None if record.outcome.result == "refused" else place
    return None
