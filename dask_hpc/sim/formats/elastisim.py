"""Workloads of ElastiSim: a jobs file, or the configuration that names it and its platform.

Rules of the file: the format is that of ElastiSim's documentation (pages "Job", "Application model", "Task
types", "Performance models"; 2022 to 2024). All of it is read and checked before anything is simulated.

====================  ==============================================================================
``rigid``             a rigid job of `num_nodes`
``moldable``          its size is chosen at the start, from `num_nodes_min` to `num_nodes_max`
``malleable``         chosen at the start, and changed at scheduling points
``evolving``          chosen at the start, and asks for other sizes
``adaptive``          malleable, and asks for other sizes
====================  ==============================================================================

Formulas may use the `arguments` that are numbers; a formula that uses a text is an error. Of the `attributes`
those that mean something here are used: `priority`, `name`, `user` and `io_intensity`.
The speed of a node is that of the platform; a jobs file alone has none, then `NODE_FLOPS` is assumed.

Paths of application models are looked for beside the file that names them, then in each folder above it,
and at last by their bare name beside it, because ElastiSim reads them from where it was started.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.amounts import MOST_SIZES, Sizes
from dask_hpc.sim.formats.elastisim_model import Speeds, read_program
from dask_hpc.sim.formats.elastisim_platform import Platform, read_platform
from dask_hpc.sim.formats.fields import Field, text_number
from dask_hpc.sim.formats.parsing import parse_json
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc.sim.model.job import Job
from dask_hpc.sim.model.workload import Workload, ordered
from dask_hpc_policies.model import JobKind

#: Operations per second of a node without a platform: that of the platform of ADMIRE
#: (2023, deliverable D3.3, table 4.1).
NODE_FLOPS = 1e11

_TYPES: dict[str, JobKind] = {
    "rigid": "rigid",
    "moldable": "moldable",
    "malleable": "malleable",
    "evolving": "evolving",
    "adaptive": "malleable",
}
_KEYS = (
    "type", "submit_time", "application_model", "walltime", "arguments", "attributes", "num_nodes",
    "num_nodes_min", "num_nodes_max", "num_gpus_per_node", "num_gpus_per_node_min", "num_gpus_per_node_max",
)  # fmt: skip
_USED_ATTRIBUTES = ("priority", "name", "user", "io_intensity")
#: Largest number of nodes of a job.
_MOST_NODES = 10_000_000


def read(path: str | Path) -> Workload:
    """The workload of a jobs file or a configuration file of ElastiSim, plain or gzip.

    Raises
    ------
    WorkloadError
        With file and field, for whatever is missing, unknown, not simulated or has no value.
    """
    file = Path(path)
    whole = parse_json(read_text(file), str(file))
    if not isinstance(whole.value, dict):
        whole.wrong("an object with the key jobs or jobs_file")
    if "jobs" in whole.value:
        notes = (f"no platform: nodes of {NODE_FLOPS:g} operations per second assumed",)
        return _workload(file, whole, None, notes)
    if "jobs_file" in whole.value:
        platform = _platform(whole, file)
        jobs_file = _find(whole.need("jobs_file"), file)
        return _workload(file, parse_json(read_text(jobs_file), str(jobs_file)), platform, ())
    if "phases" in whole.value:
        whole.fail("is an application model; name the jobs file that uses it")
    whole.fail("has neither jobs (a jobs file) nor jobs_file (a configuration)")


def _workload(file: Path, whole: Field, platform: Platform | None, notes: tuple[str, ...]) -> Workload:
    models: dict[Path, Field] = {}
    counts: Counter[str] = Counter()
    jobs = []
    # further keys at the top are for people
    for number, place in enumerate(whole.need("jobs").sequence(), start=1):
        jobs.append(_job(str(number), place, Path(whole.file), platform, models, counts))
    if not jobs:
        whole["jobs"].fail("no jobs")
    return Workload(
        name=file.name,
        jobs=ordered(jobs),
        machine=None if platform is None else platform.machine,
        source=str(file),
        notes=(
            *notes,
            *(() if platform is None else platform.notes),
            *(f"{count} {what}" for what, count in counts.items()),
        ),
    )


def _job(
    id: str,
    place: Field,
    file: Path,
    platform: Platform | None,
    models: dict[Path, Field],
    counts: Counter[str],
) -> Job:
    place.mapping(_KEYS)
    type_ = place.need("type")
    name = type_.value.lower() if isinstance(type_.value, str) else type_.value
    kind = _TYPES[type_.replaced(name).text(_TYPES)]
    low, high = _sizes(place, kind)
    for key in ("num_gpus_per_node", "num_gpus_per_node_min", "num_gpus_per_node_max"):
        gpus = place.get(key)
        if gpus is not None and gpus.integer():
            gpus.fail("jobs with GPUs are not simulated")
    model_path = _find(place.need("application_model"), file)
    if model_path not in models:
        models[model_path] = parse_json(read_text(model_path), str(model_path))
    numbers, texts = _arguments(place)
    sizes = Sizes(low, high, {**numbers, **_GPUS}, texts, size_name="num_nodes")
    link = None if platform is None else platform.machine.link_bytes_s
    speeds = Speeds(NODE_FLOPS if platform is None else platform.node_flops, link)
    try:
        program = read_program(models[model_path], sizes, speeds)
    except WorkloadError as error:
        # the same model may be right for another job
        raise WorkloadError(f"{error} (as the application of {place.path} in {file})") from None
    counts.update(sizes.notes)
    walltime = place.get("walltime")
    walltime_s = 0.0 if walltime is None else walltime.number(0.0, 1e12)
    attributes = _attributes(place, counts)
    priority = attributes.get("priority")
    intensity = attributes.get("io_intensity")
    return Job(
        id=id,
        submit_s=place.need("submit_time").number(0.0, 1e12),
        start_nodes=low if kind == "rigid" else None,
        min_nodes=low,
        max_nodes=high,
        kind=kind,
        walltime_s=walltime_s or None,
        priority=0 if priority is None else priority.integer(-1_000_000_000),
        program=program,
        name=_word(attributes.get("name")),
        user=_word(attributes.get("user")),
        application=model_path.stem,
        io_intensity=None if intensity is None else intensity.number(0.0, 1.0),
    )


#: There are none, so formulas that name them get 0.
_GPUS = {"num_gpus": 0.0, "num_gpus_per_node": 0.0}


def _sizes(place: Field, kind: JobKind) -> tuple[int, int]:
    if kind == "rigid":
        nodes = place.need("num_nodes").integer(1, _MOST_NODES)
        return nodes, nodes
    low = place.need("num_nodes_min").integer(1, _MOST_NODES)
    high = place.need("num_nodes_max").integer(1, _MOST_NODES)
    if low > high:
        place["num_nodes_min"].fail(f"{low} is above num_nodes_max = {high}")
    if high - low >= MOST_SIZES:
        place["num_nodes_max"].fail(f"{high - low + 1} sizes; a job may have at most {MOST_SIZES}")
    return low, high


def _arguments(place: Field) -> tuple[dict[str, float], dict[str, str]]:
    """Numbers, which formulas may use, and texts, which they may not."""
    arguments = place.get("arguments")
    numbers: dict[str, float] = {}
    texts: dict[str, str] = {}
    for name, argument in () if arguments is None else arguments.items():
        # numbers are given as text by some generators
        argument = _number_of(argument)
        if isinstance(argument.value, str):
            texts[name] = argument.value
            continue
        if not name.isidentifier():
            argument.fail("the name of an argument must be a word of letters, digits and _")
        numbers[name] = argument.number(-1e24, 1e24)
    return numbers, texts


def _attributes(place: Field, counts: Counter[str]) -> dict[str, Field]:
    attributes = place.get("attributes")
    if attributes is None:
        return {}
    for name in attributes.mapping():
        if name not in _USED_ATTRIBUTES:
            counts[f"jobs with the attribute {name!r}, which is not used"] += 1
    found = {name: value for name, value in attributes.items() if name in _USED_ATTRIBUTES}
    return {name: value if name in ("name", "user") else _number_of(value) for name, value in found.items()}


def _number_of(value: Field) -> Field:
    """A number that is given as text, as a number."""
    number = text_number(value.value) if isinstance(value.value, str) else None
    return value if number is None else value.replaced(number)


def _word(value: Field | None) -> str:
    if value is None:
        return ""
    if isinstance(value.value, (dict, list)):
        value.wrong("a text or a number")
    return str(value.value)[:200]


def _platform(configuration: Field, file: Path) -> Platform:
    links = []
    for key in ("pfs_read_links", "pfs_write_links"):
        names = configuration.get(key)
        links.append(() if names is None else tuple(name.text() for name in names.sequence()))
    return read_platform(_find(configuration.need("platform_file"), file), *links)


def _find(place: Field, file: Path) -> Path:
    """The file that `place` names, as seen from `file`."""
    named = Path(place.text())
    folder = file.resolve().parent
    candidates = [folder / named, *(above / named for above in folder.parents), folder / named.name]
    for candidate in candidates:
        try:
            if candidate.is_file():
                return candidate
        except (OSError, ValueError):
            continue
    place.fail(f"no file {str(named)!r} beside {file.name} or in a folder above it")
