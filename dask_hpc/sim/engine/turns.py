"""Turns in a run: jobs that asked for no nodes of their own share slots, in the order of the live cluster.

Rules of the file: whose turn it is says `dask_hpc_policies.rules.fair.turns`, which the scheduler asks for
each slot that is free; here all of them are dealt out whenever anything happens, as if every slot had changed
hands at once: live it does when its task ends. Which jobs take turns, and where, is as in
`dask_hpc.scheduler.placing.sharing`: those without a node on the nodes of the others; under a policy that
says so (``in_turn``) all of them on all, as far as their tasks are short enough to be lent. Plain work is not
there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dask_hpc_policies.rules.fair.turns import Virtual, Work, advance, dealt, in_turn
from dask_hpc_policies.rules.lending import Party


class TurnTaking:
    """The virtual cluster of the jobs that take turns: how far each is ahead, and in how long it ends there.

    Both are as live when the run begins; the order of service goes by these ends.
    """

    def __init__(self, ahead_s: Mapping[str, float], ends_s: Mapping[str, float] | None = None) -> None:
        self._done_s = {id: max(0.0, seconds) for id, seconds in ahead_s.items()}
        served_s = {id: max(0.0, -seconds) for id, seconds in ahead_s.items()}
        self._virtual = Virtual(served_s, end_s=ends_s or {})
        #: What was left of each job when it was seen first, in seconds of a slot.
        self._first_s: dict[str, float] = {}
        self._at_s: float | None = None
        self._works: list[Work] = []
        self._slots = 0

    def takes(self, id: str) -> bool:
        """Whether a job of the id takes turns."""
        return id in self._done_s

    def advance(self, now_s: float, works: Collection[Work], slots: int) -> list[str]:
        """Let the virtual cluster of so many slots serve until now, and say who is served in which order.

        `works` say what is left of each of the jobs.
        """
        served = self._virtual
        if self._at_s is not None:  # who was there until now
            served = advance(served, self._works, self._slots, now_s - self._at_s)
        self._works, self._slots, self._at_s = [self._since(work) for work in works], slots, now_s
        self._virtual = advance(served, self._works, slots, 0.0)
        return in_turn(self._virtual, self._works)

    def _since(self, work: Work) -> Work:
        first_s = self._first_s.setdefault(work.id, work.left_s)
        return replace(work, done_s=self._done_s[work.id] + max(0.0, first_s - work.left_s))


def shared(parties: Mapping[str, Party], order: Collection[str], all_of_them: bool) -> dict[str, int]:
    """How many of their slots each of the jobs runs on, by its id; what is left is for who borrows.

    `all_of_them`: whether those that have nodes run on the others' as well.
    """
    most = {
        id: party.tasks if not party.own or (all_of_them and party.borrows) else min(party.own, party.tasks)
        for id, party in parties.items()
    }
    return dealt(order, most, sum(party.own for party in parties.values()))
