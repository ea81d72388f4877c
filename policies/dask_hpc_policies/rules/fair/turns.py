"""Whose turn it is on slots that jobs share: who would have ended first, had everybody had an equal share.

The fair sojourn protocol (Friedman and Henderson 2003, "Fairness and efficiency in web server protocols"):
a virtual cluster serves all jobs at once, in equal shares (processor sharing); the real one
serves them one after the other, in the order in which they end there. With exact sizes nobody ends later
than in equal shares, and most end much earlier: sooner than their share, because nobody is served for whose
work there is time later. So the wait of a large job beside many small ones is bounded by its share. Sizes
are expectations here, as in HFSP (Pastorelli et al. 2013): what a job has done, and what its unfinished
tasks are expected to take (0 while nothing is known: some are tried at once). Of a job that goes on
submitting, service that it has had ahead of its share counts against it: least attained service first.

Shares are those of users, by weight, divided among a user's jobs; nobody's is more than its tasks can use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dask_hpc_policies.rules.fair.shares import Claim, common_level

#: Work that is below this, in thread-seconds, is done.
_NOTHING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is known of a job that shares slots; seconds are those of one thread."""

    id: str
    #: What its finished tasks took.
    done_s: float
    #: What its unfinished ones are expected to take.
    left_s: float
    #: Tasks that could run now.
    width: int
    user: str = ""
    weight: float = 1.0
    priority: int = 0
    submit_s: float = 0.0


def advance(
    served_s: Mapping[str, float], works: Collection[Work], threads: int, seconds: float
) -> dict[str, float]:
    """Thread-seconds that each job has been served on the virtual cluster, `seconds` later.

    A job that `served_s` does not hold has just come. Who has ended there is served no more.
    """
    present = [work for work in works if _left_s(work, served_s) > _NOTHING_S and work.width > 0]
    after = {work.id: min(served_s.get(work.id, 0.0), work.done_s + work.left_s) for work in works}
    known = [work for work in present if work.id in served_s]
    weights = _weights(known)
    claims = [Claim(0, work.width, weights[work.id]) for work in known]
    if known and seconds > 0:
        level = common_level(claims, min(threads, sum([claim.high for claim in claims])))
        for work, claim in zip(known, claims, strict=True):
            share = min(claim.weight * level, claim.high)
            after[work.id] = min(after[work.id] + share * seconds, work.done_s + work.left_s)
    return after


def in_turn(served_s: Mapping[str, float], works: Collection[Work]) -> list[str]:
    """Ids of the jobs in the order in which they are served: larger priorities, then who ends first."""
    weights = _weights([work for work in works if work.left_s > 0])

    def key(work: Work) -> tuple[int, float, float]:
        weight = weights.get(work.id, work.weight)
        return -work.priority, _left_s(work, served_s) / weight, work.submit_s

    return [work.id for work in sorted(works, key=key)]


def _left_s(work: Work, served_s: Mapping[str, float]) -> float:
    """What is left of a job on the virtual cluster."""
    return max(0.0, work.done_s + work.left_s - served_s.get(work.id, 0.0))


def _weights(works: Collection[Work]) -> dict[str, float]:
    """Weight of each job: that of its user, divided among the user's jobs."""
    jobs = Counter([work.user for work in works])
    return {work.id: work.weight / jobs[work.user] for work in works}
