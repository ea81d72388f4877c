"""Section ``power`` of the heartbeats: what this worker draws of its host, with its label.

It is there while somebody asks for it (`dask_hpc.worker.power.switch`), and
then a thread of its own samples: a sensor that hangs keeps nobody waiting. Its figure grows old, and an old
figure is not told. What goes wrong is said once, and once when it is well again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from distributed.comm import get_address_host

from dask_hpc.clock import epoch_s, stopwatch_s
from dask_hpc.config import Settings
from dask_hpc.worker.node import node_settings
from dask_hpc.worker.power.board import Board, Member, Told
from dask_hpc.worker.power.figures import FIRST, Figure, Meter, SensorError, as_sensor_error, unavailable
from dask_hpc.worker.power.load import curve
from dask_hpc.worker.power.sources import governed, made
from dask_hpc_policies.power.load_curve import LoadCurve

logger = logging.getLogger("distributed.dask_hpc.power")

#: A figure is told for so many intervals, and the time that a sensor may take.
_FRESH = 3.0


class PowerSection:
    """What a worker tells of its power; samples from when it is made until `stop`.

    Told are ``watts`` (None when they are not known), ``label``, ``at_s`` (seconds since 1970), ``host``,
    ``energy_j`` (since it was made), ``counted_s`` (when it was, by the host's stopwatch) where that is
    measured, ``source``, ``fresh_s`` (for how long it holds), ``governed_w``
    (watts of the part of the host that its caps are for) where that is measured, ``load`` (CPU time of the
    host, from 0 to 1) where nothing is and no other worker is there, and ``reason`` when something is wrong.

    Raises
    ------
    ConfigError
        When the configuration of the node is not allowed.
    """

    def __init__(self, worker: Any) -> None:
        self._worker, self._settings = worker, node_settings()
        self._host = self._settings.node_host or get_address_host(worker.address)
        self._sampler = Sampler(str(worker.scheduler.addr), _member(worker), self._settings)
        #: Energy by the model, and when it was told last.
        self._modelled_j, self._last_s = 0.0, stopwatch_s()
        self._said = ""
        # it says what has been used since it was called before
        psutil.cpu_percent()

    def __call__(self) -> Mapping[str, Any]:
        """The figure of now."""
        told = self._sampler.told
        figure, watts = _own(told, self._sampler.member.id, self._settings)
        at_s, now_s = told.at_s, stopwatch_s()
        label, source, reason = figure.label, figure.source, figure.reason
        load = None
        if label != "measured" and told.workers == 1 and told.taken_s > float("-inf"):
            load = min(1.0, psutil.cpu_percent() / 100)
        if watts is None and reason != FIRST and self._settings.power_source in ("auto", "model"):
            points = self._sampler.points
            if isinstance(points, SensorError):
                reason = reason or points.reason
            else:
                watts = self._modelled_w(told, points, load)
                self._modelled_j += watts * (now_s - self._last_s)
                label, source, at_s = "modelled", "model", epoch_s()
        self._last_s = now_s
        self._note(label, source, reason)
        said = {"watts": watts, "label": label, "at_s": at_s, "host": self._host, "source": source}
        energy_j = told.energy_j.get(self._sampler.member.id, 0.0) + self._modelled_j
        said["fresh_s"] = _fresh_s(self._settings)
        if label == "measured":
            said["counted_s"] = told.taken_s
            if told.governed_w is not None:
                said["governed_w"] = told.governed_w
        if load is not None:
            said["load"] = load
        return {**said, "energy_j": energy_j, **({"reason": reason} if reason else {})}

    def _modelled_w(self, told: Told, points: LoadCurve, load: float | None) -> float:
        """Watts of this worker's node by its load, or of its part of the node that all of a host are."""
        state = self._worker.state
        if load is not None:
            return points.watts(load)
        watts = points.watts(len(state.executing) / max(1, state.nthreads))
        alone = self._settings.node_by == "worker"
        return watts if alone else watts * self._sampler.member.threads / told.threads

    def _note(self, label: str, source: str, reason: str) -> None:
        """Say what is wrong once a host, and once that it is well again."""
        now = "" if label == "measured" else f"{label}: {reason}"
        if now == self._said or reason == FIRST:
            return
        self._said = now
        if not self._sampler.leads:
            return
        if label == "measured":
            logger.info("The power of %s is measured again, by %s", self._host, source)
        elif label == "modelled":
            logger.info("The power of %s is modelled, not measured: %s", self._host, reason or "as is set")
        else:
            logger.warning("The power of %s is not known: %s", self._host, reason)

    def stop(self) -> None:
        """Sample no more."""
        self._sampler.stop()


class Sampler:
    """The thread of a worker that samples, or reads what another worker of its host has sampled."""

    def __init__(self, cluster: str, member: Member, settings: Settings, root: Path | None = None) -> None:
        self.member = member
        #: What is known now; of another worker, or by this one.
        self.told = Told(Figure("unavailable", settings.power_source, reason=FIRST), epoch_s())
        #: Watts by load, once they are read.
        self.points: LoadCurve | SensorError = SensorError(FIRST)
        #: Whether it is this one that samples.
        self.leads = False
        self._settings, self._stopped = settings, threading.Event()
        self._board = Board(cluster, member, root)
        #: It ends by itself after `stop`.
        self.thread = threading.Thread(target=self._run, name="dask-hpc-power", daemon=True)
        #: CPU seconds of the thread so far.
        self.cpu_s = 0.0
        self.thread.start()

    def _run(self) -> None:
        meter: Meter | None = None
        part = None if (capped := governed(self._settings)) is None else Meter(capped)
        lacking = Figure("unavailable", self._settings.power_source)
        try:
            if (source := made(self._settings)) is not None:
                meter = Meter(source)
        except Exception as error:  # whatever a source does, the worker's work goes on
            lacking = unavailable(self._settings.power_source, as_sensor_error(error))
        self.points = _curve(self._settings)
        try:
            self._sample(meter, part, lacking)
        finally:
            self._board.stop()

    def _sample(self, meter: Meter | None, part: Meter | None, lacking: Figure) -> None:
        wait_s = 0.0
        while not self._stopped.wait(wait_s):
            began_s = stopwatch_s()
            try:
                self._look(meter, part, lacking)
            except Exception as error:  # whatever a sensor does, the worker's work goes on
                self.told = Told(unavailable(self._settings.power_source, as_sensor_error(error)), epoch_s())
            self.cpu_s = time.thread_time()
            wait_s = max(0.05, self._settings.power_interval_s - (stopwatch_s() - began_s))

    def _look(self, meter: Meter | None, part: Meter | None, lacking: Figure) -> None:
        if not self.leads:
            self.told = self._board.read() or self.told
            if 0 <= stopwatch_s() - self.told.taken_s < 2 * self._settings.power_interval_s:
                return
            # whoever samples may be gone
            self.leads = self._board.leads()
        if self.leads:
            figure = lacking if meter is None else meter.sample(stopwatch_s())
            governed_w = None if part is None else part.sample(stopwatch_s()).watts
            idle_w = self._settings.power_model_idle_w or 0.0
            self.told = self._board.tell(figure, epoch_s(), stopwatch_s(), idle_w, governed_w)

    def stop(self) -> None:
        """End the thread; one that a sensor holds up ends when that answers."""
        self._stopped.set()


def _own(told: Told, id: str, settings: Settings) -> tuple[Figure, float | None]:
    """The host's figure, and this worker's watts of it; None when they are not known."""
    figure = told.figure
    if figure.watts is None:
        return figure, None
    # what comes from the future is of a time before the machine was started anew
    if not 0 <= stopwatch_s() - told.taken_s <= _fresh_s(settings):
        return Figure("unavailable", figure.source, reason=f"{figure.source} does not answer any more"), None
    if id not in told.share_w:
        return Figure("unavailable", figure.source, reason=FIRST), None
    return figure, told.share_w[id]


def _fresh_s(settings: Settings) -> float:
    """For how long a figure holds."""
    return _FRESH * settings.power_interval_s + settings.power_timeout_s


def _member(worker: Any) -> Member:
    return Member(str(worker.address), os.getpid(), max(1, int(worker.state.nthreads)))


def _curve(settings: Settings) -> LoadCurve | SensorError:
    try:
        return curve(settings.power_model_idle_w, settings.power_model_busy_w, settings.power_model_curve)
    except SensorError as error:
        return error
