"""Start-up check of the Dask internals that this room relies on.

Each row of the table names something of `distributed` that its documentation does not promise. A
release that changes one is refused with a clear message instead of failing in the middle of a run.
"""

from __future__ import annotations

import functools
import inspect
import platform
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import distributed
from dask._task_spec import GraphNode
from distributed import batched, broker, spans, stealing, worker_state_machine
from distributed import scheduler as module
from distributed.active_memory_manager import ActiveMemoryManagerExtension
from distributed.collections import HeapSet
from distributed.deploy import cluster, spec
from distributed.shuffle import ShuffleSchedulerPlugin
from distributed.shuffle._core import SchedulerShuffleState, ShuffleRunSpec

from dask_hpc._version import __version__
from dask_hpc.errors import InstallError
from dask_hpc.scheduler.internals.overrides import SHUFFLE, STEPS
from dask_hpc.scheduler.internals.writes import GIVEN_UP, NOT_THERE
from dask_hpc.trace.records import Header

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

#: Functions by owner and name, with the parameters we pass or replace.
_FUNCTIONS: Mapping[tuple[Any, str], tuple[str, ...]] = {
    (module, "_task_slots_available"): ("ws", "saturation_factor"),
    (module, "heartbeat_interval"): ("n",),
    (module.Scheduler, "heartbeat_worker"): ("self", "address", "metrics"),
    (module.Scheduler, "valid_workers"): ("self", "ts"),
    (module.Scheduler, "is_rootish"): ("self", "ts"),
    (module.Scheduler, "_add_to_memory"): (
        "self",
        "ts",
        "ws",
        "recommendations",
        "client_msgs",
        "type",
        "typename",
    ),
    (module.Scheduler, "decide_worker_non_rootish"): ("self", "ts"),
    (module.Scheduler, "_add_to_processing"): ("self", "ts", "ws", "stimulus_id"),
    (module.Scheduler, "decide_worker_rootish_queuing_disabled"): ("self", "ts"),
    (module.Scheduler, "_clear_task_state"): ("self",),
    (module.Scheduler, "bulk_schedule_unrunnable_after_adding_worker"): ("self", "ws"),
    (module.Scheduler, "_check_unrunnable_task_timeouts"): (
        "self",
        "timestamp",
        "recommendations",
        "stimulus_id",
    ),
    (module.Scheduler, "_fail_tasks_after_no_workers_timeout"): (
        "self",
        "timed_out",
        "recommendations",
        "stimulus_id",
    ),
    (module.Scheduler, "transitions"): ("self", "recommendations", "stimulus_id"),
    (module.Scheduler, "_transitions"): (
        "self",
        "recommendations",
        "client_msgs",
        "worker_msgs",
        "stimulus_id",
    ),
    (module.Scheduler, "send_all"): ("self", "client_msgs", "worker_msgs"),
    (module.Scheduler, "_transition_processing_memory"): ("self", "key", "worker", "startstops"),
    (module.Scheduler, "_reschedule"): ("self", "key", "worker", "stimulus_id"),
    (module.Scheduler, "stimulus_queue_slots_maybe_opened"): ("self", "stimulus_id"),
    (module.Scheduler, "client_releases_keys"): ("self", "keys", "client", "stimulus_id"),
    (module.Scheduler, "report"): ("self", "msg", "ts", "client"),
    (module.Scheduler, "request_remove_replicas"): ("self", "addr", "keys", "stimulus_id"),
    (module.Scheduler, "worker_send"): ("self", "worker", "msg"),
    (module.Scheduler, "handle_worker_status_change"): ("self", "status", "worker", "stimulus_id"),
    (module.Scheduler, "add_replica"): ("self", "ts", "ws"),
    (module.Scheduler, "remove_replica"): ("self", "ts", "ws"),
    (module.Scheduler, "proxy"): ("self", "msg", "worker", "serializers"),
    (module.Scheduler, "_get_prefix_duration"): ("self", "prefix"),
    (module.Scheduler, "log_event"): ("self", "topic", "msg"),
    (module.Scheduler, "get_events"): ("self", "topic"),
    (module.Scheduler, "broadcast"): ("self", "msg", "workers", "on_error"),
    (module.Scheduler, "gather_on_worker"): ("self", "worker_address", "who_has"),
    (module.Scheduler, "retire_workers"): (
        "self",
        "workers",
        "names",
        "close_workers",
        "remove",
        "stimulus_id",
    ),
    (module.Scheduler, "restart"): ("self", "wait_for_workers"),
    (module.Scheduler, "remove_worker"): ("self", "address", "stimulus_id", "expected", "close"),
    (module.Scheduler, "workers_to_close"): ("self", "attribute"),
    (ActiveMemoryManagerExtension, "_find_dropper"): ("self", "ts", "candidates", "pending_drop"),
    (module.ClientState, "__init__"): ("self", "client"),
    (module, "Transition"): ("key", "start", "finish", "recommendations", "stimulus_id", "timestamp"),
    (batched.BatchedSend, "_background_send"): ("self",),
    (module.TaskState, "get_nbytes"): ("self",),
    (module.TaskState, "set_nbytes"): ("self", "nbytes"),
    (spans.SpansSchedulerExtension, "_ensure_span"): ("self", "name", "ids"),
    (spans.SpansSchedulerExtension, "observe_tasks"): ("self", "tss", "code", "span_metadata"),
    (module.Scheduler, "get_comm_cost"): ("self", "ts", "ws"),
    (module.Scheduler, "register_worker_plugin"): ("self", "comm", "plugin", "name", "idempotent"),
    (module.Scheduler, "unregister_worker_plugin"): ("self", "comm", "name"),
    (distributed.Worker, "actor_execute"): ("self", "actor", "function", "args", "kwargs"),
    (distributed.Worker, "actor_attribute"): ("self", "actor", "attribute"),
    (distributed.Worker, "update_data"): ("self", "data"),
    (distributed.Worker, "set_resources"): ("self", "resources"),
    (distributed.Worker, "execute"): ("self", "key", "stimulus_id"),
    (distributed.Worker, "digest_metric"): ("self", "name", "value"),
    (worker_state_machine.FreeKeysEvent, "__init__"): ("self", "stimulus_id", "keys"),
    (ShuffleSchedulerPlugin, "get_or_create"): ("self", "shuffle_id", "key", "worker"),
    (cluster.Cluster, "_update_worker_status"): ("self", "op", "msg"),
    (spec.SpecCluster, "_start"): ("self",),
    (spec.SpecCluster, "_close"): ("self",),
    (spec.SpecCluster, "_correct_state"): ("self",),
    (spec.SpecCluster, "_correct_state_internal"): ("self",),
    (spec.SpecCluster, "_threads_per_worker"): ("self",),
    (spec.SpecCluster, "_memory_per_worker"): ("self",),
    (spec.SpecCluster, "new_worker_spec"): ("self",),
    (stealing.WorkStealing, "move_task_confirm"): ("self", "key", "state", "stimulus_id", "worker"),
}
#: Attributes of a task, of a worker, of a client and of what else the scheduler knows.
_FIELDS: Mapping[Any, list[str]] = {
    module.TaskState: (
        "worker_restrictions host_restrictions resource_restrictions annotations priority run_id run_spec "
        "group actor who_wants who_has dependencies dependents processing_on key state waiters type "
        "has_lost_dependencies loose_restrictions prefix nbytes suspicious metadata _run_id_iterator"
    ).split(),
    GraphNode: ["data_producer"],
    module.ClientState: ["client_key", "wants_what"],
    module.TaskPrefix: ["all_durations", "duration_average", "name", "state_counts"],
    module.TaskGroup: ["states", "prefix", "span_id", "last_worker", "last_worker_tasks_left"],
    spans.Span: ["name", "id", "groups", "_cumulative_worker_metrics"],
    spans.SpansSchedulerExtension: ["spans"],
    broker.Broker: ["_topics"],
    broker.Topic: ["subscribers"],
    ShuffleSchedulerPlugin: ["active_shuffles", "valid_workers_downscaling"],
    SchedulerShuffleState: ["participating_workers", "run_spec"],
    ShuffleRunSpec: ["worker_for"],
    module.WorkerState: (
        "processing executing long_running nthreads address name host memory_limit actors nbytes occupancy "
        "metrics resources has_what last_seen status"
    ).split(),
    worker_state_machine.TaskState: ["annotations", "span_id", "startstops", "resource_restrictions"],
    worker_state_machine.WorkerState: ["total_resources", "available_resources"],
    worker_state_machine.TaskFinishedMsg: ["startstops"],
    worker_state_machine.TaskErredMsg: ["startstops"],
    distributed.Nanny: ["process"],
    HeapSet: ["_data", "_heap"],
}
#: Attributes of a running scheduler, and handlers that are wrapped.
_ATTRIBUTES = (
    "tasks workers running plugins extensions unrunnable queued idle_task_count clients handlers "
    "stream_handlers stream_comms client_comms periodic_callbacks loop WORKER_SATURATION total_occupancy "
    "_workers_added_total _workers_removed_total no_workers_timeout _no_workers_since worker_plugins "
    "bandwidth rpc _broker idle total_nthreads resources task_groups task_prefixes transition_log "
    "_TRANSITIONS_TABLE UNKNOWN_TASK_DURATION"
).split()
#: Attributes of a running cluster.
_CLUSTER = "workers worker_spec scheduler scheduler_comm scheduler_info loop _adaptive _futures".split()
_STREAMS = ("update-graph", "steal-response", "long-running", "worker-status-change", "close-client")


def check() -> list[str]:
    """What is not as expected in the installed `distributed`, one sentence each; empty when all is well."""
    problems = []
    for (owner, name), parameters in _FUNCTIONS.items():
        function = getattr(owner, name, None)
        if function is None:
            problems.append(f"{owner.__name__}.{name} is missing")
            continue
        present = _parameters(function)
        missing = [p for p in parameters if p not in present]
        if missing:
            problems.append(f"{owner.__name__}.{name} has no parameter {', '.join(missing)}")
    for owner, names in _FIELDS.items():
        problems += [f"{owner.__name__}.{name} is missing" for name in names if not _has(owner, name)]
    steps = getattr(module.Scheduler, "_TRANSITIONS_TABLE", {})
    for start, finish in (step for step in STEPS if step not in steps):
        problems.append(f"the scheduler takes no task from {start} to {finish} in one step")
    for name in ("_WORKER_STATE_CONFIRM", "_WORKER_STATE_UNDEFINED"):
        if not hasattr(stealing, name):
            problems.append(f"stealing.{name} is missing")
    if getattr(stealing, "_WORKER_STATE_CONFIRM", GIVEN_UP) != GIVEN_UP:
        problems.append("workers answer a steal-request in other states than expected")
    if getattr(stealing, "_WORKER_STATE_UNDEFINED", NOT_THERE) != NOT_THERE:
        problems.append("workers answer a steal-request for unknown tasks otherwise than expected")
    return problems


@functools.cache
def _parameters(function: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _has(owner: Any, name: str) -> bool:
    """Whether a class says that its objects have an attribute."""
    return hasattr(owner, name) or any(name in inspect.get_annotations(each) for each in owner.__mro__)


def check_scheduler(scheduler: Scheduler) -> list[str]:
    """Like `check`, for a running scheduler."""
    problems = [f"Scheduler.{name} is missing" for name in _ATTRIBUTES if not hasattr(scheduler, name)]
    handlers = getattr(scheduler, "stream_handlers", {})
    stealing_off = "stealing" not in scheduler.extensions
    problems += [
        f"the scheduler has no stream handler {name!r}"
        for name in _STREAMS
        if name not in handlers and not (stealing_off and name == "steal-response")
    ]
    if not stealing_off and not hasattr(scheduler.extensions["stealing"], "in_flight"):
        problems.append("WorkStealing.in_flight is missing")
    if "shuffle" in scheduler.plugins and SHUFFLE not in scheduler.handlers:
        problems.append(f"the scheduler has no handler {SHUFFLE!r}")
    return problems


def require(scheduler: Scheduler) -> None:
    """Raise `InstallError` unless the installed `distributed` is as expected."""
    _refuse(check() + check_scheduler(scheduler))


def require_cluster(running: spec.SpecCluster) -> None:
    """Like `require`, for a running cluster."""
    missing = [name for name in _CLUSTER if not hasattr(running, name)]
    _refuse([f"{type(running).__name__}.{name} is missing" for name in missing])


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        raise InstallError(
            f"dask_hpc {__version__} does not know distributed {distributed.__version__}: "
            + "; ".join(problems)
            + ". Install a supported release of distributed; Dask goes on as usual without dask_hpc."
        )


def versions() -> dict[str, str]:
    """Versions of what takes part."""
    import dask

    return {
        "dask_hpc": __version__,
        "dask": dask.__version__,
        "distributed": distributed.__version__,
        "python": platform.python_version(),
    }


def trace_header(started: str) -> Header:
    """Header of a live trace that began at `started`."""
    return Header(source="live", started=started, versions=versions())
