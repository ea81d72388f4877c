"""When a victim is interrupted: pure, the same live and in the simulator.

====================  ===================================================================================
now                   at once
next-checkpoint       when its next commit has ended: the one under way, else the next that comes; where
                      none comes by itself one is begun, so that nobody waits for ever
proactive-checkpoint  when a commit has ended that is begun now, or is under way
====================  ===================================================================================

A victim that commits nothing is interrupted at once, whatever the timing: there is nothing to wait for.
A commit that fails has ended, too. Whether the theft is feasible still is asked anew when it is due
(`rules.feasible`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dask_hpc_policies.decision import StealTiming

#: What is to be done with a theft: carry it out, wait for a commit, or begin one and wait for that.
When = Literal["now", "wait", "commit"]


class Saves(NamedTuple):
    """What is known of the commits of a job that makes some."""

    #: One has begun, or was asked for, and has not ended.
    under_way: bool
    #: One comes by itself, sooner or later.
    comes: bool


def when(timing: StealTiming, victim: str, saves: Saves | None) -> tuple[When, str]:
    """What is to be done with a theft that has just been decided, and why.

    Parameters
    ----------
    victim
        Id of the job that is interrupted.
    saves
        None: it makes no commits.
    """
    if timing == "now":
        return "now", "carried out"
    if saves is None:
        return "now", f"carried out at once: {victim} makes no commit that could be waited for ({timing})"
    if saves.under_way:
        return "wait", f"{victim} commits"
    if timing == "next-checkpoint" and saves.comes:
        return "wait", f"the next commit of {victim} comes by itself"
    return "commit", f"{victim} is to be interrupted after it ({timing})"
