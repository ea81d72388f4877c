"""Figures that a command prints: one of the user's (ipmitool, EAR, GEOPM, Variorum), or Slurm's.

Rules of the file: no shell, and every command has an end: one that takes too long is killed with all that it
has started.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from dask_hpc.clock import stopwatch_s
from dask_hpc.slurm.commands import command_environment
from dask_hpc.slurm.energy import parse_node_watts, parse_step_joules
from dask_hpc.worker.power.figures import FIRST, Gauge, Label, Reading, SensorError, summed

#: What a command prints is read this far.
_MOST_CHARACTERS = 100_000
#: A figure with its unit; and, where there is no such, a line that is a figure.
_WATTS = re.compile(r"(?<![\w.-])(\d+(?:\.\d+)?)\s*(k?W)(?:atts?)?\b", re.IGNORECASE)
_BARE = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*")
#: Slurm counts a job's energy every half a minute where it is not told otherwise: no need to ask more often.
_ASKED_EVERY_S = 15.0
#: A job's energy that has not risen for so long is not counted any more.
_STILL_S = 300.0
_TIMEOUT = "give it longer (hpc.power.timeout), or look why it hangs"


def printed(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints.

    Raises
    ------
    SensorError
        When it is not there, fails, or has not ended after `timeout_s`; it is killed then.
    """
    name = command[0]
    path = (os.environ if environment is None else environment).get("PATH", os.defpath)
    executable = shutil.which(name, path=path)
    if executable is None:
        raise SensorError(f"there is no command {name}", "install it on this node, or give its whole path")
    try:
        process = subprocess.Popen(
            [executable, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            # what hangs may be a child of it
            start_new_session=True,
        )
    except OSError as error:
        raise SensorError(f"{executable} cannot be run: {error.strerror or error}") from None
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # what it has started may be there when it is not
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        raise SensorError(f"{name} did not end within {timeout_s:g} s and was killed", _TIMEOUT) from None
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # one that waits for a dead file system cannot be killed; nobody is to wait for it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise SensorError(f"{name} failed with exit code {process.returncode}: {said[-1][:200]}")
    return output[:_MOST_CHARACTERS].decode(errors="replace")


def parse_watts(text: str) -> float | None:
    """The first figure with the unit W or kW in a text, else the number that a line is; None: neither."""
    if found := _WATTS.search(text):
        return float(found[1]) * (1000.0 if found[2].lower() == "kw" else 1.0)
    bare = next((match for line in text.splitlines() if (match := _BARE.fullmatch(line))), None)
    return None if bare is None else float(bare[1])


class Command:
    """Watts that a command prints, such as ``ipmitool dcmi power reading``.

    Parameters
    ----------
    command
        The command and its arguments.
    timeout_s
        Seconds that it may take.
    """

    name = "command"
    label: Label = "measured"

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        self._command, self._timeout_s = tuple(command), timeout_s

    def read(self) -> Reading:
        """The first figure that it prints."""
        text = printed(self._command, self._timeout_s)
        if (watts := parse_watts(text)) is None:
            raise SensorError(
                f"{self._command[0]} prints no watts: {text.strip()[:100]!r}",
                "have it print a number, or a number with W",
            )
        return {"command": Gauge(watts)}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)


class Slurm:
    """What Slurm measures: of this node, else of the job, as its share of a node.

    Where a site has configured no plugin for energy, Slurm says 0 or n/s: that is not measured.

    Parameters
    ----------
    timeout_s
        Seconds that a command may take.
    environment
        Of the job; None: that of this process.
    clock
        Seconds that only rise.
    """

    name = "slurm"
    label: Label = "measured"

    def __init__(
        self,
        timeout_s: float,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = stopwatch_s,
    ) -> None:
        self._clock = clock
        #: When the job was asked for; when its joules rose last, to how many; and the watts of that rise.
        self._asked_s: float | None = None
        self._last: tuple[float, float] | None = None
        self._job_w: float | None = None
        self._known = os.environ if environment is None else environment
        self._environment = command_environment(environment)
        self._timeout_s = timeout_s

    def read(self) -> Reading:
        """Watts of the node; else of the job, over the time in which its energy rose last."""
        node = self._known.get("SLURMD_NODENAME", "")
        job = self._known.get("SLURM_JOB_ID", "")
        if not node and not job:
            raise SensorError("this process is in no job of Slurm (no SLURMD_NODENAME)")
        if node:
            text = printed(("scontrol", "show", "node", node), self._timeout_s, self._environment)
            if (watts := parse_node_watts(text)) is not None:
                return {"node": Gauge(watts)}
        if job and (watts := self._of_job(job)) is not None:
            return {"job": Gauge(watts)}
        raise SensorError(
            f"Slurm measures no power of {node or job}: it says 0 or n/s",
            "ask the site for an AcctGatherEnergyType in slurm.conf, or set hpc.power.source to another",
        )

    def _of_job(self, job: str) -> float | None:
        """Watts of this node as its share of the job; None: its energy is not measured."""
        now_s = self._clock()
        if self._asked_s is None or now_s - self._asked_s >= _ASKED_EVERY_S:
            asked = ("sstat", f"--jobs={job}", "--allsteps", "--noheader", "--parsable2")
            text = printed((*asked, "--format=JobID,ConsumedEnergyRaw"), self._timeout_s, self._environment)
            self._asked_s = now_s
            if (joules := parse_step_joules(text)) is None:
                self._asked_s = self._last = self._job_w = None
                return None
            self._rise(now_s, joules)
        if self._last is not None and now_s - self._last[0] > _STILL_S:
            raise SensorError(f"the energy of job {job} stands still since {_STILL_S:g} s")
        if self._job_w is None:
            raise SensorError(FIRST)
        nodes = self._known.get("SLURM_JOB_NUM_NODES", "1")
        return self._job_w / max(1, int(nodes) if nodes.isdigit() else 1)

    def _rise(self, now_s: float, joules: float) -> None:
        # it moves seldom: between two that are equal it is not 0 W
        if self._last is not None and joules == self._last[1]:
            return
        if self._last is not None and joules > self._last[1]:
            self._job_w = (joules - self._last[1]) / (now_s - self._last[0])
        # one that falls has lost a step that ended: the watts hold until it has risen again
        self._last = now_s, joules

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)
