"""Slurm's commands, run without keeping the event loop from its work, and what they tell as rows.

Rules of the file: no shell, every command has an end. A command that is not there, fails, hangs or prints
what cannot be read is one `SlurmError` that says which, with Slurm's own words. What the user has set for
their own use of the commands (formats, filters, questions back) is left out, so that nobody's
``SQUEUE_PARTITION`` makes jobs look lost.

A job that Slurm has forgotten, which it does a few minutes after the end, is not an error: there is no row
for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import shutil
import signal
from collections.abc import Iterable, Mapping

from dask_hpc.errors import SlurmError
from dask_hpc.slurm import text
from dask_hpc.slurm.notation import JobId, parse_job_id, parse_time_s
from dask_hpc.slurm.rows import QueuedJob, is_over

logger = logging.getLogger(__name__)

#: How long a command may take. One that does not reach the controller gives up by itself after about
#: ``MessageTimeout`` of slurm.conf, which is 10 s unless it is set; its message says more than a time-out.
TIMEOUT_S = 30.0
#: What `squeue` and `sinfo` are given; a job that is over is still told for a while.
SQUEUE = ("squeue", "--noheader", "--noconvert", "--states=all", f"--format={text.SQUEUE_FORMAT}")
SINFO = ("sinfo", "--noheader", "--noconvert", "--exact", f"--format={text.SINFO_FORMAT}")

#: Options by environment of the commands that are used here.
_PREFERENCES = ("SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
#: How Slurm says that it does not know a job, or knows it no more.
_FORGOTTEN = "Invalid job id specified"
_ENDED = (_FORGOTTEN, "already completing or completed")


async def squeue(
    jobs: Iterable[JobId | int | str] | None = None,
    *,
    user: str | None = None,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> tuple[QueuedJob, ...]:
    """Jobs that wait or run, or have ended a short while ago.

    Parameters
    ----------
    jobs
        Only these; None: all that may be seen. A job that Slurm does not know has no row.
    user
        Only jobs of this user.
    timeout_s
        Seconds that the command may take.
    environment
        Of the command; None: that of this process.

    Raises
    ------
    SlurmError
        When the command is absent, fails, hangs or prints what cannot be read.
    """
    chosen = [] if user is None else [f"--user={user}"]
    if jobs is not None:
        if not (ids := _ids(jobs)):
            return ()
        chosen.append(f"--jobs={','.join(ids)}")
    code, output, errors = await _outcome((*SQUEUE, *chosen), timeout_s, environment)
    # it says so only when it knows none of them
    if code and jobs is not None and _FORGOTTEN in errors:
        return ()
    return text.parse_squeue(_checked("squeue", code, output, errors))


async def scancel(
    jobs: Iterable[JobId | int | str],
    *,
    signal_name: str | None = None,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Cancel `jobs`, or send them a signal; those that are over, or not known, are left as they are.

    Cancelling sends SIGTERM, and SIGKILL after ``KillWait`` of slurm.conf (30 s unless it is set). A
    signal goes to the batch script, all it has started and all steps. Slurm retries a signal for a job
    that has not started for longer than the default of `timeout_s`. A task of an array is told by its id,
    such as ``12_3``: under its plain number `scancel` does not know it.

    Parameters
    ----------
    signal_name
        Such as ``USR1``; None: cancel.
    jobs, timeout_s, environment
        As for `squeue`.

    Raises
    ------
    SlurmError
        As `squeue`, and when the user may not cancel a job; the other jobs were cancelled then.
    """
    if not (ids := _ids(jobs)):
        return
    chosen = [] if signal_name is None else [f"--signal={signal_name}", "--full"]
    code, output, errors = await _outcome(("scancel", *chosen, *ids), timeout_s, environment)
    said = [line for line in errors.splitlines() if line.strip()]
    left = [line for line in said if not any(known in line for known in _ENDED)]
    if code and (left or not said):
        _checked("scancel", code, output, "\n".join(left))


async def own_job_end_s(environment: Mapping[str, str] | None = None) -> float | None:
    """When the time of the job that this process runs in is up, in seconds since 1970.

    From ``SLURM_JOB_END_TIME``, which newer releases set, else from `squeue`. None outside of a job, for
    a job without limit, and when Slurm does not answer, which is logged: a worker can do without.

    Parameters
    ----------
    environment
        Of the job; None: that of this process.
    """
    known = os.environ if environment is None else environment
    try:
        if (end_s := parse_time_s(known.get("SLURM_JOB_END_TIME", ""))) is not None:
            return end_s
    except SlurmError as error:
        logger.warning("SLURM_JOB_END_TIME is of no use, squeue is asked: %s", error)
    if not (job := known.get("SLURM_JOB_ID", "")):
        return None
    try:
        ends_s = await job_ends_s([job], environment=environment)
    except SlurmError as error:
        logger.warning("the end of job %s is not known: %s", job, error)
        return None
    end_s = ends_s.get(job, math.inf)
    return end_s if end_s < math.inf else None


async def job_ends_s(
    jobs: Iterable[str], *, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> dict[str, float]:
    """When the time of jobs that have begun is up now, in seconds since 1970; infinity: they have no limit.

    A time limit may be changed while a job runs (``scontrol update JobId=... TimeLimit=...``).

    Parameters
    ----------
    jobs
        The numbers that they have in their own environment as ``SLURM_JOB_ID``.
    timeout_s, environment
        As for `squeue`.

    Returns
    -------
    dict
        By number; those that wait, that are being ended, or that Slurm does not know, are left out.

    Raises
    ------
    SlurmError
        As `squeue`.
    """
    wanted = set(jobs)
    rows = await squeue(sorted(wanted), timeout_s=timeout_s, environment=environment)
    # components of a heterogeneous job and tasks of an array share an id, but not this number
    begun = {str(row.number): row for row in rows if _goes_on(row) and str(row.number) in wanted}
    ends_s = {job: math.inf if row.time_limit_s == math.inf else row.end_s for job, row in begun.items()}
    return {job: end_s for job, end_s in ends_s.items() if end_s is not None}


def _goes_on(row: QueuedJob) -> bool:
    """Whether the end that is shown is that of the time limit: not of a job that waits, or is being ended.

    One that is cancelled is shown to end at that moment; its processes have ``KillWait`` from SIGTERM on.
    """
    return row.state not in ("PENDING", "COMPLETING") and not is_over(row.state)


def own_switch() -> str | None:
    """The switches, from the top down to the leaf, by which this node is reached, as Slurm's topology has it.

    From ``SLURM_TOPOLOGY_ADDR``, which Slurm sets on each node of a job where a topology is configured, as in
    ``top.s1.n17``. None outside of a job, and where there is none.
    """
    names = os.environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    # the name of a node may have dots, those of switches do not
    switches = kinds.index("node") if "node" in kinds else 0
    return ".".join(names[:switches]) if 0 < switches < len(names) else None


async def own_kill_wait_s(environment: Mapping[str, str] | None = None) -> float | None:
    """Seconds from SIGTERM to SIGKILL of the job that this process runs in (``KillWait`` of slurm.conf).

    None outside of a job, and when Slurm does not answer, which is logged. Parameters are those of
    `own_job_end_s`.
    """
    known = os.environ if environment is None else environment
    if not known.get("SLURM_JOB_ID"):
        return None
    try:
        printed = await run("scontrol", "show", "config", environment=environment)
        return text.parse_kill_wait_s(printed)
    except SlurmError as error:
        logger.info("how long Slurm waits before it kills is not known: %s", error)
        return None


async def run(
    *command: str,
    timeout_s: float = TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    as_is: bool = False,
) -> str:
    """What one of Slurm's commands prints.

    Parameters
    ----------
    command
        The command and its arguments.
    timeout_s, environment
        As for `squeue`.
    as_is
        Leave the environment as it is: `sbatch` gives it to the job.

    Raises
    ------
    SlurmError
        When it is not on PATH, ends with another exit code than 0 (with its own message), or takes longer
        than `timeout_s`; it is killed then, and when the caller is cancelled.
    """
    return _checked(command[0], *await _outcome(command, timeout_s, environment, as_is))


def command_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment in which the commands print what `dask_hpc.slurm.text` reads.

    Parameters
    ----------
    environment
        What it is made from; None: that of this process.
    """
    base = os.environ if environment is None else environment
    kept = {name: value for name, value in base.items() if not name.startswith(_PREFERENCES)}
    # the last: ids of arrays with all their tasks, however many
    return kept | {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}


async def _outcome(
    command: tuple[str, ...], timeout_s: float, environment: Mapping[str, str] | None, as_is: bool = False
) -> tuple[int, str, str]:
    """Exit code, output and messages of a command."""
    name = command[0]
    settings = (
        dict(os.environ if environment is None else environment)
        if as_is
        else command_environment(environment)
    )
    path = settings.get("PATH", os.defpath)
    if (executable := shutil.which(name, path=path)) is None:
        raise SlurmError(f"{name} is not on PATH ({path}); load the site's Slurm module, or set PATH")
    try:
        process = await asyncio.create_subprocess_exec(
            executable,
            *command[1:],
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=settings,
            # sites wrap these commands in scripts: what hangs may be a child
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmError(f"{executable} cannot be run: {error.strerror or error}") from None
    talk = asyncio.ensure_future(process.communicate())
    try:
        # not until there is an exit code: what it has started may hold its output open
        await asyncio.wait({talk}, timeout=timeout_s)
    finally:
        if hangs := not talk.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # a process that waits for a dead file system cannot be killed; nobody is to wait for it
            await asyncio.wait({talk}, timeout=1)
            talk.cancel()
    if hangs:
        raise SlurmError(
            f"{name} did not end within {timeout_s:g} s and was killed; Slurm's controller or the file "
            "system may hang, or give it longer with timeout_s"
        )
    output, errors = talk.result()
    return process.returncode or 0, output.decode(errors="replace"), errors.decode(errors="replace")


def _checked(name: str, code: int, output: str, errors: str) -> str:
    if code == 0:
        return output
    said = errors.strip() or output.strip() or "it said nothing"
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    raise SlurmError(f"{name} {how}: {said if len(said) <= 500 else '...' + said[-500:]}")


def _ids(jobs: Iterable[JobId | int | str]) -> list[str]:
    """The ids as arguments; what is none of them never reaches a command line."""
    return [str(parse_job_id(str(job))) for job in jobs]
