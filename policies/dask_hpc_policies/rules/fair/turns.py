"""Whose turn it is on slots that jobs share: who would have ended first, had everybody had an equal share.

The fair sojourn protocol (Friedman and Henderson 2003, "Fairness and efficiency in web server protocols"):
a virtual cluster serves all jobs at once, in equal shares (processor sharing); the real one
serves them one after the other, in the order in which they end there. With exact sizes nobody ends later
than in equal shares, and most end much earlier: sooner than their share, because nobody is served for whose
work there is time later. So the wait of a large job beside many small ones is bounded by its share. Sizes
are expectations here, as in HFSP (Pastorelli et al. 2013): what a job has done, and what its unfinished
tasks are expected to take (0 while nothing is known: some are tried at once). Of a job that goes on
submitting, service that it has had ahead of its share counts against it: least attained service first.

Expectations change a little with every task that ends. Were the order to follow each of these changes,
jobs of equal size would pass each other again and again, and all of them end late, as in equal shares. So
when a job ends counts as it was until it has changed by much.

Shares are those of users, by weight, divided among a user's jobs; nobody's is more than its tasks can use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from dask_hpc_policies.rules.fair.shares import common_level

#: Work that is below this, in thread-seconds, is done.
_NOTHING_S = 1e-9
#: An end is the same as it was while it differs by less than this share of what is left.
_SAME = 0.25


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


@dataclass(frozen=True, slots=True)
class Virtual:
    """The virtual cluster at one moment."""

    #: Thread-seconds that each job has been served, by id; a job that is not there has just come.
    served_s: Mapping[str, float] = field(default_factory=dict)
    #: Its clock: what a job of weight 1 has been served, had one been there all the time.
    clock_s: float = 0.0
    #: What is known of the jobs that are there, and was of those that have ended and it still serves, by id.
    works: Mapping[str, Work] = field(default_factory=dict)
    #: When each of those that are there ends, on its clock, as far as the order of service goes, by id.
    end_s: Mapping[str, float] = field(default_factory=dict)


def advance(virtual: Virtual, works: Collection[Work], threads: int, seconds: float) -> Virtual:
    """The virtual cluster `seconds` later. Who has ended there is served no more.

    Who has ended, but not there, is not among `works` any more and is served to its end: else those that were
    to wait for it would get ahead of who comes later.
    """
    served_s, present = virtual.served_s, {work.id for work in works}
    gone = [work for id, work in virtual.works.items() if id not in present]
    works = [*works, *(replace(work, width=max(1, work.width)) for work in gone)]
    after = {work.id: _served_s(work, served_s) for work in works}
    known = [work for work in works if work.id in served_s and work.width > 0]
    clock_s = virtual.clock_s
    while seconds > 0 and (known := [work for work in known if _left_s(work, after) > _NOTHING_S]):
        widths, by_job = [work.width for work in known], _weights(known)
        weights = [by_job[work.id] for work in known]
        level = common_level([0] * len(known), widths, weights, min(threads, sum(widths)))
        shares = [min(weight * level, work.width) for work, weight in zip(known, weights, strict=True)]
        served = [(work, share) for work, share in zip(known, shares, strict=True) if share > 0]
        # until the first of them ends
        step_s = min([seconds, *(_left_s(work, after) / share for work, share in served)])
        for work, share in served:
            after[work.id] += share * step_s
        seconds -= step_s
        clock_s += level * step_s
    kept = {work.id: work for work in works if work.id in present or _left_s(work, after) > _NOTHING_S}
    there = Virtual({id: after[id] for id in kept}, clock_s, kept)
    end_s = ends(there, [work for work in works if work.id in present])
    old_s = virtual.end_s
    return replace(there, end_s={id: settled(old_s.get(id), end_s[id], clock_s) for id in end_s})


def ends(virtual: Virtual, works: Collection[Work]) -> dict[str, float]:
    """When each job ends, on the clock of the virtual cluster.

    It stays what it is when others come or go (as the finish numbers of weighted fair queueing do; Demers,
    Keshav and Shenker 1989), but for what is learned of the job and for users who divide their share anew.
    """
    weights = _weights([work for work in works if work.left_s > 0])
    return {
        work.id: virtual.clock_s + _left_s(work, virtual.served_s) / weights.get(work.id, work.weight)
        for work in works
    }


def settled(old_s: float | None, end_s: float, clock_s: float) -> float:
    """When a job ends, as it counts: as it did, unless that has changed by a quarter of what is left."""
    return end_s if old_s is None or abs(end_s - old_s) > _SAME * (end_s - clock_s) else old_s


def taken_over(virtual: Virtual, id: str, heir: str, done_s: float) -> Virtual:
    """The virtual cluster after what a job has done has become another one's: what it was served has, too.

    That work (`done_s`, in seconds of a slot) is then the other's (`Work.done_s`), and neither owes more for
    it than before. What the job was served beyond it, for work that is not there any more, is nobody's.
    """
    served_s = dict(virtual.served_s)
    if id in served_s:
        served_s[heir] = served_s.get(heir, 0.0) + min(served_s.pop(id), done_s)
    return replace(without(virtual, id), served_s=served_s)


def without(virtual: Virtual, id: str) -> Virtual:
    """The virtual cluster after a job has given up: what it has not done is not to be served there."""
    served_s, works, end_s = dict(virtual.served_s), dict(virtual.works), dict(virtual.end_s)
    for each in (served_s, works, end_s):
        each.pop(id, None)
    return Virtual(served_s, virtual.clock_s, works, end_s)


def ahead_s(virtual: Virtual) -> dict[str, float]:
    """Seconds of a slot that each job has done more than it was served there, by id; less than 0: fewer."""
    return {id: work.done_s - virtual.served_s[id] for id, work in virtual.works.items()}


def in_turn(virtual: Virtual, works: Collection[Work]) -> list[str]:
    """Ids of the jobs in the order in which they are served: larger priorities, then who ends first."""
    end_s = virtual.end_s
    if any(work.id not in end_s for work in works):
        end_s = {**ends(virtual, works), **end_s}

    def key(work: Work) -> tuple[int, float, float]:
        return -work.priority, end_s[work.id], work.submit_s

    return [work.id for work in sorted(works, key=key)]


def dealt(order: Iterable[str], most: Mapping[str, int], slots: int) -> dict[str, int]:
    """How many of the slots each job has when each goes to who is next; nobody takes more than its `most`.

    What asking for slot after slot comes to once every slot has changed hands: for forecasts and simulations,
    which know of no single task.
    """
    got = dict.fromkeys(most, 0)
    for id in order:
        if id in got:
            got[id] = min(most[id], slots)
            slots -= got[id]
    return got


def _served_s(work: Work, served_s: Mapping[str, float]) -> float:
    """What a job was served on the virtual cluster, as far as there is work for it.

    Of one that has done nothing yet, what there is is a guess by what others do: it takes nothing back.
    """
    was_s = served_s.get(work.id, 0.0)
    return min(was_s, work.done_s + work.left_s) if work.done_s else was_s


def _left_s(work: Work, served_s: Mapping[str, float]) -> float:
    """What is left of a job on the virtual cluster."""
    return max(0.0, work.done_s + work.left_s - served_s.get(work.id, 0.0))


def _weights(works: Collection[Work]) -> dict[str, float]:
    """Weight of each job: that of its user, the largest that a job of the user says, divided among them."""
    jobs = Counter([work.user for work in works])
    weights: dict[str, float] = {}
    for work in works:
        weights[work.user] = max(weights.get(work.user, 0.0), work.weight)
    return {work.id: weights[work.user] / jobs[work.user] for work in works}
