"""Which steps of a flow go on: ascending, each once, and no more of them at once than its queue holds.

The steps that are taken have turns, 0, 1, 2 and so on, whatever numbers the producers give them. Producers
send from several places; all of them have to send the same steps. A place asks once it has the first block of
a step, and every place is told the same of it. Where nothing is ever left out (`when_full` is ``wait``) the
place itself knows the turn of its next step, and takes it without asking while there is room (`room`).

Where the oldest step makes room (``drop-oldest``), none does that is being analysed: analyses that are slower
than the producers would never come to their end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Latest steps that are remembered, as those in flight are: a place that has moved may ask for them again.
_REMEMBERED = 64


class Verdict(NamedTuple):
    """What becomes of a step."""

    #: Its turn; None: it is left out.
    turn: int | None
    #: A turn that has to make room for it.
    ousted: int | None = None


def makes_room(flight: Iterable[int], begun: Container[int], computed: Container[int]) -> int | None:
    """The turn that makes room for a new step under ``drop-oldest``; None: the new one is left out.

    The oldest whose analyses have not begun, else the oldest whose values wait for whoever reads.

    Parameters
    ----------
    flight
        Turns in flight, oldest first.
    begun
        Those of which an analysis is known to have begun. The oldest that is not computed counts as begun:
        it is the next one.
    computed
        Those whose values are all there.
    """
    there = list(flight)
    coming = [turn for turn in there if turn not in computed]
    unbegun = [turn for turn in coming[1:] if turn not in begun]
    return next(iter(unbegun or [turn for turn in there if turn in computed]), None)


@dataclass(slots=True)
class _Step:
    turn: int | None
    #: Places that have asked for it, and those that have all its blocks.
    asked: set[int]
    whole: set[int]


class Turns:
    """The steps of one flow.

    Parameters
    ----------
    queue
        Steps that may be in flight: taken, and not done.
    when_full
        One of `contract.WHEN_FULL`.
    places
        How many there are.
    """

    def __init__(self, queue: int, when_full: str, places: int) -> None:
        self._queue, self._when_full, self._places = queue, when_full, places
        self._steps: dict[int, _Step] = {}
        #: The same by their turns, those that are left out left out.
        self._taken: dict[int, _Step] = {}
        self._last: int | None = None
        self._computed: set[int] = set()
        self._kept = 0
        #: The turn from which on a place has to ask; those below it may be taken unasked.
        self.room = queue if when_full == "wait" else 0
        #: Turns that have been given, and steps in flight by turn.
        self.given = 0
        self.flight: dict[int, int] = {}

    def ask(self, place: int, step: int, begun: Container[int] = ()) -> Verdict | None:
        """What becomes of a step of which a place has a block; None: it has to wait for room.

        `begun` are the turns of which an analysis has begun.

        Raises
        ------
        ValueError
            When that step cannot come now. Nothing is changed.
        """
        known = self._steps.get(step)
        if known is not None:
            known.asked.add(place)
            return Verdict(known.turn)
        if self._last is not None and step <= self._last:
            raise ValueError(f"step is {step}; allowed: above {self._last}, the last one, and each step once")
        for other, found in self._steps.items():
            if place not in found.asked:
                raise ValueError(
                    f"step is {step}; allowed: {other}, which other producers have sent, comes first"
                )
        ousted = None
        turn: int | None = self.given
        if len(self.flight) >= self._queue:
            if self._when_full == "wait":
                return None
            if self._when_full == "drop-oldest":
                ousted = makes_room(self.flight, begun, self._computed)
            if ousted is None:
                turn = None
            else:
                self.done(ousted)
        self._begin(place, step, turn)
        return Verdict(turn, ousted)

    def _begin(self, place: int, step: int, turn: int | None) -> None:
        began = self._steps[step] = _Step(turn, {place}, set())
        if turn is not None:
            self.given += 1
            self.flight[turn] = step
            self._taken[turn] = began
        self._last = step
        self._forget()

    def took(self, place: int, step: int, turn: int) -> bool:
        """A place has taken a step; whether it goes on: it may be lost by now, or forgotten as that old.

        Raises
        ------
        ValueError
            When another place has sent another step as that turn.
        """
        known = self._steps.get(step)
        if known is None and turn == self.given and (self._last is None or step > self._last):
            self._begin(place, step, turn)
            return True
        if known is None and turn < self.given and turn not in self._taken and turn not in self.flight:
            # all places have had it: what comes now is of a producer far behind the others of its place
            return False
        if known is None or known.turn not in (None, turn):
            other = self.flight.get(turn)
            raise ValueError(
                f"step {step} was sent where other producers have sent {'none' if other is None else other}"
            )
        known.asked.add(place)
        return known.turn is not None

    def whole(self, place: int, turn: int) -> bool:
        """A place has all its blocks of a turn; whether all places have theirs now, for the first time."""
        found = self._taken.get(turn)
        if found is None or place in found.whole:
            return False
        found.whole.add(place)
        return len(found.whole) == self._places

    def has(self, place: int, turn: int) -> bool:
        """Whether a place has had all its blocks of a turn."""
        found = self._taken.get(turn)
        return found is not None and place in found.whole

    def had(self, place: int, turn: int) -> bool:
        """The same, also of a turn that is forgotten, or will never be whole."""
        return self.has(place, turn) if turn in self._taken else turn < self.given

    def left(self, place: int, turn: int) -> int:
        """How many places have not had all their blocks of a turn; 0 when this one is none of them."""
        found = self._taken.get(turn)
        return 0 if found is None or place in found.whole else self._places - len(found.whole)

    def computed(self, turn: int) -> None:
        """All values of a turn are there, and wait for whoever reads."""
        if turn in self.flight:
            self._computed.add(turn)

    def done(self, turn: int) -> None:
        """Whoever is to have that turn has had it."""
        self._computed.discard(turn)
        if self.flight.pop(turn, None) is not None and self._when_full == "wait":
            self.room += 1

    def begun(self, place: int, upto: int | None = None) -> dict[int, int]:
        """Steps that go on and that a place has begun, by their turns, oldest first.

        With `upto` a producer says that it has sent its blocks of all steps up to that one: those are given.
        """
        if upto is not None and self._when_full == "wait" and (self._last is None or upto > self._last):
            # taken unasked, and nobody else has sent it yet
            self._begin(place, upto, self.given)
        found = {}
        for step, its in self._steps.items():
            # later ones went to the worker that has come in its place
            begun = place in its.asked if upto is None else step <= upto
            if begun:
                its.asked.add(place)
                if its.turn is not None:
                    found[its.turn] = step
        return found

    def lose(self, turn: int) -> None:
        """A turn will never be whole: blocks of it that still come are left out."""
        self.done(turn)
        if (found := self._taken.pop(turn, None)) is not None:
            found.turn = None

    def lacking(self, place: int, after: int | None) -> int | None:
        """The first step after one that has begun, and of which a place has not all blocks; None: none."""
        return next(
            (
                step
                for step, found in self._steps.items()
                if found.turn is not None and place not in found.whole and (after is None or step > after)
            ),
            None,
        )

    def remember(self, turns: int) -> None:
        """Windows reach back so many turns: blocks of them may have to be sent again."""
        self._kept = max(self._kept, turns)

    def _forget(self) -> None:
        # windows of those that are analysed now, however many have come since
        ends = [self.given, *[turn + 1 for turn in self.flight]]
        for step in list(self._steps)[:-_REMEMBERED]:
            found = self._steps[step]
            turn = found.turn
            if turn is not None and any(turn < end <= turn + max(1, self._kept) for end in ends):
                continue
            if len(found.asked) == self._places:
                del self._steps[step]
                if found.turn is not None:
                    del self._taken[found.turn]
