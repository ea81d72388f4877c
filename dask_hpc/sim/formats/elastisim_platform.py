"""The platform of an ElastiSim configuration: nodes, their speed, links and file system.

Rules of the file: of a SimGrid platform (XML, version 4) only what the simulator has a counterpart for is
read: clusters (number, speed and link of the nodes) and the links to the parallel file system. All nodes
must be alike. Latencies and topology are not simulated.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.formats.text_file import read_text
from dask_hpc.sim.model.machine import Machine

#: Most nodes that a platform may have.
MOST_NODES = 1_000_000
_LARGEST_BYTES = 2**22

_SCALE = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_QUANTITY = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?)\s*([kKMGTPE]?i?)(f|Bps|bps)\s*")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Platform:
    """What a platform file says."""

    machine: Machine
    node_flops: float
    notes: tuple[str, ...] = ()


def read_platform(
    path: Path, read_links: tuple[str, ...] = (), write_links: tuple[str, ...] = ()
) -> Platform:
    """The platform in a SimGrid file.

    Parameters
    ----------
    read_links, write_links
        Names of the links that carry what is read from and written to the file system; by default those
        with ``pfs`` in their names.

    Raises
    ------
    WorkloadError
        When it is no such file, has no cluster, or its nodes differ.
    """
    text = read_text(path, _LARGEST_BYTES)
    if "<!ENTITY" in text:
        raise WorkloadError(f"{path}: a platform with entities of its own is not read")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        line, column = error.position
        raise WorkloadError(f"{path}, line {line}, column {column + 1}: no XML: {error}") from None
    clusters = list(root.iter("cluster"))
    if not clusters:
        raise WorkloadError(f"{path}: no <cluster>; nodes that are declared one by one are not read")
    kinds = {(_quantity(path, one, "speed", "f"), _quantity(path, one, "bw", "Bps")) for one in clusters}
    if len(kinds) > 1:
        raise WorkloadError(f"{path}: the clusters differ in speed or bw; all nodes must be alike")
    speed, link_bytes_s = kinds.pop()
    nodes = sum(_count(path, cluster) for cluster in clusters)
    if not 0 < nodes <= MOST_NODES:
        raise WorkloadError(f"{path}: {nodes} nodes; it must be from 1 to {MOST_NODES}")
    bandwidth = {str(link.get("id")): _quantity(path, link, "bandwidth", "Bps") for link in root.iter("link")}
    for name in (*read_links, *write_links):
        if name not in bandwidth:
            raise WorkloadError(f"{path}: no link {name!r}, which the configuration names")
    chosen = {*read_links, *write_links} or {name for name in bandwidth if "pfs" in name.lower()}
    rates = sorted({bandwidth[name] for name in chosen})
    notes: tuple[str, ...] = ()
    if len(rates) > 1:
        span = f"{rates[0]:g} to {rates[-1]:g} bytes/s"
        notes = (f"links to the file system of {span}: the slowest is taken for all",)
    machine = Machine(nodes=nodes, link_bytes_s=link_bytes_s, file_system_bytes_s=rates[0] if rates else None)
    return Platform(machine, speed, notes)


def _quantity(path: Path, element: ET.Element, attribute: str, unit: str) -> float:
    """An attribute such as ``100Gf`` or ``100Gbps``, in flops or bytes per second."""
    text = element.get(attribute)
    match = _QUANTITY.fullmatch(text or "")
    scale = None if match is None else {**_SCALE, **_BINARY}.get(match[2])
    if match is None or scale is None or (match[3] == "f") != (unit == "f"):
        example = "100Gf" if unit == "f" else "100Gbps or 48GBps"
        where = f"{path}: <{element.tag} id={element.get('id')!r}>"
        raise WorkloadError(f"{where}: {attribute}={text!r}; expected such as {example}")
    value = float(match[1]) * scale / (8.0 if match[3] == "bps" else 1.0)
    if not 0 < value <= 1e24:
        raise WorkloadError(
            f"{path}: <{element.tag} id={element.get('id')!r}>: {attribute}={text!r} must be above 0"
        )
    return value


def _count(path: Path, cluster: ET.Element) -> int:
    total = 0
    for part in (cluster.get("radical") or "").split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise WorkloadError(
                f"{path}: <cluster id={cluster.get('id')!r}>: radical={cluster.get('radical')!r}; expected "
                "such as 0-127"
            )
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total
