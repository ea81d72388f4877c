"""The live side of a comparison: a cluster made ready, jobs declared when they are due, and their trace.

Rules of the file: the cluster belongs to somebody; what is changed on it is changed back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from distributed import Client

from dask_hpc.client.known import workers_of
from dask_hpc.client.runtime import Runtime, install
from dask_hpc.clock import Clock
from dask_hpc.errors import DaskHPCError, JobError
from dask_hpc.parity.compare import Change, from_trace
from dask_hpc.parity.tasks import TaskPlan, occupy, occupy_by_size
from dask_hpc.trace.records import decode_line
from dask_hpc.wire import RPC
from dask_hpc_policies import registry
from dask_hpc_policies.model import Lock
from dask_hpc_policies.protocol import Policy

#: A live run is given up after so many times the simulated makespan, and so many seconds more.
_PATIENCE, _PATIENCE_S = 3.0, 60.0
#: Tasks that are sent at once: the first are to begin before the last are there.
_BATCH_TASKS = 100
#: Settings of a cluster that a run changes, and gives back.
_CHANGED = ("tick_s", "lock", "trace_keep", "held_notice_s", "performance_interval_s")
#: All of the trace is kept, and nobody is told that jobs wait: that is what they are there for.
_KEPT = {"trace_keep": 1_000_000, "held_notice_s": 86_400.0}


class ParityError(DaskHPCError, RuntimeError):
    """The live run could not be made or did not end; the message says why."""


@contextmanager
def prepared(
    client: Client, policy: Policy, *, nodes: int, tick_s: float, lock: Lock, patience_s: float
) -> Iterator[Runtime]:
    """A runtime with this policy and these settings; what was there before is there again afterwards.

    Raises
    ------
    ParityError
        When there are not `nodes` workers of one thread after `patience_s` seconds, or others have jobs.
    """
    with suppress(TimeoutError):
        client.wait_for_workers(nodes, timeout=max(0.1, patience_s))
    workers = workers_of(client)
    threads = sorted({worker["nthreads"] for worker in workers.values()})
    if len(workers) != nodes or threads != [1]:
        raise ParityError(
            f"the cluster has {len(workers)} workers with {', '.join(map(str, threads)) or 'no'} threads; "
            f"needed: {nodes} workers with one thread each (dask worker --nthreads 1), or another --nodes"
        )
    # workers load the code of the tasks now, not when the first job is waited for
    client.run(occupy, 0.0)
    before = None
    if client.run_on_scheduler(_has_runtime):
        before = Runtime(client).status()
        if before["jobs_pending"] or before["jobs_running"]:
            raise ParityError("jobs are active on the cluster; compare on one that nobody else uses")
    # what the simulator knows of a job from its start on is measured as soon as that can be
    settings = {**_KEPT, "tick_s": tick_s, "lock": lock, "performance_interval_s": tick_s}
    runtime = install(client, policy, **settings)
    try:
        status = runtime.status()
        if status["settings"]["node_by"] != "worker":
            raise ParityError(
                f"hpc.node.by is {status['settings']['node_by']!r} on the cluster; needed: 'worker'"
            )
        if status["policy"] != registry.spec_of(policy):
            raise ParityError(f"the cluster decides by {status['policy']}, not {registry.spec_of(policy)}")
        yield runtime
    finally:
        if before is None:
            runtime.uninstall()
        else:
            runtime.update(before["policy"], **{name: before["settings"][name] for name in _CHANGED})


def _has_runtime(dask_scheduler: Any = None) -> bool:
    return RPC in dask_scheduler.handlers


def play(
    client: Client,
    runtime: Runtime,
    plans: Sequence[TaskPlan],
    expected_s: float,
    tell: Callable[[str], None],
) -> tuple[list[Change], float]:
    """Submit every job when it is due and wait for all; `tell` is called with a sentence now and then.

    Returns
    -------
    changes
        What the trace says about the jobs.
    overrun
        By which share the tasks have taken longer than they should: what the machine costs, without Dask.

    Raises
    ------
    ParityError
        When a job fails, or the run takes much longer than `expected_s`.
    """
    clock = Clock()
    jobs: dict[str, TaskPlan] = {}
    handles: list[Any] = []
    futures: list[Any] = []
    try:
        for task_plan in plans:
            time.sleep(max(0.0, task_plan.submit_s - clock.now_s()))
            # as simulated: a job's tasks run on its nodes, and nobody else's do
            with runtime.job({**task_plan.fields, "exclusive": True}) as job:
                id = str(job.id)
                jobs[id] = task_plan
                handles.append(job)
                futures += _submit(client, id, task_plan)
        deadline_s = _PATIENCE * expected_s + _PATIENCE_S
        for number, job in enumerate(handles):
            tell(f"{clock.now_s():.0f} s: waiting for job {number + 1} of {len(handles)}")
            job.wait(max(1.0, deadline_s - clock.now_s()))
        ran = client.gather(futures)
        # the others, as many as there are passes, are not looked at
        records = [decode_line(line) for line in runtime.trace() if '"kind":"job"' in line]
    except (JobError, TimeoutError) as error:
        raise ParityError(f"the live run did not end well: {error}") from None
    finally:
        # what ended the run may have been the end of the cluster
        with suppress(OSError, DaskHPCError):
            for job in handles:
                # those that have ended stay as they are
                job.cancel("the comparison is over")
            client.cancel([future for future in futures if not future.done()])
    asked_s, taken_s = (sum(times) for times in zip(*ran, strict=True))
    changes = from_trace(records, {id: task_plan.job for id, task_plan in jobs.items()})
    return changes, taken_s / asked_s - 1.0


def _submit(client: Client, job: str, task_plan: TaskPlan) -> list[Any]:
    count, length_s = task_plan.tasks, task_plan.length_s
    options: dict[str, Any] = {"pure": False, "key": f"occupy-{job}", "batch_size": _BATCH_TASKS}
    if isinstance(length_s, float):
        return client.map(occupy, [length_s] * count, **options)
    return client.map(occupy_by_size, [job] * count, [length_s] * count, **options)
