"""Workloads by file or builtin name: one table of readers, one of generators.

Rules of the file: tables and dispatch alone. A reader takes a path; a generator takes `seed` by keyword and
other options of its own. Both return a `Workload`, or raise a `WorkloadError` that names file, line and
field, or the option. Nothing from a file is evaluated or unpickled. A file ending in ``.gz`` is unpacked by
its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dask_hpc.errors import OptionError, WorkloadError
from dask_hpc.sim.formats import elastisim, sacct, swf, trace_file, yaml_file
from dask_hpc.sim.formats.fields import escaped
from dask_hpc.sim.generators import (
    corridor,
    coupled,
    esp,
    io_aware,
    mebf,
    node_failures,
    poisson,
    synthetic,
    toys,
)
from dask_hpc.sim.model.workload import Workload
from dask_hpc_policies.params import suggestion

#: Reader by ending of the file name, ``.gz`` left out.
READERS: Mapping[str, Callable[[Path], Workload]] = {
    ".swf": swf.read,
    ".yaml": yaml_file.read,
    ".yml": yaml_file.read,
    ".json": elastisim.read,
    ".sacct": sacct.read,
    ".jsonl": trace_file.read,
}
#: Generator by the name after ``builtin:``.
BUILTIN: Mapping[str, Callable[..., Workload]] = {
    made.name: made
    for made in (
        toys.figure_5_1,
        toys.five_jobs,
        esp.esp_10,
        esp.esp,
        io_aware.io_aware,
        mebf.mebf_compute,
        mebf.mebf_read,
        mebf.mebf_write,
        mebf.mebf_mixed,
        toys.node_stealing,
        toys.three_users,
        poisson.poisson,
        node_failures.node_failures,
        corridor.corridor,
        coupled.coupled,
        synthetic.synthetic,
    )
}

_PREFIX = "builtin:"


def load(source: str | Path, /, *, seed: int = 0, **options: Any) -> Workload:
    """The workload that `source` names: a path, or ``builtin:NAME``.

    Parameters
    ----------
    seed, options
        For the generator of a builtin workload; files take none.

    Raises
    ------
    WorkloadError
        For an unknown name or kind of file, an option that is not known, and whatever the reader refuses.
    """
    text = str(source)
    if text.startswith(_PREFIX):
        return _builtin(text.removeprefix(_PREFIX), seed, options)
    if options:
        raise WorkloadError(f"{text}: a file takes no options, got {', '.join(options)}")
    workload = reader(source)(Path(source))
    return replace(workload, name=escaped(workload.name), source=escaped(workload.source))


def reader(path: str | Path) -> Callable[[Path], Workload]:
    """What reads a file of this name.

    Raises
    ------
    WorkloadError
        When no kind of workload has a name like that.
    """
    name = Path(path).name.lower().removesuffix(".gz")
    found = next((read for ending, read in READERS.items() if name.endswith(ending)), None)
    if found is None:
        known = ", ".join(READERS)
        raise WorkloadError(
            f"{path}: unknown kind of workload; a file ends in {known} (.gz may follow), a generated one is "
            f"{_PREFIX}NAME"
        )
    return found


def _builtin(name: str, seed: int, options: dict[str, Any]) -> Workload:
    if name not in BUILTIN:
        known = ", ".join(BUILTIN) or "none"
        raise OptionError(f"unknown workload {name!r}; builtin ones are {known}{suggestion(name, BUILTIN)}")
    try:
        return BUILTIN[name](seed=seed, **options)
    except TypeError as error:
        raise OptionError(f"{_PREFIX}{name}: {error}") from None
