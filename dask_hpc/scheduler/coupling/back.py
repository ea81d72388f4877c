"""How long a producer may take to come to its worker, or to another one after that was lost.

It notices that its worker is lost with its next `send`: nobody can tell one that computes from one that has
died with the worker. Rules of the file: pure, nothing of Dask.
"""

from __future__ import annotations

#: It is taken for dead after so many seconds, and so many times the longest step.
BACK_S, BACK_STEPS = 60.0, 10.0
#: The same while nobody knows how long a step takes.
FIRST_S = 3600.0


def back_s(begun: int, been: bool, step_s: float) -> float:
    """Seconds that a producer has.

    Parameters
    ----------
    begun
        Steps of its flow that have begun; between the first two of them lies the first known length.
    been
        Whether it has been connected to a worker. One that has not is on its way, and computes nothing.
    step_s
        The longest step so far, in seconds, that amid which its worker was lost included.
    """
    return FIRST_S if been and begun < 2 else max(BACK_S, BACK_STEPS * step_s)


def not_back(rank: int, most_s: float) -> str:
    """Why a flow has failed whose producer has not come for so long."""
    return (
        f"rank {rank} has not come for {most_s:.0f} s; allowed: {BACK_S:g} s or {BACK_STEPS:g} times the "
        f"longest step, and {FIRST_S:g} s before there are two. It has died, or its step takes longer: have "
        "workers stay that take blocks (cluster.pin, or a minimum for cluster.adapt)"
    )
