"""Applications to be placed, as YAML: a simulation, its analyses and the platform, a document each.

.. code-block:: yaml

    platform:
      nodes: 50
      cores: 8                    # this and the next two of each node
      memory_bytes: 64.0e9
      bandwidth_bytes_s: 12.5e9
      staging_memory_bytes: 64e9  # of a node, for what is staged; without it there is no limit
      max_staging_nodes: 10       # without it all but one
    simulation:
      one_core_s: 4000            # a step on one core
      memory_bytes: 2.4e12        # on all nodes together
      serial_fraction: 0.01       # 0 when absent
    analyses:
      - {name: means, one_core_s: 120, memory_bytes: 1.0e11}
      - {name: images, one_core_s: 300, memory_bytes: 2.0e11, where: in-transit}

``where`` is auto, in-situ or in-transit; times are numbers of seconds or text such as ``5 min``.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.fields import Field, escaped, failure
from dask_hpc.sim.formats.parsing import LARGEST_YAML_BYTES, parse_yaml_documents
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc_policies.placement.application import (
    SMALLEST,
    WHERE,
    Analysis,
    Application,
    InvalidApplication,
    Mode,
    Platform,
    Simulation,
    Where,
)

#: Most nodes, and most cores of each: every pair of them may have to be looked at.
MOST_NODES = 1_000_000
MOST_CORES = 4096
#: What is read: a live cluster knows more of its flows.
_KEYS = ("platform", "simulation", "analyses")
_PLATFORM_KEYS = (
    "nodes", "cores", "memory_bytes", "bandwidth_bytes_s", "staging_memory_bytes", "max_staging_nodes",
)  # fmt: skip
_SIMULATION_KEYS = ("one_core_s", "memory_bytes", "serial_fraction")
_ANALYSIS_KEYS = ("name", "one_core_s", "memory_bytes", "where")


def read(path: str | Path, mode: Mode = "asynchronous") -> list[Application]:
    """The applications of the file, in order.

    Raises
    ------
    WorkloadError
        For whatever is missing, unknown, out of range or does not fit, with file, line and field.
    """
    return parse(read_text(path, LARGEST_YAML_BYTES), escaped(str(path)), mode)


def parse(text: str, source: str, mode: Mode = "asynchronous") -> list[Application]:
    """The applications of a text; `source` is what errors call it.

    Raises
    ------
    WorkloadError
        As `read`.
    """
    documents = parse_yaml_documents(text, source)
    if not documents:
        raise WorkloadError(f"{source}: there is no application; expected {', '.join(_KEYS)}")
    return [_application(whole, mode) for whole in documents]


def located(error: InvalidApplication, whole: Field) -> WorkloadError:
    """The error with the place of its field."""
    return failure(whole.file, whole.lines.get(error.field), error.field, error.text)


def _application(whole: Field, mode: Mode) -> Application:
    whole.mapping(_KEYS)
    listed = whole.need("analyses")
    application = Application(
        platform=_platform(whole.need("platform")),
        simulation=_simulation(whole.need("simulation")),
        analyses=tuple(_analysis(place) for place in listed.sequence()),
    )
    try:
        application.check(mode)
    except InvalidApplication as error:
        raise located(error, whole) from None
    return application


def _platform(place: Field) -> Platform:
    place.mapping(_PLATFORM_KEYS)
    nodes = place.need("nodes").integer(1, MOST_NODES)
    staging_bytes, staging = place.get("staging_memory_bytes"), place.get("max_staging_nodes")
    return Platform(
        nodes=nodes,
        cores=place.need("cores").integer(1, MOST_CORES),
        memory_bytes=place.need("memory_bytes").number(SMALLEST),
        bandwidth_bytes_s=place.need("bandwidth_bytes_s").number(SMALLEST),
        staging_memory_bytes=None if staging_bytes is None else staging_bytes.number(SMALLEST),
        max_staging_nodes=None if staging is None else staging.integer(0, nodes),
    )


def _simulation(place: Field) -> Simulation:
    place.mapping(_SIMULATION_KEYS)
    serial = place.get("serial_fraction")
    return Simulation(
        one_core_s=place.need("one_core_s").duration_s(above_zero=True),
        memory_bytes=place.need("memory_bytes").number(),
        serial_fraction=0.0 if serial is None else serial.number(highest=1.0),
    )


def _analysis(place: Field) -> Analysis:
    place.mapping(_ANALYSIS_KEYS)
    where = place.get("where")
    return Analysis(
        name=place.need("name").text(),
        one_core_s=place.need("one_core_s").duration_s(),
        memory_bytes=place.need("memory_bytes").number(),
        where="auto" if where is None else cast(Where, where.text(WHERE)),
    )
