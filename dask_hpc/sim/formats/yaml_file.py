"""Our own format of workloads: jobs in YAML, in the words of `dask_hpc_policies.jobs.jobspec`.

Rules of the file: every value is checked when the file is read; an error names file, line and field.

.. code-block:: yaml

    name: two-applications          # of the workload; the file's name by default
    machine:                        # optional; --nodes and its like take precedence
      nodes: 16
      link_bytes_s: 12.5e9          # bandwidth of a node, and of the shared file system
      file_system_bytes_s: 48e9
      failures:                     # nodes are numbered from 0
        - {at: 1 h, node: 2, down: 5 min}
        - {at: 2 h, node: 2, class: process}            # what runs there fails, the node stays usable
        - {at: 3 h, node: 2, class: domain, down: 1 h}  # all nodes of the domain of node 2
      domains: {size: 4}            # nodes that fail together: so many each, or a list of names, one a node
      hosts: {size: 2}              # nodes that are on one host, likewise; without it, each has its own
      process_mtbf: 30 days         # random failures: node_mtbf and process_mtbf of each node, domain_mtbf
      pool:                         # nodes come when a policy asks for them; without it, all are there
        initial_nodes: 4            # `nodes` is the most there can be
        wait_s: 10 min              # in the queue of the batch system; never: no node is granted
        wait_sigma: 0.8             # the wait is lognormal around that median; 0 (default): always that long
        boot_s: 90 s
        walltime_s: 4 h             # from when a node is there; never (default): it stays
      roles: {staging: 1}           # nodes that no job gets, those with the highest numbers
      power: {off_w: 5, booting_w: 180, idle_w: 100, busy_w: 320, down_w: 0, nic_w: 15, switch_w: 5}
      corridor: [[0 s, 1700, 2500], [10 min, 1000, 1700]]  # from when on, lower and upper bound in watts
    applications:                   # what several jobs share; a job may override each key
      heat:
        speedup: {amdahl: 0.05}     # linear, {amdahl: f}, {power-law: a} or {runtimes: {1: 100 s, 4: 30 s}}
        data_bytes: 8e9             # what a resize moves
    jobs:
      - name: heat                  # name, nodes, min_nodes, max_nodes, constraint, walltime, priority,
        application: heat           # io_intensity, deadline, user and so on: as `Runtime.job` takes them
        submit: 60 s
        nodes: 4
        min_nodes: 2
        max_nodes: 8
        walltime: 30 min
        runtime: 700 s              # on `reference_nodes`, which is `nodes` unless it is given
        count: 3                    # so many of them, `every` so long
        every: 100 s
      - name: solver
        nodes: 2
        min_nodes: 1
        max_nodes: 4
        resize: points              # when it can be resized: anytime (default), or at points only
        stages:                     # instead of a runtime; see `dask_hpc.sim.formats.stages`
          - repeat: 10
            stages:
              - compute: 400        # seconds on one node
              - write: 2e9 * nodes
                purpose: checkpoint
              - point:

Further keys of a job: `id` (unique), `preferred_nodes` (what a moldable start aims at),
`io_by_nodes` (share of time in I/O by size), `power_by_nodes` (watts of one node by size; without it, the
middle of `min_power_w` and `max_power_w`, then the machine's `busy_w`), `recorded` (run time of an earlier
run on the preferred size), `checkpoint_interval`, `checkpoints` (with what they cost:
`dask_hpc.sim.formats.checkpoint_fields`),
`data_bytes`, `on_reconfiguration` and `on_expansion` (stages after each resize at a
point, of all nodes and, before that, of those that joined, whose number `nodes` is there), `evolving` (true:
only the application asks for other sizes). The machine may also have `downtime` (how long nodes that failed
at random are down), `network_bytes_s` (bandwidth of each node's link to another node) and `adaptation` (what
a resize costs: none, published, or the fields of `AdaptationCost`; a job may have its own); `pool` may have
`initial_walltimes_s` (a list: of the nodes that are there at the start). `roles` may be `{}`: a policy may
give nodes roles then. Bounds that are not given are those of the machine.
`yaml_text.dump` writes any workload in this format.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from dask_hpc.sim.formats.amounts import Sizes
from dask_hpc.sim.formats.checkpoint_fields import read_checkpoints
from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.formats.machine_fields import (
    read_adaptation,
    read_io_by_nodes,
    read_machine,
    read_power_by_nodes,
    read_speed,
)
from dask_hpc.sim.formats.parsing import LARGEST_YAML_BYTES, parse_yaml
from dask_hpc.sim.formats.stages import read_stages
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc.sim.model.job import Job, Program, SpeedUp
from dask_hpc.sim.model.machine import Machine
from dask_hpc.sim.model.workload import Workload, ordered
from dask_hpc_policies.jobs import constraints
from dask_hpc_policies.jobs.jobspec import (
    DURATIONS,
    FIELDS,
    InvalidJob,
    JobSpec,
    job_spec_from_mapping,
    resolve,
)
from dask_hpc_policies.model import JobFacts, JobKind
from dask_hpc_policies.views import values_of

_SHARED = (
    "speedup", "runtime", "reference_nodes", "stages", "resize", "data_bytes", "checkpoint_interval",
    "on_reconfiguration", "on_expansion", "checkpoints",
    "adaptation",
)  # fmt: skip
_OWN = (
    "id", "submit", "application", "count", "every", "preferred_nodes", "io_by_nodes", "evolving",
    "recorded", "power_by_nodes",
)  # fmt: skip
_JOB = (*FIELDS, *_OWN, *_SHARED)
_TOP = ("name", "machine", "applications", "jobs")
#: Largest number of nodes, and of jobs.
_MOST_NODES = 10_000_000
_MOST_JOBS = 1_000_000
_LONGEST_S = 1e12


def read(path: str | Path) -> Workload:
    """The workload of a YAML file, plain or gzip.

    Raises
    ------
    WorkloadError
        With file, line and field, for whatever is missing, unknown or out of range.
    """
    return parse(read_text(path, LARGEST_YAML_BYTES), str(path))


def parse(text: str, source: str) -> Workload:
    """The workload that `text` describes; `source` is its name in messages.

    Raises
    ------
    WorkloadError
        As `read`.
    """
    whole = parse_yaml(text, source)
    whole.mapping(_TOP)
    machine = read_machine(whole)
    applications = whole.get("applications")
    shared = {} if applications is None else dict(applications.items())
    for application in shared.values():
        application.mapping(_SHARED)
    notes: Counter[str] = Counter()
    taken = _Ids()
    jobs: list[Job] = []
    for place in whole.need("jobs").sequence():
        jobs += _jobs(place, shared, machine, taken, notes)
        if len(jobs) > _MOST_JOBS:
            place.fail(f"more than {_MOST_JOBS} jobs")
    if not jobs:
        whole["jobs"].fail("no jobs")
    name = whole.get("name")
    return Workload(
        name=Path(source).name if name is None else name.text(),
        jobs=ordered(jobs),
        machine=machine,
        source=source,
        notes=tuple(f"{count} {what}" for what, count in notes.items()),
    )


def _jobs(
    place: Field,
    shared: dict[str, Field],
    machine: Machine | None,
    taken: _Ids,
    notes: Counter[str],
) -> list[Job]:
    place.mapping(_JOB)
    keys = dict(place.items())
    application = place.get("application")
    if application is not None and shared:
        keys = {**dict(shared[application.text(shared)].items()), **keys}
    job = _job(place, keys, machine, notes)
    count, every = keys.get("count"), keys.get("every")
    number = 1 if count is None else count.integer(1, _MOST_JOBS)
    gap_s = 0.0 if every is None else every.duration_s(longest_s=_LONGEST_S)
    id = keys.get("id")
    if id is not None and number > 1:
        id.fail("an id is of one job; leave it out where count is above 1")
    return [
        replace(
            job,
            id=taken.given(id) if id is not None else taken.made(job.name, place),
            submit_s=job.submit_s + i * gap_s,
        )
        for i in range(number)
    ]


class _Ids:
    """Ids of the jobs so far: as given, else names, with numbers where they are not the first."""

    def __init__(self) -> None:
        self._places: dict[str, Field] = {}
        #: Jobs of each name: all numbers up to theirs are taken.
        self._numbers: Counter[str] = Counter()

    def given(self, place: Field) -> str:
        wanted = place.text()
        if wanted in self._places:
            place.fail(f"{wanted!r} is also the id of {self._places[wanted].path}; ids are unique")
        self._places[wanted] = place
        return wanted

    def made(self, name: str, place: Field) -> str:
        while True:
            self._numbers[name] += 1
            number = self._numbers[name]
            wanted = name if number == 1 else f"{name}-{number}"
            if wanted not in self._places:
                self._places[wanted] = place
                return wanted


def _job(place: Field, keys: dict[str, Field], machine: Machine | None, notes: Counter[str]) -> Job:
    spec = _spec(place)
    kind, start, low, high = _sizes(place, keys, spec, machine)
    watts = keys.get("power_by_nodes"), spec.min_power_w, spec.max_power_w
    if any(one is not None for one in watts) and (machine is None or machine.power is None):
        notes["jobs whose watts are not used: nobody says what nodes draw"] += 1
    speed = read_speed(keys.get("speedup"))
    stages, runtime, resize = keys.get("stages"), keys.get("runtime"), keys.get("resize")
    program, runtime_s, reference = None, 0.0, 0
    if stages is not None:
        if runtime is not None:
            runtime.fail("a job has a runtime or stages, not both")
        when: Literal["anytime", "points"] = "anytime"
        if resize is not None and resize.text(("anytime", "points")) == "points":
            when = "points"
        sizes = Sizes(low, high, tables=True)
        joining = Sizes(1, max(1, high - low), tables=True)
        after, joined = keys.get("on_reconfiguration"), keys.get("on_expansion")
        for given in (after, joined):
            if given is not None and when != "points":
                given.fail("is for jobs with resize: points")
        program = Program(
            stages=read_stages(stages, sizes, speed),
            resize=when,
            on_reconfiguration=() if after is None else read_stages(after, sizes, speed, inside=True),
            on_expansion=() if joined is None else read_stages(joined, joining, speed, inside=True),
        )
    elif resize is not None:
        resize.fail("is for jobs with stages")
    else:
        runtime_s, reference = _runtime(place, keys, speed, start)
    interval, checkpoints = keys.get("checkpoint_interval"), keys.get("checkpoints")
    if checkpoints is not None and interval is not None and interval.value is not None:
        interval.fail("a job has checkpoint_interval, which costs nothing, or checkpoints, not both")
    return Job(
        id="",
        **values_of(JobFacts, spec),
        submit_s=_given(keys, "submit", lambda field: field.duration_s(longest_s=_LONGEST_S), 0.0),
        start_nodes=start,
        min_nodes=low,
        max_nodes=high,
        kind=kind,
        runtime_s=runtime_s,
        speed=speed,
        reference_nodes=reference,
        program=program,
        application=_given(keys, "application", lambda field: field.text(), ""),
        adaptation=read_adaptation(keys.get("adaptation")),
        data_bytes=_given(keys, "data_bytes", lambda field: field.number(), 0.0),
        recorded_s=_given(keys, "recorded", lambda field: field.duration_s(above_zero=True), None),
        preferred_nodes=_given(keys, "preferred_nodes", lambda field: field.integer(low, high), None),
        io_by_nodes=_given(keys, "io_by_nodes", read_io_by_nodes, ()),
        power_by_nodes=_given(keys, "power_by_nodes", read_power_by_nodes, ()),
        checkpoint_interval_s=_given(
            keys, "checkpoint_interval", lambda field: field.duration_s(above_zero=True), None
        ),
        checkpoints=read_checkpoints(checkpoints, staged=program is not None),
    )


def _runtime(place: Field, keys: dict[str, Field], speed: SpeedUp, start: int | None) -> tuple[float, int]:
    """The run time in seconds, and the size that it belongs to."""
    reference = _given(keys, "reference_nodes", lambda field: field.integer(1, _MOST_NODES), start)
    runtime = keys.get("runtime")
    if runtime is None:
        if speed.kind != "table":
            place.fail("a job needs a runtime, stages, or a speedup with runtimes")
        reference = reference or speed.table[0][0]
        return 1.0 / speed(reference), reference
    if reference is None:
        runtime.fail("on how many nodes? give reference_nodes, or nodes")
    return runtime.duration_s(longest_s=_LONGEST_S), reference


def _spec(place: Field) -> JobSpec:
    """The part of the job that the live runtime takes too, checked by the same function."""
    given = {key: value for key, value in place.mapping().items() if key in FIELDS}
    for argument in DURATIONS:
        if isinstance(given.get(argument), (int, float)) and abs(given[argument]) > _LONGEST_S:
            place[argument].wrong(f"a duration of at most {_LONGEST_S:g} s")
    try:
        return job_spec_from_mapping(given)
    except InvalidJob as error:
        text = str(error)
        # the message names the argument first that is wrong
        found = re.search(rf"(?<![a-z_])({'|'.join(map(re.escape, given))})[=:]", text)
        key = None if found is None else found[1]
        (place if key is None else place[key]).fail(text)


def _sizes(
    place: Field, keys: dict[str, Field], spec: JobSpec, machine: Machine | None
) -> tuple[JobKind, int | None, int, int]:
    bounded = spec.max_nodes is not None or (spec.nodes is not None and spec.min_nodes is None)
    if machine is None and not bounded:
        place.fail("max_nodes is missing; give it, or the nodes of the machine")
    try:
        # a job that is too wide is refused, or left out, when the machine is known for good
        widest = max(spec.nodes or 1, spec.min_nodes or 1)
        pool = max(widest, spec.max_nodes or 1) if machine is None else max(widest, machine.nodes)
        resolved = resolve(spec, pool)
    except InvalidJob as error:
        place.fail(str(error))
    low, high, start = resolved.min_nodes, resolved.max_nodes, resolved.start_nodes
    kind: JobKind = resolved.kind
    evolving = keys.get("evolving")
    if evolving is not None and evolving.boolean():
        if kind == "rigid":
            evolving.fail("an evolving job needs min_nodes and max_nodes")
        kind = "evolving"
    if start is not None and not (low <= start <= high and constraints.is_legal(spec.constraint, start)):
        place.fail(f"nodes={start} must be a legal size from {low} to {high}")
    return kind, start, low, high


def _given(keys: dict[str, Field], key: str, read: Any, default: Any) -> Any:
    """What `read` makes of the value of `key`, if it is there."""
    place = keys.get(key)
    return default if place is None or place.value is None else read(place)
