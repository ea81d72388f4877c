"""What jobs read and write, and what each target gave them: sums over what workers have measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dask_hpc.scheduler.placing.gate import Target
from dask_hpc.wire import IO_ESTIMATED, IO_METRIC, IO_SECONDS

#: ``metered``: all through metered stores, and timed there. ``counted``: some of it by the counters of the
#: system, which do not tell how long a task waited for it: those seconds are estimates. ``estimated``: so are
#: some of the bytes.
Quality = Literal["metered", "counted", "estimated"]


@dataclass
class Row:
    """Bytes, and seconds in which tasks were busy with it, summed over tasks."""

    read_bytes: int = 0
    write_bytes: int = 0
    busy_s: float = 0.0
    quality: Quality = "metered"

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def bandwidth_bytes_s(self) -> float | None:
        """Bytes a second that one task got; None while nobody was busy with it."""
        return self.nbytes / self.busy_s if self.busy_s else None

    def add(self, what: str, amount: float) -> None:
        """One more measure; `what` as in `dask_hpc.wire.IO_METRIC`."""
        if what.startswith("~"):
            self.worse("counted" if what == "~busy" else "estimated")
            what = what[1:]
        if what == "read":
            self.read_bytes += int(amount)
        elif what == "write":
            self.write_bytes += int(amount)
        elif what == "busy":
            self.busy_s += amount

    def worse(self, quality: Quality) -> None:
        """It is no better than this."""
        if self.quality != "estimated":
            self.quality = quality

    def join(self, other: Row) -> None:
        """With what another one says."""
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes
        self.busy_s += other.busy_s
        if other.quality != "metered":
            self.worse(other.quality)


@dataclass
class Work:
    """What the tasks of one name in one span have done."""

    #: Seconds that they executed, and seconds in which they had any operation under way.
    task_s: float = 0.0
    io_s: float = 0.0
    targets: dict[Target, Row] = field(default_factory=dict)


@dataclass
class Accounts:
    """What was measured, by span and name of tasks."""

    work: dict[tuple[str, str], Work] = field(default_factory=dict)

    def targets(self) -> dict[Target, Row]:
        """The sums by target."""
        found: dict[Target, Row] = {}
        for work in self.work.values():
            for target, row in work.targets.items():
                found.setdefault(target, Row()).join(row)
        return found

    def spans(self) -> dict[str, tuple[Row, float]]:
        """The sums of each span that has read or written, and the seconds that its tasks executed.

        The seconds of a span are those in which its tasks had any operation under way, whatever the target.
        """
        found: dict[str, tuple[Row, float]] = {}
        io_s: dict[str, float] = {}
        for (span, _), work in self.work.items():
            row, task_s = found.setdefault(span, (Row(), 0.0))
            io_s[span] = io_s.get(span, 0.0) + work.io_s
            for one in work.targets.values():
                row.join(one)
            found[span] = (row, task_s + work.task_s)
        for span, (row, _) in found.items():
            row.busy_s = io_s[span]
        return {span: both for span, both in found.items() if both[0].nbytes or both[0].busy_s}


def accounts(executed: Iterable[tuple[str, str, str, str, float]]) -> Accounts:
    """Put together what `span_metrics.executed` gives."""
    found = Accounts()
    for span, name, activity, unit, amount in executed:
        work = found.work.setdefault((span, name), Work())
        if unit == "seconds":
            work.task_s += amount
        if activity in (IO_SECONDS, IO_ESTIMATED):
            work.io_s += amount
            continue
        said = activity.split(" ", 3)
        if said[0] == IO_METRIC and len(said) == 4:
            _, what, kind, target = said
            work.targets.setdefault((kind, target), Row()).add(what, amount)
    return found


def share(io_s: float, task_s: float) -> float | None:
    """Share of its seconds that a job spends in I/O, 0 to 1; None while it has none."""
    return min(1.0, io_s / task_s) if task_s else None
