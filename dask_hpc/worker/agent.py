"""The agent of a worker: has it emptied before the batch system ends it.

``dask worker --preload dask_hpc.agent --preload-nanny dask_hpc.agent tcp://...``, or in the configuration

.. code-block:: yaml

    distributed:
      worker:
        preload: [dask_hpc.agent]
      nanny:
        preload: [dask_hpc.agent]

Before the end of the walltime, on a notice (SIGUSR1) and on SIGTERM, the scheduler is asked to let the
worker finish what it executes and to move what only it holds. The scheduler needs dask_hpc, too.

Shortly before a worker would be emptied for the end of its Slurm job, and right before that, Slurm is asked
again: a time limit that was extended meanwhile keeps it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from distributed import Nanny
from distributed.core import Status

from dask_hpc.config import Settings, settings
from dask_hpc.errors import DaskHPCError, SlurmError
from dask_hpc.slurm.commands import job_ends_s, own_job_end_s, own_kill_wait_s
from dask_hpc.worker.answers import answered
from dask_hpc.worker.node import END_VARIABLE, LIMIT_VARIABLE, walltime_end_s

# below distributed's own, so that what a worker says is in its log without further configuration
logger = logging.getLogger("distributed.dask_hpc.agent")

#: By how long before SIGKILL a worker has to be through.
_BEFORE_KILL_S = 2.0
#: How long `squeue` may take at most to say whether a job has got more time; asked so long before it counts.
_ASK_AGAIN_S = 5.0
#: Not all agents of a large job ask at once; they do within so many seconds.
_SPREAD_S = 10
#: Who was not given more time by then asks again right before it is emptied, if there is time for that.
_LEAST_ASK_S = 0.5
#: Ends that differ by less are the same.
_SAME_S = 1.0
#: How long the scheduler may take to answer a call.
_CONNECT_S = 3.0
#: One that did not answer is asked again after so long, in seconds.
_AGAIN_S = 0.5
#: Agents by their nanny or worker.
_agents: dict[Any, Agent] = {}


class Agent:
    """Watches over one worker, from its nanny or from itself.

    Parameters
    ----------
    server
        The nanny, or a worker without one.
    settings
        How long before its end a worker is emptied.
    """

    def __init__(self, server: Any, settings: Settings) -> None:
        self.server = server
        self.settings = settings
        #: When the walltime ends by the setting alone.
        self.limit_end_s = walltime_end_s(settings.walltime_limit_s, None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving = asyncio.Lock()
        #: When the worker has to be empty that is being emptied, on the clock of the machine.
        self._deadline_s = 0.0
        #: Address of the worker that has left: its nanny may have started another one since.
        self._left: str | None = None
        #: SIGTERM has come, or the like: the walltime takes no time from the worker any more.
        self.is_ended = False

    def start(self, ends_s: float | None) -> None:
        """Watch for signals and, if it is known, for the end of the walltime (seconds since the epoch)."""
        try:
            # one process may have several nannies
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, notice_all)
        except (RuntimeError, ValueError) as error:
            # signals reach the main thread only, which a worker inside a program does not run in
            logger.info("A notice by SIGUSR1 is not heard here: %s", error)
        if not isinstance(self.server, Nanny):
            logger.warning(
                "This worker has no nanny: SIGTERM ends it at once, with all that only it holds. Start it "
                "with a nanny; the end of the walltime and SIGUSR1 are served all the same."
            )
        if ends_s is not None:
            self._spawn(self._wait_for_end(ends_s))
        # a Slurm that is slow to answer does not keep the worker from starting
        self._spawn(self._learn_kill_wait())

    async def _learn_kill_wait(self) -> None:
        self.kills_after(await own_kill_wait_s())

    def kills_after(self, kill_wait_s: float | None) -> None:
        """The batch system kills so many seconds after SIGTERM; None: nobody knows."""
        if kill_wait_s is None or self.settings.kill_delay_s <= kill_wait_s - _BEFORE_KILL_S:
            return
        within_s = max(kill_wait_s / 2, kill_wait_s - _BEFORE_KILL_S)
        logger.warning(
            "Slurm kills %.0f s after SIGTERM (KillWait), hpc.kill-delay is %.0f s: %.1f s are counted on",
            kill_wait_s,
            self.settings.kill_delay_s,
            within_s,
        )
        self.settings = self.settings.updated(kill_delay_s=within_s)

    def stop(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()

    async def leave(self, within_s: float, why: str) -> None:
        """Have the worker emptied in at most `within_s` seconds; once is enough, unless time is cut.

        A scheduler that is there and does not answer now is asked again as long as there is time.
        """
        deadline_s = time.monotonic() + within_s
        if self._leaving.locked() and deadline_s < self._deadline_s:
            # the scheduler hurries with what it is doing already
            await self._leave_by(deadline_s, why)
            return
        async with self._leaving:
            await self._leave_by(deadline_s, why)

    async def _leave_by(self, deadline_s: float, why: str) -> None:
        self._deadline_s = deadline_s
        address = await self._started(deadline_s)
        if address is None or address == self._left:
            return
        while True:
            within_s = max(0.0, deadline_s - time.monotonic())
            try:
                answer = await asyncio.wait_for(self._ask(address, within_s, why), within_s + 1.0)
                break
            except (TimeoutError, OSError, DaskHPCError) as error:
                busy = not isinstance(error, DaskHPCError) and within_s >= _AGAIN_S
                if not busy or deadline_s > self._deadline_s or await self._is_gone():
                    text = "Worker %s was not emptied (%s): %s"
                    logger.warning(text, address, why, str(error) or repr(error))
                    return
            await asyncio.sleep(_AGAIN_S)
        if self._left == address:
            return  # it was asked for twice, and that is said
        self._left = address
        spilled = answer.pop("spilled", [])
        left = {what: keys for what, keys in answer.items() if keys}
        if spilled:
            logger.info("Worker %s leaves %d results on disk: they come back", address, len(spilled))
        if left:
            logger.warning("Worker %s leaves (%s) and leaves behind: %s", address, why, left)
        else:
            logger.info("Worker %s leaves (%s); nothing is lost", address, why)

    async def _started(self, deadline_s: float) -> str | None:
        """Address of the worker, waited for while it is starting; None when there is none."""
        server = self.server
        if not isinstance(server, Nanny):
            return str(server.address)
        # it may be in the scheduler already, and its nanny does not know yet
        while server.process is not None and server.process.status == Status.starting:
            if time.monotonic() > deadline_s:
                return None
            await asyncio.sleep(0.05)
        running = server.process is not None and server.process.status == Status.running
        return server.worker_address if running else None

    async def _ask(self, address: str, within_s: float, why: str) -> dict[str, list[str]]:
        pool, scheduler = self.server.rpc, self.server.scheduler.addr
        # a scheduler that has gone is no reason to stay for long
        pool.reuse(scheduler, await asyncio.wait_for(pool.connect(scheduler), _CONNECT_S))
        arguments = {"worker": address, "within_s": within_s, "reason": why}
        answer = await self.server.scheduler.hpc(method="depart", arguments=arguments)
        result: dict[str, list[str]] = answered(answer)
        return result

    async def _is_gone(self) -> bool:
        """Whether nobody listens any more where the scheduler was: one that is busy takes connections."""
        told = urlsplit(self.server.scheduler.addr)
        try:
            opening = asyncio.open_connection(told.hostname, told.port)
            _, writer = await asyncio.wait_for(opening, _CONNECT_S)
        except TimeoutError:
            return False  # too many wait for it
        except OSError:
            return True
        writer.close()
        return False

    async def _wait_for_end(self, ends_s: float) -> None:
        margin_s = self.settings.walltime_margin_s
        # of a large job's agents, not all ask at the same moment
        turn = os.getpid() % _SPREAD_S
        while True:
            notice_s = self._notice_s(ends_s - margin_s - time.time())
            early = (_ASK_AGAIN_S + turn, _ASK_AGAIN_S)
            # a squeue that hangs takes from the notice; one that is given no time answers nothing
            last = (turn / _SPREAD_S * min(_SPREAD_S, notice_s / 12), min(_ASK_AGAIN_S, notice_s / 4))
            begins_s, asked_s = ends_s - margin_s - notice_s, ends_s
            for before_s, timeout_s in (early, last):
                if timeout_s < _LEAST_ASK_S:
                    continue
                await asyncio.sleep(min(begins_s, asked_s - margin_s) - before_s - time.time())
                asked_s = await self._end_now(asked_s, timeout_s)
                if asked_s > ends_s + _SAME_S:
                    break
            else:
                await asyncio.sleep(min(begins_s, asked_s - margin_s) - time.time())
                if not self.is_ended:
                    await self.leave(max(0.0, asked_s - margin_s - time.time()), "its walltime ends")
                return
            logger.info("The walltime of this worker ends %.0f s later than it did", asked_s - ends_s)
            ends_s = asked_s

    def _notice_s(self, left_s: float) -> float:
        """How long before the end of a worker that takes tasks for so long it is emptied."""
        margin_s, notice_s = self.settings.walltime_margin_s, self.settings.walltime_notice_s
        if left_s >= notice_s:
            return notice_s
        logger.warning(
            "The walltime ends in %.0f s: less than hpc.walltime.notice (%.0f s) and hpc.walltime.margin "
            "(%.0f s) together; the worker takes tasks for half of that time only",
            left_s + margin_s,
            notice_s,
            margin_s,
        )
        return max(0.0, left_s) / 2

    async def _end_now(self, known_s: float, timeout_s: float) -> float:
        """When the walltime ends as Slurm sees it now; `known_s` without a job, and when it does not tell."""
        job = os.environ.get("SLURM_JOB_ID")
        if not job:
            return known_s
        try:
            job_end_s = (await job_ends_s([job], timeout_s=timeout_s)).get(job)
        except SlurmError as error:
            logger.info("Whether job %s has got more time is not known: %s", job, error)
            return known_s
        if job_end_s is None:
            return known_s
        end_s = job_end_s if self.limit_end_s is None else min(self.limit_end_s, job_end_s)
        if isinstance(self.server, Nanny):
            # what its worker will be told when it is started again
            self.server.env[END_VARIABLE] = repr(end_s)
        return end_s

    def noticed(self) -> None:
        """The batch system has said that the end is near."""
        self._spawn(self.leave(self.settings.walltime_notice_s, "notice by SIGUSR1"))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def notice_all() -> None:
    """The batch system has said that the end of this process is near."""
    for agent in list(_agents.values()):
        agent.noticed()


async def dask_setup(server: Any) -> None:
    """Start the agent of a nanny, or of a worker without one."""
    if not isinstance(server, Nanny) and getattr(server, "nanny", None):
        # its nanny has an agent, and decides when it ends; batch systems signal every process of a job
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return
    agent = _agents[server] = Agent(server, settings())
    end_s = walltime_end_s(agent.settings.walltime_limit_s, await own_job_end_s())
    if end_s is not None and isinstance(server, Nanny):
        # the worker may be started again and tells the scheduler; what counts is when it is ended from here
        server.env[END_VARIABLE] = repr(end_s)
        if agent.limit_end_s is not None:
            server.env[LIMIT_VARIABLE] = repr(agent.limit_end_s)
    agent.start(end_s)


async def dask_teardown(server: Any) -> None:
    """Before the worker is ended, by SIGTERM or otherwise, empty it if there is anything left."""
    agent = _agents.pop(server, None)
    if agent is not None:
        agent.is_ended = True
        if isinstance(server, Nanny):
            await agent.leave(agent.settings.kill_delay_s, "it is being ended")
        agent.stop()
