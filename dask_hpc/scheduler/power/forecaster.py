"""Has the draw of the next samples forecast beside the scheduler's loop, again and again.

Rules of the file: the loop adds a sample and hands arrays on, packed: a list of floats would take the
interpreter from the loop for as long as it takes to write and to read it. Models are fitted in a process of
its own, which is started when there are samples enough that were measured. What the model of a node says is
known without any forecast. What is forecast is how far the draw is from what it says of the sizes: a sample
of other sizes counts as what it would have been at those of now, and a forecast moves with the sizes. Samples
taken while a job is being resized are left out. Refits take a small share of a core.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_hpc.processes import Process, ProcessError
from dask_hpc.scheduler.power import forecasting
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.forecasting import packed
from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_policies.power.series import FEWEST_SAMPLES

logger = logging.getLogger(__name__)

#: Samples that a series has, the last ones; most of them that are forecast.
MOST_SAMPLES, MOST_STEPS = 300, 60
#: Processor seconds of one forecast, loading the models included; share of a core that refits take at most.
_CPU_S, _SHARE = 20.0, 0.05
#: And seconds of the clock: a machine that is busy gives it next to none, one that hangs uses none.
_WALL_S = 600.0
#: It is tried again after a failure after that, at first and at most, in seconds.
_FIRST_WAIT_S, _MOST_WAIT_S = 5.0, 300.0
#: How much lower than the scheduler's its priority is.
NICE = 19


class Forecaster:
    """The series, and the forecast that holds.

    Parameters
    ----------
    came
        Called on the loop when there is another forecast.
    """

    def __init__(self, came: Callable[[], None]) -> None:
        self._came = came
        self._process = Process(NICE)
        #: Of the last samples when, watts, and what the model said of the sizes then.
        self._times, self._watts, self._sized = array("d"), array("d"), array("d")
        self._last_s: float | None = None
        #: What was found last, and of which sample on; it holds for so many seconds.
        self._found: dict[str, Any] | None = None
        self._asked: Sample | None = None
        self._holds_s = 0.0
        self._due_s = float("-inf")
        self._wait_s = _FIRST_WAIT_S
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        #: Why the last question has no answer; empty when it has one.
        self.failure = ""
        #: Why the last sample is none to forecast by; empty when it is one.
        self._lacking = ""
        #: Forecasts that were made.
        self.made = 0

    def add(self, sample: Sample, horizon_s: float, tick_s: float) -> None:
        """A sample a tick; asks for a forecast where one is due.

        Parameters
        ----------
        horizon_s, tick_s
            So far ahead it looks, and the time from a sample to the next one.
        """
        self._lacking = _lacking(sample)
        if self._lacking or not sample.settled:
            # what comes next follows on what was before
            self._last_s = None
            return
        at_s = 0.0
        if self._times:
            since_s = tick_s if self._last_s is None else sample.t_s - self._last_s
            at_s = self._times[-1] + since_s
            if since_s <= 0:
                return
        row = at_s, sample.total_w, sample.sized_w
        for column, value in zip((self._times, self._watts, self._sized), row, strict=True):
            column.append(value)
            del column[:-MOST_SAMPLES]
        self._last_s = sample.t_s
        steps = max(1, min(MOST_STEPS, round(horizon_s / tick_s)))
        enough = max(FEWEST_SAMPLES, 3 * steps)
        busy = self._task is not None and not self._task.done()
        if len(self._times) >= enough and sample.t_s >= self._due_s and not (busy or self._closed):
            self._task = asyncio.get_running_loop().create_task(self._work(sample, steps, steps * tick_s))

    def range_w(self, sample: Sample) -> tuple[float, float] | None:
        """The least and the most watts expected at the sizes of `sample`; None: nobody knows."""
        if self._found is None or self._asked is None or sample.t_s > self._asked.t_s + self._holds_s:
            return None
        moved_w = sample.sized_w - self._asked.sized_w
        low_w, high_w = (round(self._found[name] + moved_w) for name in ("min_w", "max_w"))
        # whole watts: a plan is asked for anew whenever they change
        return float(max(0, low_w)), float(min(max(0, high_w), MOST_TOTAL_W))

    def told(self, now_s: float) -> dict[str, Any]:
        """For `rt.power`: the forecast that holds (`forecasting.expected`), its age, and what is wrong.

        Without one ``model`` is None. Watts are those at the sizes of when it was asked for.
        """
        row: dict[str, Any] = {"samples": len(self._times), "made": self.made}
        row["problem"] = self.failure or self._lacking
        if self._found is None or self._asked is None or now_s > self._asked.t_s + self._holds_s:
            return {"model": None, **row}
        return {**self._found, "age_s": now_s - self._asked.t_s, **row}

    def close(self) -> None:
        """End the process; nothing more is forecast."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._process.close()

    async def _work(self, sample: Sample, steps: int, horizon_s: float) -> None:
        watts = np.maximum(0.0, np.array(self._watts) - np.array(self._sized) + sample.sized_w)
        question = {"t_s": packed(self._times.tobytes()), "watts": packed(watts.tobytes()), "steps": steps}
        try:
            found = await asyncio.to_thread(
                self._process.call, forecasting.EXPECTED, question, cpu_s=_CPU_S, wall_s=_WALL_S
            )
        except ProcessError as error:
            if self._closed:
                return
            if not self.failure:
                logger.error("There is no forecast of the draw, and it is tried again: %s", error)
            self.failure = str(error)
            self._due_s = sample.t_s + self._wait_s
            self._wait_s = min(2 * self._wait_s, _MOST_WAIT_S)
            return
        self.failure, self._wait_s = "", _FIRST_WAIT_S
        self.made += 1
        self._due_s = sample.t_s + max(horizon_s / 4, found["cpu_s"] / _SHARE)
        # one that is followed by no other does not hold for ever
        self._found, self._asked, self._holds_s = found, sample, 2 * max(horizon_s, self._due_s - sample.t_s)
        self._came()


def _lacking(sample: Sample) -> str:
    """What of a sample was not measured; empty: all of it was."""
    if sample.label == "measured":
        return ""
    count = sample.nodes - sample.measured_nodes
    what = f"{count} of {sample.nodes} nodes are not measured" if count else "nodes that are away are not"
    return f"{what}: a draw is forecast that is measured as a whole"
