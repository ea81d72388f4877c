"""Settings: read once from Dask's configuration, checked, then passed around as a value.

Rules of the file: a setting is one row, written at its field of `Settings`; everything else about it follows
from the row (`dask_hpc.config.rows`). Every value, wherever it comes from (files, environment, a live
update, a trace), passes it. Loading touches nothing but Dask's defaults in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import dask.config

from dask_hpc.config import knobs, rows
from dask_hpc.config.layout import leaves, nested, parts
from dask_hpc.config.rows import BUILTIN, Setting, find, is_setting, no_setting, register, table
from dask_hpc.errors import ConfigError
from dask_hpc.wire import CAPS, POWER_SOURCES, SERVICES
from dask_hpc_policies import ranges
from dask_hpc_policies.params import (
    AbsolutePath,
    Bool,
    Choice,
    Duration,
    Float,
    Int,
    Parameter,
    Power,
    Table,
    Text,
    Url,
    Words,
    shown,
)
from dask_hpc_policies.ranges import HORIZON_S, MOST_NODE_W, WEIGHTS

__all__ = [
    "Setting",
    "Settings",
    "find",
    "is_setting",
    "leaves",
    "load_defaults",
    "nested",
    "no_setting",
    "problems",
    "register",
    "settings",
    "table",
]

_DAY_S = 86_400.0
_MOST_NODES = 1_000_000


def _row(row: Parameter) -> Any:
    # a factory, for the default may be a mapping
    return field(default_factory=lambda: row.default, metadata={"row": row})


def _knob(name: str) -> Any:
    row = knobs.KNOBS[name]
    return field(default=row.default, metadata={"row": row, "knob": True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of the runtime, parsed and checked. Make one with :func:`settings`.

    It goes through JSON unharmed (`dask_hpc_policies.codec`).

    Raises
    ------
    ConfigError
        When a value is not allowed; the message names key, value and what is allowed.
    """

    # fmt: off
    # Whether the policy exists is checked where it is made.
    policy: str = _row(Text("policy", "fair", noun="a name or a path", live=False,
        help="What decides who gets which nodes, until an update chooses another policy: the name of a "
        "registered one (dask hpc policies lists them) or a path to a YAML file."))
    policy_params: Mapping[str, Any] = _row(Table("policy-params", {}, live=False,
        help="Its parameters, by name."))
    tick_s: float = _row(Duration("tick", 1.0, lo=0.01, hi=3600.0,
        help="Time between two calls of the policy when nothing else calls it."))
    settings_file: str | None = _row(AbsolutePath("settings-file", None, none_ok=True, live=False,
        help="A file with the layout of this one, whose settings hold from when it changes (looked at every "
        "hpc.tick), as if by an update: all of them or, with the reason in the log and the status, none. "
        "None: no file is watched."))
    lock: Literal["job", "system"] = _row(Choice("lock", "job", ("job", "system"),
        help="job: a job that is being resized gets no new decision. system: no job is resized while any "
        "is."))
    lend_s: float = _row(Duration("lend", 5.0, hi=3600.0,
        help="Threads of a job's nodes that the job cannot fill run held tasks of others, if tasks of that "
        "name usually take at most this long. 0 s: never."))
    window_timeout_s: float = _row(Duration("window-timeout", 60.0, lo=0.01, hi=30 * _DAY_S,
        help="A producer (a job that keeps state on its nodes) that neither reaches a step boundary nor "
        "changes its layout for this long keeps its old size; the resize is aborted with a reason."))
    shrink_deadline_s: float = _row(Duration("shrink-deadline", 60.0, hi=30 * _DAY_S,
        help="A shrink waits for executing tasks and active shuffles at most this long. After that it is "
        "taken back with a reason; nothing that executes is interrupted."))
    kill_delay_s: float = _row(Duration("kill-delay", 25.0, hi=30 * _DAY_S, live=False,
        help="Time that a worker has from SIGTERM until it is killed. What it executes is waited for, and "
        "its data moved, within it. Keep it below the batch system's own (Slurm: KillWait, 30 s)."))
    client_timeout_s: float = _row(Duration("client-timeout", 60.0, hi=30 * _DAY_S,
        help="A client that is gone longer than this has its open jobs cancelled."))
    walltime_limit_s: float | None = _row(
        Duration("walltime.limit", None, lo=1.0, hi=365 * _DAY_S, none_ok=True, live=False,
        help="How long a worker may run, from the start of its process. For batch systems that do not say, "
        "or to end workers earlier than theirs. None: as long as its batch job (Slurm says how long)."))
    walltime_notice_s: float = _row(Duration("walltime.notice", 120.0, hi=30 * _DAY_S, live=False,
        help="So long before the end of its walltime, or after a notice by SIGUSR1, a worker gets no new "
        "tasks and has to finish what it executes."))
    walltime_margin_s: float = _row(Duration("walltime.margin", 10.0, hi=30 * _DAY_S, live=False,
        help="So long before the end of its walltime everything has left a worker."))
    spill_directory: str | None = _row(AbsolutePath("spill.directory", None, none_ok=True,
        help="A folder that the scheduler and all workers see. When a worker has to go and nobody has room "
        "for what only it holds, that is written there and comes back on the next worker. What is not an "
        "array is written as Dask spills it, which means pickle for most types; files are readable by their "
        "owner only. An update to a folder that the scheduler cannot write to is refused; workers are not "
        "asked. None: it is written to hpc.checkpoint.store; without that it is lost, and named."))
    checkpoint_store: str | None = _row(AbsolutePath("checkpoint.store", None, none_ok=True,
        help="A folder on a file system that the scheduler and all workers see: versions of checkpoints are "
        "written below it, by name. What is not an array is written as Dask spills it, which means pickle "
        "for most types, and is read back by this cluster alone unless the user allows more. An update to a "
        "folder that the scheduler cannot write to is refused. None: the call names one, or they are in the "
        "memory of hosts."))
    checkpoint_every_s: float | None = _row(
        Duration("checkpoint.every", 600.0, lo=0.01, hi=30 * _DAY_S, none_ok=True,
        help="Results of jobs that say protect are written so long after the last time, before the walltime "
        "of a node ends, and once the job has ended; their programs write their state at the next boundary "
        "between two steps instead, and once at their start. None: as a policy asks for it (interval-daly)."))
    checkpoint_node_mtbf_s: float | None = _row(
        Duration("checkpoint.node-mtbf", None, lo=1.0, hi=36_500 * _DAY_S, none_ok=True,
        help="Mean time between failures of one node. Once it is set, and a version has been written, they "
        "are written as often as is best by what one takes (Daly 2006). None: every hpc.checkpoint.every."))
    checkpoint_redundancy: Literal["single", "partner", "xor", "reed-solomon"] = _row(
        Choice("checkpoint.redundancy", "partner", ranges.SCHEMES,
        help="How level L2 has what a host holds in memory also in other failure domains: a copy on a "
        "partner, one parity of a set of hosts (xor), or two (reed-solomon), which take less memory. single: "
        "not at all."))
    checkpoint_set_size: int = _row(Int("checkpoint.set-size", 4, lo=3, hi=ranges.MOST_HOSTS, unit="hosts",
        help="Hosts in a set that have parities of each other's data, about; with xor and reed-solomon."))
    checkpoint_host_memory: float = _row(Float("checkpoint.host-memory", 0.25, lo=0.001, hi=0.9, live=False,
        help="Share of the memory of a host that checkpoints may have (levels L1 and L2), beside what its "
        "workers have. Read when the manager of the host starts."))
    checkpoint_transfer: Literal["push", "pull"] = _row(
        Choice("checkpoint.transfer", "push", ("push", "pull"),
        help="Who moves what is written to the memory of a host. push: the worker, which writes to it. pull: "
        "the manager of the host, which reads the worker over the network, at a time of its own: slower, and "
        "the worker need not see the memory of the manager. Reading back is as it is."))
    checkpoint_silence_s: float = _row(Duration("checkpoint.silence", 30.0, lo=0.1, hi=_DAY_S,
        help="A worker that does not answer for so long while a version is written to the memory of hosts is "
        "silent: that version goes to the store, where there is one (else it waits). So is a manager: who "
        "reads what it holds reads the next copy. Nor do clients and commands wait longer for a store."))
    checkpoint_ask_again_s: float = _row(Duration("checkpoint.ask-again", 60.0, hi=30 * _DAY_S,
        help="A silent worker is asked for versions in memory again so long after it was found so (t_wait), "
        "and so is a silent manager. Until then those that need it go to the store at once."))
    checkpoint_services: str = _row(Choice("checkpoint.services", "plain", SERVICES,
        help="What is done to blocks on their way to the store, and by managers to what they hold in the "
        "memory of hosts, when neither a call nor a job says it (services). compress: Blosc with LZ4, which "
        "every reader of Zarr knows. encrypt: AES-256-GCM with the key in checkpoint.key-file, which "
        "dask_hpc alone reads."))
    checkpoint_key_file: str | None = _row(
        AbsolutePath("checkpoint.key-file", None, none_ok=True, live=False,
        help="File with the key of encrypted versions, 64 hexadecimal digits, which nobody but you may read. "
        "Read by each process that writes or reads them (scheduler, workers, client), under this path."))
    checkpoint_linger_s: float = _row(Duration("checkpoint.linger", 600.0, lo=1.0, hi=7 * _DAY_S, live=False,
        help="Checkpoints in the memory of a host stay so long when their scheduler was lost and none of its "
        "workers is there any more, and as long as that after a new scheduler has taken them over, unless "
        "somebody asks for them. Those of a cluster that is closed do not. What no store has stays so long "
        "after its results were let go of, too, when no newer version of its name comes."))
    checkpoint_small_bytes: int = _row(Int("checkpoint.small", 1024, lo=0, hi=65536, unit="bytes",
        help="The scheduler has a copy of each result of a job that is smaller, as the None of a block that "
        "is in a file: when its worker is lost it is not computed again, nor is what it was made from. 0: of "
        "none, as is right where such results are names of what is on their worker alone."))
    slurm_poll_s: float = _row(Duration("slurm.poll", 15.0, lo=0.1, hi=3600.0, live=False,
        help="How often squeue is asked what has become of a cluster's jobs and, by the scheduler while jobs "
        "are active, whether time limits were changed. Many sites ask for no more than a few questions a "
        "minute."))
    default_job_min_nodes: int = _row(Int("default-job.min-nodes", 1, lo=0, hi=_MOST_NODES, unit="nodes",
        help="Nodes kept for undeclared work while it is unfinished and named jobs are active."))
    share_weight: float = _row(Float("share.weight", 1.0, lo=WEIGHTS[0], hi=WEIGHTS[1], live=False,
        help="How much the user of this client is to get beside others, in proportion, where the policy "
        "shares nodes between users (fair). Read where a job is declared, which may say otherwise (weight)."))
    pool_max_nodes: int | None = _row(
        Int("pool.max-nodes", None, lo=1, hi=_MOST_NODES, unit="nodes", none_ok=True,
        help="Nodes the cluster can ever have. A job that needs more is refused at once. None: as many as "
        "the cluster has when the job is declared."))
    pool_hold_s: float | None = _row(dataclasses.replace(ranges.HOLD, name="pool.hold", label="",
        help="How long adaptive clusters keep nodes after they were last needed, or have come. auto: "
        f"{ranges.HOLD_MULTIPLE:g} times as long as the latest have taken to come (a LocalCluster's some "
        f"seconds, on Slurm the wait in the queue), at most {ranges.MOST_HOLD_S:g} s, which also holds "
        "before one has been seen to come. In any case as long as they have taken to come. 0 s: stock's "
        "Adaptive does as without the package."))
    pool_stock: str = _row(Choice("pool.stock-adaptive", "with-jobs", ("with-jobs", "always"),
        help="When distributed.Adaptive on a cluster class of others does so, too: while jobs are declared "
        "(without one, nothing changes that others could see), or always."))
    node_by: Literal["worker", "host", "job"] = _row(Choice("node.by", "worker", ("worker", "host", "job"),
        help="What a node (the unit of allocation) is. Each worker, all workers of one host, or all workers "
        "of one batch job (which are called like the job, with -0, -1 and so on behind)."))
    node_host: str | None = _row(Text("node.host", None, none_ok=True, live=False,
        help="Which nodes share memory and its bandwidth: those with one label. Read on the node alone. "
        "None: the machine."))
    node_domain: str | None = _row(Text("node.domain", None, none_ok=True, live=False,
        help="Which nodes fail together (a rack, a switch, a power supply): those with one label. Read on "
        "the node alone. slurm-topology: the nodes of one leaf switch, as Slurm tells its jobs, or its host "
        "where Slurm has no topology. None: its host."))
    node_memory_folder: str | None = _row(AbsolutePath("node.memory-folder", None, none_ok=True, live=False,
        help="Folder of this node for what is kept in its memory: versions on levels L1 and L2. Clusters of "
        "one user that have one folder take over what those of them that are lost have left. Read on the "
        "node alone. None: /dev/shm, or the folder of temporary files where that cannot be written to."))
    io_tokens: Literal["auto", "never"] = _row(Choice("io.tokens", "auto", ("auto", "never"),
        help="auto: as many tasks of jobs that are measured (dask_hpc.metered, measure_io) read and write a "
        "file system at once as together get the most of it; how many, is learned. Others wait, and tasks "
        "that read and write nothing pass them. Plain work never waits. never: nobody does."))
    power_source: str = _row(Choice("power.source", "auto", POWER_SOURCES, live=False,
        help="What says how many watts a host draws. auto: Cray's counters, else those of processors and "
        "accelerators (rapl, nvml), else the board's (hwmon), else the model, if it is set. slurm: as its "
        "plugin for energy measures. replay: a file. Read on the node alone, as is all of power."))
    power_measure: str = _row(Choice("power.measure", "when-needed", ("when-needed", "always"), live=False,
        help="When the draw is sampled: while a corridor is set or somebody asks for it, or always."))
    power_interval_s: float = _row(Duration("power.interval", 1.0, lo=0.1, hi=60.0, live=False,
        help="How often the draw is sampled, once a host."))
    power_timeout_s: float = _row(Duration("power.timeout", 5.0, lo=0.1, hi=60.0, live=False,
        help="How long a command or an address may take to say it."))
    power_command: tuple[str, ...] | None = _row(Words("power.command", None, none_ok=True, live=False,
        help="Program and arguments, for no shell, that print watts: [ipmitool, dcmi, power, reading]."))
    power_url: str | None = _row(Url("power.url", None, none_ok=True, live=False,
        help="Of Prometheus, or of a JSON document with watts (source http: Redfish). Passwords: ~/.netrc."))
    power_query: str | None = _row(Text("power.query", None, none_ok=True, noun="PromQL", live=False,
        help="What Prometheus is asked for: the watts of this host."))
    power_pointer: str = _row(Text("power.pointer", "/PowerControl/0/PowerConsumedWatts", live=False,
        noun="a JSON pointer", help="Where in the document the watts are."))
    power_file: str | None = _row(AbsolutePath("power.file", None, none_ok=True, live=False,
        help="CSV file with the columns t_s and watts that is played again and again (source replay)."))
    power_model_idle_w: float | None = _row(Power("power.model.idle", None, hi=MOST_NODE_W, none_ok=True,
        help="Watts of a node on which nothing executes, where nobody measures them. Read by the "
        "scheduler, and on nodes. None: as the curve says; without one no corridor is kept."))
    power_model_busy_w: float | None = _row(Power("power.model.busy", None, hi=MOST_NODE_W, none_ok=True,
        help="Watts of a node whose threads all execute, of jobs that say none. None: as the curve says."))
    power_model_curve: str | None = _row(AbsolutePath("power.model.curve", None, none_ok=True, live=False,
        help="CSV of cpu_load (%) and rapl_power (W) that it is fitted to (dask hpc power fit). None: none."))
    power_model_nic_w: float | None = _row(Power("power.model.nic", None, hi=MOST_NODE_W, none_ok=True,
        help="Watts of the network card of a node that is not measured, while it is in use. None: none."))
    power_model_switch_w: float | None = _row(Power("power.model.switch", None, hi=MOST_NODE_W, none_ok=True,
        help="Watts of a switch over the nodes that it serves, drawn at any time. None: none."))
    power_model_powered_off_w: float | None = _row(Power("power.model.powered-off", None,
        hi=MOST_NODE_W, none_ok=True,
        help="Watts of a node that an adaptive cluster may have and has not. None: it is not counted."))
    power_model_boot_w: float | None = _row(Power("power.model.boot", None, hi=MOST_NODE_W, none_ok=True,
        help="Watts of a node of an adaptive cluster that starts and has no worker yet. None: likewise."))
    power_cap_by: str | None = _row(Choice("power.cap.by", None, CAPS, none_ok=True, live=False,
        help="What this node may be capped by (hpc.power.levers): power limits of processors (powercap) or "
        "accelerators (nvml), frequencies, a command. None: no leave. Read on the node alone, as all of it."))
    power_cap_write: bool = _row(Bool("power.cap.write", False, live=False,
        help="Whether caps are written. Until then it is told what would be (rt.power()), and nothing is."))
    power_cap_least_w: float | None = _row(Power("power.cap.least", None, hi=MOST_NODE_W, none_ok=True,
        live=False, help="No cap of this host is lower. None: as its device says."))
    power_cap_most_w: float | None = _row(Power("power.cap.most", None, hi=MOST_NODE_W, none_ok=True,
        live=False, help="No cap of this host is higher. None: as its device says."))
    power_cap_silence_s: float = _row(Duration("power.cap.silence", 60.0, lo=1.0, hi=_DAY_S, live=False,
        help="A cap that the scheduler has not asked for again for so long ends, and old values are back."))
    power_cap_command: tuple[str, ...] | None = _row(Words("power.cap.command", None, none_ok=True,
        live=False, help="Program and arguments that cap this host at {watts}, as in [ipmitool, dcmi, power, "
        "set_limit, limit, '{watts}']. No shell reads them."))
    power_cap_release: tuple[str, ...] | None = _row(Words("power.cap.release", None, none_ok=True,
        live=False, help="Program and arguments that end it, as in [ipmitool, dcmi, power, deactivate]."))
    power_cap_folder: str | None = _row(AbsolutePath("power.cap.folder", None, none_ok=True, live=False,
        help="Folder of this node for old values while caps are written: who is killed leaves them there "
        "(dask hpc power restore). None: /var/tmp."))
    power_forecast_horizon_s: float = _row(Duration("power.forecast.horizon", HORIZON_S, lo=0.1, hi=3600.0,
        help="How far ahead the measured draw is forecast while a corridor is set, at most 60 ticks."))
    power_levers: tuple[str, ...] = _row(Words("power.levers", ranges.DEFAULT_LEVERS, ranges.LEVERS,
        help="What is done to keep a corridor. resize: jobs that run get other sizes. hold: jobs wait though "
        "nodes are idle. start: jobs start smaller than they ask for. pool: an adaptive cluster gives idle "
        "nodes back, or asks for more. steal: a job that waits takes the nodes of a malleable one where no "
        "sizes are inside. cap: hosts that give leave (power.cap) are capped while the measured draw is "
        "above the upper bound."))
    power_price: float | None = _row(Float("power.price", None, lo=0.0, hi=1e6, none_ok=True,
        help="Money that a MWh costs, for the bill of a run (rt.power()). None: not known."))
    power_carbon: float | None = _row(Float("power.carbon", None, lo=0.0, hi=1e5, none_ok=True,
        help="Grams of CO2 of a kWh, for the bill of a run (rt.power()). None: not known."))
    trace_path: str | None = _row(Text("trace.path", None, none_ok=True, noun="a path",
        help="File that the trace is written to as JSON lines; a name that ends in .gz is compressed. None: "
        "the trace is kept in memory only."))
    sweep_s: float = _knob("sweep_s")
    performance_interval_s: float = _knob("performance_interval_s")
    held_notice_s: float = _knob("held_notice_s")
    trace_keep: int = _knob("trace_keep")
    decisions_keep: int = _knob("decisions_keep")
    # fmt: on
    #: Settings of others, by section and name: ``settings.extra["power"]["interval_s"]``.
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, one in BUILTIN.items():
            object.__setattr__(self, name, one.check(getattr(self, name)))
        object.__setattr__(self, "extra", rows.checked_extra(self.extra))

    def updated(self, **changes: Any) -> Settings:
        """A copy with `changes`; nothing is changed when one of them is not allowed.

        Parameters
        ----------
        **changes
            New values by field name or by key: ``tick_s=2``, ``tick="2 s"`` and
            ``pool_max_nodes=16`` are all understood.

        Raises
        ------
        ConfigError
            For an unknown name or a value that is not allowed.
        """
        return dataclasses.replace(self, **rows.by_field(changes, self.extra))

    def updated_live(self, **changes: Any) -> Settings:
        """`updated`, for a cluster that runs.

        Raises
        ------
        ConfigError
            Also for another value of a setting that is not live: nobody would read it.
        """
        after = self.updated(**changes)
        for one in table():
            present, wanted = one.of(self), one.of(after)
            if not one.row.live and wanted != present:
                raise ConfigError(
                    f"hpc.{one.key} is {one.row.format(present)} and cannot become "
                    f"{one.row.format(wanted)} by an update; {one.places}, before what reads it starts"
                )
        return after


for _field in dataclasses.fields(Settings):
    if "row" in _field.metadata:
        BUILTIN[_field.name] = Setting(
            _field.metadata["row"], _field.name, knob=_field.metadata.get("knob", False)
        )


def settings(config: Mapping[str, Any] | None = None) -> Settings:
    """The settings that `config` holds.

    Parameters
    ----------
    config
        A mapping with the layout of ``hpc.yaml`` below its ``hpc`` key, whole or in part: what is
        absent takes its default. By default, the ``hpc`` namespace of Dask's configuration.

    Raises
    ------
    ConfigError
        For an unknown key or a value that is not allowed.
    """
    if config is None:
        config = dask.config.get("hpc", {})
    if not isinstance(config, Mapping):
        raise ConfigError(f"hpc is {shown(config)}; allowed: a mapping of settings, as in hpc.yaml")
    return Settings(**rows.by_field(dict(leaves(config)), {}))


def problems(config: Any = None) -> dict[str, str]:
    """What `settings` would refuse of `config`: why, by key; empty when nothing is wrong."""
    if config is None:
        config = dask.config.get("hpc", {})
    found_parts = dict(parts(config)) if isinstance(config, Mapping) else {"": config}
    found = {}
    for key, part in found_parts.items():
        try:
            settings(part)
        except ConfigError as error:
            found[key] = str(error)
    return found


def load_defaults() -> None:
    """Add the defaults of this package to Dask's configuration, below whatever the user has set.

    Dask would put a section of defaults in place of a value that the user has set where a section belongs.
    That stays, for `settings` to say what is wrong with it.
    """
    theirs = dask.config.get("hpc", {})
    if not isinstance(theirs, Mapping):
        return
    wrong = {str(key).replace("_", "-") for key, value in theirs.items() if not isinstance(value, Mapping)}
    ours = nested(one for one in BUILTIN.values() if not one.knob)
    kept = {key: value for key, value in ours.items() if key not in wrong or not isinstance(value, Mapping)}
    dask.config.update_defaults({"hpc": kept})


load_defaults()
