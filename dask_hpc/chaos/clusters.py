"""Clusters for runs: one of workers that come back, on two labelled hosts, and one that is killed whole."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client

import dask_hpc
from dask_hpc.chaos import work
from dask_hpc.chaos.plan import Plan
from dask_hpc.chaos.run import Outcome
from dask_hpc.chaos.work import BLOCKS
from dask_hpc.terminal import interrupts_later

#: Workers of a cluster that is killed, and of how many versions one of the first is its last.
WORKERS = 2
_MOST = 3


@contextmanager
def own(workers: int = 4) -> Iterator[dask_hpc.LocalCluster]:
    """A cluster of processes on this machine, half of them labelled as one host, half as another."""
    settings = {
        "distributed.scheduler.allowed-failures": 100,
        # a worker that takes longer than this to come back would be given up, which is not what is tried
        "distributed.deploy.lost-worker-timeout": "1 hour",
        # the least that it can be
        "distributed.scheduler.worker-ttl": "5 s",
        # what a cluster that is killed leaves is asked for at once
        "hpc.checkpoint.linger": "2 min",
    }
    with dask.config.set(settings), ExitStack() as stack:
        with interrupts_later():
            cluster = dask_hpc.LocalCluster(
                n_workers=workers - workers // 2,
                threads_per_worker=1,
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,
                env={"DASK_HPC__NODE__HOST": "host-a"},
                pools={"more": {"n_workers": workers // 2, "env": {"DASK_HPC__NODE__HOST": "host-b"}}},
            )
            stack.enter_context(cluster)
        yield cluster


def kill_all(client: Client, plan: Plan, folder: Path) -> Outcome:
    """Kill scheduler and workers of another cluster, and have its newest whole version back on this one."""
    outcome, store = Outcome(plan, killed=WORKERS), str(folder / "store")
    whole = _killed(plan, "L3", store, lambda process: os.killpg(process.pid, signal.SIGKILL))
    found = client.gather(dask_hpc.restore("versions", client, store=store))
    hold(work.told(found), whole, plan, outcome)
    return outcome


def lose_controller(plan: Plan, folder: Path) -> Outcome:
    """Kill the scheduler of a cluster of its own, and have the next one take over what is in memory."""
    outcome, store = Outcome(plan, killed=WORKERS), str(folder / "store")
    levels = ",".join(plan.levels)
    # the rest of it ends as it does when a scheduler is lost
    whole = _killed(plan, levels, store, subprocess.Popen.kill)
    with _process("successor", levels, store) as (_, lines):
        told = [json.loads(line.removeprefix("found ")) for line in _of(lines, "found")]
    hold(told[0] if told else [], whole, plan, outcome)
    return outcome


def _killed(plan: Plan, levels: str, store: str, kill: Callable[[subprocess.Popen[str]], None]) -> int:
    """Have a cluster killed at the plan's moment, and one that has its newest version back, if that is it.

    Gives the number of the newest version that was whole.
    """
    with _process("victim", levels, store, plan.elements) as (victim, lines):
        word = "computes" if plan.moment == "compute" else "writes"
        found = list(_until(lines, f"{word} {plan.draw % _MOST + 2}"))
        time.sleep(plan.after_s)
        kill(victim)
        # what it had said before
        found += lines
    if plan.moment == "restore":
        with _process("successor", levels, store, "killed") as (victim, lines):
            for _ in _until(lines, "reads"):
                pass
            time.sleep(plan.after_s)
            kill(victim)
    return max(map(_number, _of(iter(found), "whole")), default=0)


def say(line: str) -> None:
    """Say something to who has started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def hold(told: Sequence[Sequence[Any]], whole: int, plan: Plan, outcome: Outcome) -> None:
    """Hold what has come back (see `work.told`) against the number of a version that was whole."""
    outcome.restored = len(told)
    version = told[0][0] if told else 0
    if version < whole:
        outcome.lost = whole - version
        outcome.faults.append(f"version {whole} was whole, the newest is {version}")
    for number, (of, block, right) in enumerate(told):
        if (of, block) != (version, number) or not right:
            outcome.wrong += 1
            outcome.faults.append(f"block {number} of version {version} has other values")
    if len(told) != BLOCKS:
        outcome.lost += BLOCKS - len(told)
        outcome.faults.append(f"version {version} has {len(told)} of {BLOCKS} blocks")


@contextmanager
def _process(module: str, *arguments: Any) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """A cluster that is to be killed, and the lines that it says."""
    command = [sys.executable, "-m", f"dask_hpc.chaos.{module}", *map(str, arguments)]
    # what it leaves behind is said by processes that outlive it
    env = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=env
    ) as process:
        assert process.stdout is not None
        try:
            yield process, map(str.strip, process.stdout)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _of(lines: Iterator[str], word: str) -> Iterator[str]:
    return (line for line in lines if line.startswith(f"{word} "))


def _until(lines: Iterator[str], last: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line == last:
            return
    raise RuntimeError(f"a cluster has ended before it {last}")


def _number(line: str) -> int:
    return int(line.split()[1])
