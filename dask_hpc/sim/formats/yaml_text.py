"""A workload as text in our YAML format: to keep it, to change it by hand, to hand it on.

Rules of the file: what `dask_hpc.sim.formats.yaml_file.parse` reads back is the same workload, except that
names are given to jobs that have none, notes and seed are not kept, functions of the number of nodes become
tables, and a walltime of 0, which the format does not have, becomes a nanosecond.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from dask_hpc.sim.formats.amounts import MOST_SIZES
from dask_hpc.sim.formats.checkpoint_fields import checkpoints_text
from dask_hpc.sim.formats.machine_fields import COST_KEYS, NEVER
from dask_hpc.sim.formats.parsing import Dumper
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import (
    Amount,
    Compute,
    Delay,
    Job,
    Repeat,
    Request,
    SchedulingPoint,
    SpeedUp,
    Stage,
    Transfer,
)
from dask_hpc.sim.model.machine import FREE, AdaptationCost, Failures, Machine, NodeFailure
from dask_hpc.sim.model.pool import Pool
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.jobs.jobspec import arguments

#: The walltime of a job whose own is 0.
_SHORTEST_S = 1e-9
#: What a user declares and `_job` writes in a place of its own.
_WRITTEN = ("constraint", "walltime", "priority", "io_intensity", "user")


def dump(workload: Workload) -> str:
    """The YAML text of `workload`.

    Raises
    ------
    ValueError
        When a job has amounts that are functions of more sizes than a table may have.
    """
    data: dict[str, Any] = {"name": workload.name or "workload"}
    if workload.machine is not None:
        data["machine"] = _machine(workload.machine)
    data["jobs"] = [_job(job) for job in workload.jobs]
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def _machine(machine: Machine) -> dict[str, Any]:
    failures = machine.failures
    return _without_defaults(
        {
            "nodes": (machine.nodes, None),
            "link_bytes_s": (machine.link_bytes_s, None),
            "file_system_bytes_s": (machine.file_system_bytes_s, None),
            "failures": ([_failure(one) for one in failures.listed], []),
            "node_mtbf": (failures.node_mtbf_s, None),
            "process_mtbf": (failures.process_mtbf_s, None),
            "domain_mtbf": (failures.domain_mtbf_s, None),
            "downtime": (failures.downtime_s, Failures().downtime_s),
            "adaptation": (_cost(machine.adaptation), _cost(FREE)),
            "pool": (None if machine.pool is None else _pool(machine.pool), None),
            "roles": (None if machine.roles is None else dict(machine.roles), None),
            "power": (None if machine.power is None else dataclasses.asdict(machine.power), None),
            "corridor": (
                None if machine.corridor is None else [list(step) for step in machine.corridor.steps],
                None,
            ),
            "domains": (None if machine.domains is None else _domains(machine.domains), None),
            "network_bytes_s": (machine.network_bytes_s, None),
            "hosts": (None if machine.hosts is None else _domains(machine.hosts), None),
        }
    )


def _cost(cost: AdaptationCost) -> dict[str, float]:
    return {key: getattr(cost, key) for key in COST_KEYS}


def _failure(failure: NodeFailure) -> dict[str, Any]:
    row: dict[str, Any] = {"at": failure.t_s, "node": failure.node}
    if failure.severity != "process":
        row["down"] = failure.downtime_s
    return row if failure.severity is None else {**row, "class": failure.severity}


def _domains(domains: Domains) -> Any:
    return {"size": domains.size} if domains.size else list(domains.names)


def _pool(pool: Pool) -> dict[str, Any]:
    data = {name: NEVER if value is None else value for name, value in dataclasses.asdict(pool).items()}
    data["initial_walltimes_s"] = [NEVER if value is None else value for value in pool.initial_walltimes_s]
    return data


def _job(job: Job) -> dict[str, Any]:
    flexible = job.kind != "rigid"
    speed = job.speed if job.program is None else _common_speed(job.program.stages)
    data = _without_defaults(
        {
            "id": (job.id, None),
            "name": (job.name or job.id, None),
            "application": (job.application, ""),
            "user": (job.user, ""),
            "submit": (job.submit_s, 0.0),
            "nodes": (job.nodes, None),
            "min_nodes": (job.min_nodes if flexible else None, None),
            "max_nodes": (job.max_nodes if flexible else None, None),
            "preferred_nodes": (job.preferred_nodes, None),
            "constraint": (job.constraint, "any"),
            "rigid": (job.kind == "moldable", False),
            "evolving": (job.kind == "evolving", False),
            # left out, a job of no length would be one of unknown length, which is seldom backfilled
            "walltime": (None if job.walltime_s is None else max(job.walltime_s, _SHORTEST_S), None),
            "priority": (job.priority, 0),
            "io_intensity": (job.io_intensity, None),
            "io_by_nodes": (dict(job.io_by_nodes), {}),
            "power_by_nodes": (dict(job.power_by_nodes), {}),
            "recorded": (job.recorded_s, None),
            "data_bytes": (job.data_bytes, 0.0),
            "adaptation": (None if job.adaptation is None else _cost(job.adaptation), None),
            "checkpoint_interval": (job.checkpoint_interval_s, None),
            "checkpoints": (None if job.checkpoints is None else checkpoints_text(job.checkpoints), None),
            **{key: (value, None) for key, value in arguments(job).items() if key not in _WRITTEN},
            "speedup": (_speed(speed), "linear"),
        }
    )
    if job.program is None:
        data["runtime"] = job.runtime_s
        data["reference_nodes"] = job.reference_nodes or job.nodes or job.max_nodes
    else:
        data["resize"] = job.program.resize
        data["stages"] = [_stage(stage, job, speed) for stage in job.program.stages]
        joining = replace(job, min_nodes=1, max_nodes=max(1, job.max_nodes - job.min_nodes))
        for key, place in (("on_reconfiguration", job), ("on_expansion", joining)):
            if stages := getattr(job.program, key):
                data[key] = [_stage(stage, place, speed) for stage in stages]
    return data


def _without_defaults(rows: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {key: value for key, (value, default) in rows.items() if value != default}


def _speed(speed: SpeedUp) -> Any:
    if speed.kind == "table":
        return {"runtimes": {nodes: 1.0 / value for nodes, value in speed.table}}
    if speed.kind == "constant":
        return {"power-law": 0.0}
    return "linear" if speed.kind == "linear" else {speed.kind: speed.parameter}


def _common_speed(stages: tuple[Stage, ...]) -> SpeedUp:
    """The speed-up of all computing; when there are several, one that does not depend on the size."""
    speeds = set(_speeds(stages))
    return speeds.pop() if len(speeds) == 1 else SpeedUp("power-law", 0.0)


def _speeds(stages: tuple[Stage, ...]) -> list[SpeedUp]:
    found: list[SpeedUp] = []
    for stage in stages:
        if isinstance(stage, Compute):
            found.append(stage.speed)
        elif isinstance(stage, Repeat):
            found += _speeds(stage.stages)
    return found


def _stage(stage: Stage, job: Job, speed: SpeedUp) -> dict[str, Any]:
    if isinstance(stage, Compute):
        if stage.speed == speed:
            return {"compute": _amount(stage.work, job)}
        work = stage.work
        return {"compute": _amount(lambda n: (work(n) if callable(work) else work) / stage.speed(n), job)}
    if isinstance(stage, Transfer):
        data: dict[str, Any] = {stage.direction: _amount(stage.size_bytes, job)}
        if stage.participants is not None:
            data["participants"] = _amount(stage.participants, job)
        if stage.beside is not None:
            data["beside"] = stage.beside
        return {**data, "purpose": stage.purpose} if stage.purpose else data
    if isinstance(stage, Delay):
        return {"delay": _amount(stage.seconds, job)}
    if isinstance(stage, SchedulingPoint):
        return {"point": None}
    if isinstance(stage, Request):
        return {"request": _amount(stage.nodes, job)}
    if isinstance(stage, Coupled):
        raise ValueError(f"job {job.id!r} is a coupled run ({stage.flow}), which no YAML describes")
    inner = [_stage(part, job, speed) for part in stage.stages]
    return {"repeat": _amount(stage.times, job), "stages": inner}


def _amount(value: Amount, job: Job) -> Any:
    if not callable(value):
        return value
    if job.max_nodes - job.min_nodes >= MOST_SIZES:
        raise ValueError(f"job {job.id!r} has an amount for more than {MOST_SIZES} sizes")
    return {nodes: value(nodes) for nodes in range(job.min_nodes, job.max_nodes + 1)}
