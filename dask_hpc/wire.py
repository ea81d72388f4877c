"""Names that the client's and the scheduler's side, and the workers, say to each other.

Rules of the file: names alone, no behaviour; both sides import them from here.
"""

from __future__ import annotations

#: Name of the RPC handler, and of the stream handlers that open, bind and close jobs.
RPC = "hpc"
OPEN = "hpc-open-job"
BIND = "hpc-bind"
CLOSE = "hpc-close-job"

#: What a cluster that follows the load says is the cause when it has workers retired.
FOLLOWS_LOAD = "hpc-follows-load"

#: Name of the plugin that every worker has, and of the metric in which its heartbeats carry our sections.
WORKER_PLUGIN = "dask-hpc"
HEARTBEAT = "hpc"

#: Name of the handler of workers that tells the bytes of small results.
TELL = "hpc_tell"

#: A worker has an abstract resource of this name and the role of its node behind it, if that is another than
#: computing: it is known before any task is placed.
ROLE_RESOURCE = "hpc-role-"

#: Abstract resource of a worker that analyses take beside a program, and the handler that says how much of it
#: there is.
HELPER_RESOURCE = "hpc-helper"
HELPERS = "hpc_helpers"

#: Name of the handler of workers that takes blocks of coupled programs, and of the metadata of a task in
#: which a value that is computed of them comes with the word that it is there.
COUPLE = "hpc_couple"
VALUE = "hpc-value"
#: Of the metadata in which it is said what computing that value has taken.
TAKEN = "hpc-taken"
#: Handler of workers that hears that a flow takes no steps any more.
FLOW_OVER = "hpc_flow_over"

#: What may be done to blocks of a checkpoint on their way to the store.
SERVICES = ("plain", "compress", "encrypt", "compress+encrypt")

#: How the names of Dask's metrics begin that say what tasks read and write; then what, the kind of the file
#: system and the target. What: ``read`` or ``write`` in bytes, ``busy`` in seconds; ``~`` before it marks an
#: estimate.
IO_METRIC = "io"
#: Name of the metric of the seconds in which a task had any operation under way, whatever the target; the
#: same as an estimate.
IO_SECONDS = "io all"
IO_ESTIMATED = "io ~all"
#: Name of the handler of workers that switches counting of what tasks read and write on and off, and how the
#: span of a job ends whose tasks are to be counted.
COUNT_IO = "hpc_count_io"
COUNTED_SPAN = "-io"

#: What may say how many watts a host draws (``hpc.power.source``).
POWER_SOURCES = (
    "auto", "rapl", "hwmon", "cray", "nvml", "slurm", "prometheus", "http", "command", "replay", "model",
)  # fmt: skip
#: Name of the handler of workers that switches sampling of the draw on and off.
POWER = "hpc_power"
#: Name of the handler of workers that caps what their host draws, and what may do it (``hpc.power.cap.by``).
CAP = "hpc_cap"
CAPS = ("powercap", "cpufreq", "nvml", "command")

#: Name of the annotation that says which job a task belongs to.
ANNOTATION = "hpc_job"
#: Name of the annotation that says on which node of its job a task belongs.
NODE_ANNOTATION = "hpc_node"


def notice_topic(client: str) -> str:
    """Name of the event topic on which a client gets notices."""
    return f"hpc-notice-{client}"


def producer_topic(client: str, job: str) -> str:
    """Name of the event topic on which a client is told about the windows of one of its jobs."""
    return f"{notice_topic(client)}-{job}"
