"""What a node of this cluster is taken to draw by its load: the curve that the settings name.

Rules of the file: the loop fits nothing. A file of measurements is read and fitted in a thread, once; until
that is done, and where it has failed, there is no curve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dask_hpc.scheduler.tables.state import State
from dask_hpc.worker.power.figures import SensorError
from dask_hpc.worker.power.load import curve
from dask_hpc_policies.power.load_curve import LoadCurve

#: Idle and busy watts, the path of a file; and the share of a switch.
_Wanted = tuple[float | None, float | None, str | None, float]
#: Curves that are kept.
_KEPT = 8


class NodeModel:
    """The curve, as settings are now.

    Parameters
    ----------
    fitted
        Called on the loop when there is a curve that was asked for before.
    """

    def __init__(self, state: State, fitted: Callable[[], None]) -> None:
        self._state, self._fitted = state, fitted
        self._found: dict[_Wanted, LoadCurve | SensorError] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def is_set(self) -> bool:
        """Whether settings name one."""
        return _names(self._wanted())

    @property
    def problem(self) -> str:
        """Why there is no curve though settings name one; empty: there is, or will be soon."""
        found = self._found.get(self._wanted())
        return str(found) if isinstance(found, SensorError) else ""

    def curve(self) -> LoadCurve | None:
        """The curve; None: there is none (yet)."""
        wanted = self._wanted()
        if not _names(wanted):
            return None
        if wanted not in self._found:
            if wanted[2] is not None:
                if self._task is None or self._task.done():
                    self._task = asyncio.get_running_loop().create_task(self._later(wanted))
                return None
            self._keep(wanted, _tried(wanted))
        found = self._found[wanted]
        return None if isinstance(found, SensorError) else found

    async def known(self) -> None:
        """Wait until it is known whether there is a curve."""
        wanted = self._wanted()
        if _names(wanted) and wanted not in self._found:
            self._keep(wanted, await asyncio.to_thread(_tried, wanted))

    async def _later(self, wanted: _Wanted) -> None:
        self._keep(wanted, await asyncio.to_thread(_tried, wanted))
        self._fitted()

    def _keep(self, wanted: _Wanted, found: LoadCurve | SensorError) -> None:
        while len(self._found) >= _KEPT:
            del self._found[next(iter(self._found))]
        self._found[wanted] = found

    def _wanted(self) -> _Wanted:
        settings = self._state.settings
        watts = settings.power_model_idle_w, settings.power_model_busy_w
        return *watts, settings.power_model_curve, settings.power_model_switch_w or 0.0


def _names(wanted: _Wanted) -> bool:
    """Whether there is to be a curve: a switch alone makes none."""
    return wanted[:3] != (None, None, None)


def _tried(wanted: _Wanted) -> LoadCurve | SensorError:
    try:
        return curve(*wanted[:3]).raised(wanted[3])
    except SensorError as error:
        return error
