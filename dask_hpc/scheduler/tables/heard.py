"""What workers say of their nodes with their heartbeats, brought into the node table.

When the Slurm job of a worker ends, Slurm knows better (`walltimes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask_hpc.scheduler.internals import reads, remote
from dask_hpc.scheduler.tables.nodes import Told
from dask_hpc.scheduler.tables.state import State
from dask_hpc.scheduler.tables.walltimes import Walltimes

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: Labels are shown in tables.
_LONGEST = 200


class Heard:
    """Reads the section ``node`` of every worker's last heartbeat."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: The section that was read last, by address: heartbeats that carry the same cost next to nothing.
        self._read: dict[str, Any] = {}
        self._walltimes = Walltimes()

    def tick(self, now_s: float) -> None:
        """Look for what is new."""
        workers, nodes = self._state.scheduler.workers, self._state.nodes
        read: dict[str, Any] = {}
        for address in nodes.at:
            ws = workers.get(address)
            if ws is None:
                continue
            section = remote.sections_of(ws).get("node")
            read[address] = section
            # again and again for what ends: the clocks of two machines may be set
            if isinstance(section, Mapping) and (
                section != self._read.get(address) or "end_s" in section or "slurm_job" in section
            ):
                nodes.hear(address, self._told(section))
        self._read = read
        sections = [section for section in read.values() if isinstance(section, Mapping)]
        self._walltimes.look(sections, now_s, self._state.settings.slurm_poll_s)

    def _told(self, section: Mapping[str, Any]) -> Told:
        end_s, sooner = self._walltimes.end_s(section)
        return Told(
            host=_label(section.get("host")),
            domain=_label(section.get("domain")),
            end_s=None if end_s is None else self._state.clock.at_s(end_s),
            sooner=sooner,
        )

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        self._walltimes.stop()

    def status(self) -> Mapping[str, Any]:
        """Sections of heartbeats that fail, with the reason, by worker and section."""
        failures: dict[str, dict[str, str]] = {}
        for ws in dict.values(self._state.scheduler.workers):
            for name, section in remote.sections_of(ws).items():
                if isinstance(section, Mapping) and "error" in section:
                    failures.setdefault(str(ws.name), {})[str(name)] = str(section["error"])
        return {"heartbeat_failures": failures} if failures else {}


def labels(ws: WorkerState) -> tuple[str, str]:
    """Host and failure domain of a worker: what it says, else the machine."""
    section = remote.sections_of(ws).get("node")
    said = section if isinstance(section, Mapping) else {}
    host = _label(said.get("host")) or str(reads.worker_facts(ws)["host"])
    return host, _label(said.get("domain")) or host


def _label(label: Any) -> str | None:
    return label[:_LONGEST] if isinstance(label, str) and label else None
