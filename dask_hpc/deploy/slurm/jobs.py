"""One Slurm job with the workers of a Dask cluster in it."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import Mapping
from contextvars import ContextVar
from numbers import Integral
from typing import Any

import dask
from dask.utils import parse_bytes
from distributed.core import Status

from dask_hpc.config import Settings, settings
from dask_hpc.deploy.pooled import check_name
from dask_hpc.deploy.slurm import stock
from dask_hpc.errors import SlurmError
from dask_hpc.slurm import commands
from dask_hpc.slurm.notation import parse_duration_s

logger = logging.getLogger(__name__)

StockCluster = stock.Cluster

_AGENT = "--preload dask_hpc.agent --preload-nanny dask_hpc.agent"
#: How long `sbatch` may take: a job that is submitted after all would be nobody's.
_SUBMIT_S = 120.0
#: How `sbatch` begins the line with the number of the job.
_SUBMITTED = "Submitted batch job "
#: Options of which each entry is a line or a word: of a text each letter would be one.
_LISTS = ("job_script_prologue", "job_extra_directives", "job_directives_skip", "worker_extra_args")
_WALLTIME = re.compile(r"^#SBATCH (?:-t |--time=)(\S+)$", re.MULTILINE)
#: Submissions of each kind of the jobs that are asked for at once, up to the first that Slurm has taken: the
#: others come after that. And how many are tried: one alone may fail as Slurm has much to do.
TOGETHER: ContextVar[dict[str, list[asyncio.Future[str]]]] = ContextVar("hpc_together")
_TRIED = 2


class SLURMJob(stock.Job):
    """A Slurm job with workers; `dask_jobqueue.slurm.SLURMJob` with the agent.

    Parameters
    ----------
    *args, **kwargs
        As in stock.
    resources
        Abstract resources (Dask's) that each worker has, by name; None: as many as it has threads.

    Raises
    ------
    ValueError
        When a size of the job, or a resource's name or amount, is not allowed, or text stands for a list.
    """

    def __init__(
        self, *args: Any, resources: Mapping[str, float | None] | None = None, **kwargs: Any
    ) -> None:
        _check(kwargs)
        if "name" in kwargs:  # it goes into the script, and a cluster's may have blanks
            kwargs["name"] = shlex.quote(str(kwargs["name"]))
        super().__init__(*args, **kwargs)
        if self.worker_process_threads < 1:  # it would take all threads of its node
            text = f"processes is {self.worker_processes}; allowed: at most as many as cores"
            raise ValueError(f"{text}, which are {self.worker_cores}")
        self._job_script_prologue = [*_exported(settings()), *(self._job_script_prologue or ())]
        # a shell between Slurm and the worker would keep Slurm's signals, or end on them
        self._command_template = f"exec {self._command_template} {_AGENT}"
        if resources:
            amounts = ",".join(self._amount(name, amount) for name, amount in resources.items())
            self._command_template += f" --resources {amounts}"

    def _amount(self, name: str, amount: float | None) -> str:
        check_name("resources", name)
        if amount is None:
            amount = self.worker_process_threads
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < float("inf"):
            raise ValueError(f"resources[{name!r}] is {amount!r}; allowed: a number, 0 or more")
        # all digits: with fewer, a task that needs all of it would never run
        return f"{name}={amount}"

    @property
    def walltime_s(self) -> float | None:
        """How long the job may run, in seconds; None when that is not said, or only Slurm knows."""
        found = _WALLTIME.findall(self.job_header or "")
        try:
            # of several, Slurm takes the last
            return parse_duration_s(found[-1]) if found else None
        except SlurmError:
            return None

    async def start(self) -> None:
        """Submit the job; one that is refused is over, whoever waits for it."""
        try:
            await super().start()
        except BaseException:
            self.status = Status.failed
            raise

    async def _submit_job(self, script_filename: str) -> str:
        tried, taken = TOGETHER.get({}).setdefault(str(self.job_header), []), False
        while tried and not taken:
            last = tried[-1]
            await asyncio.wait((last,))
            taken = not last.cancelled() and last.exception() is None
            if last is not tried[-1]:
                continue  # another one is being tried by now
            if not taken and len(tried) < _TRIED:
                break
            last.result()  # what those could not be, this one could not either
        submitting = commands.run("sbatch", script_filename, timeout_s=_SUBMIT_S, as_is=True)
        call = asyncio.ensure_future(submitting)
        if not taken:
            tried.append(call)
        said = await call
        # stock takes the first number for that of the job, and sites have `sbatch` say other things before
        return next((line for line in said.splitlines() if line.startswith(_SUBMITTED)), said)

    async def close(self) -> None:
        """Cancel the job."""
        if self.job_id:
            try:
                await commands.scancel([self.job_id])
            except SlurmError as error:
                logger.warning("Slurm job %s could not be cancelled: %s", self.job_id, error)
        self.status = Status.closed


def _check(options: Mapping[str, Any]) -> None:
    """Raise ValueError for what no job can have; what is missing is stock's affair."""
    section = f"jobqueue.{options.get('config_name') or 'slurm'}"
    for name in ("cores", "processes", "memory", *_LISTS):
        value = options.get(name)
        where = name if value is not None else f"{section}.{name.replace('_', '-')}"
        value = dask.config.get(where, None) if value is None else value
        if value is None:
            continue
        if name in _LISTS:
            fits, allowed = not isinstance(value, str) or not value, f"a list, such as [{value!r}]"
        elif name == "memory":
            try:
                fits, allowed = parse_bytes(value) > 0, "an amount above 0, such as '16 GB'"
            except (TypeError, ValueError):
                fits, allowed = False, "an amount, such as '16 GB'"
        else:
            fits = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
            allowed = "a whole number, 1 or more"
        if not fits:
            raise ValueError(f"{where} is {value!r}; allowed: {allowed}")


def _exported(known: Settings) -> list[str]:
    """Lines of a script by which the agents of its workers have the settings of this process."""
    seconds = {
        "KILL_DELAY": known.kill_delay_s,
        "WALLTIME__NOTICE": known.walltime_notice_s,
        "WALLTIME__MARGIN": known.walltime_margin_s,
        "WALLTIME__LIMIT": known.walltime_limit_s,
    }
    return [f"export DASK_HPC__{name}='{value:g} s'" for name, value in seconds.items() if value is not None]
