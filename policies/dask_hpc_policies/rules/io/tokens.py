"""How many tasks are to read and write at once: learned from what bandwidth they get together.

A file system gives more to several at once, up to where it is saturated; beyond that each waits longer for
its share, and where they are in each other's way all together get less. The number wanted is the fewest whose
bandwidth is within 5 % of the best.

The search doubles the number while that pays, or halves it while fewer get more, then halves the gaps around
the best, and below the fewest that are enough. It trusts that bandwidth rises to its best and does not rise
again after it. It begins anew from where it is when the bandwidth there has changed for some time, and every
so often, since more than now may pay by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

#: As good as the best: within so much of it.
ENOUGH = 0.95
#: A better one is looked for between the best and those tried beside it, down to this share of it.
FINE = 32
#: Samples of a number before it is judged.
SAMPLES = 2
#: The latest samples of the number that was found; that many are looked at for a change.
RECENT = 4
#: Their mean has changed when it is off by more than this.
CHANGED = 0.2
#: Samples of the number that was found after which others are tried again.
AGAIN = 64


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is known, and the number to use now.

    Attributes
    ----------
    now
        Tasks that are to read and write at once.
    rates
        Mean bandwidth in bytes a second, and the number of samples, by number of tasks.
    settled
        Whether `now` is the number wanted; else it is tried.
    """

    now: int
    rates: Mapping[int, tuple[float, int]] = field(default_factory=dict)
    settled: bool = False
    recent: tuple[float, ...] = ()
    used: int = 0

    def __post_init__(self) -> None:
        if self.now < 1:
            raise ValueError(f"now is {self.now}; allowed: 1 and more")

    @property
    def best_bytes_s(self) -> float:
        """The best mean of the numbers that were tried; 0 while none was."""
        return max((mean for mean, _ in self.rates.values()), default=0.0)

    def seen(self, tasks: int, bytes_s: float, most: int) -> Tokens:
        """After one more sample.

        Parameters
        ----------
        tasks
            How many have read and written at once; a sample of another number than `now` is passed over.
        bytes_s
            What they got together.
        most
            As many tasks as can run at once.
        """
        if tasks != self.now or not bytes_s > 0:
            return self
        if self.settled:
            return self._watched(bytes_s, most)
        mean, count = self.rates.get(tasks, (0.0, 0))
        rates = {**self.rates, tasks: ((mean * count + bytes_s) / (count + 1), count + 1)}
        if count + 1 < SAMPLES:
            return replace(self, rates=rates)
        return self._judged(rates, most)

    def _judged(self, rates: Mapping[int, tuple[float, int]], most: int) -> Tokens:
        tried = following(rates, most)
        if tried is not None:
            return Tokens(tried, rates)
        return Tokens(fewest(rates), rates, settled=True)

    def _watched(self, bytes_s: float, most: int) -> Tokens:
        recent, used = (*self.recent, bytes_s)[-RECENT:], self.used + 1
        mean = sum(recent) / len(recent)
        changed = len(recent) == RECENT and abs(mean / self.rates[self.now][0] - 1) > CHANGED
        if changed or used >= AGAIN:
            return self._judged({self.now: (mean, len(recent))}, most)
        return replace(self, recent=recent, used=used)


def fewest(rates: Mapping[int, tuple[float, int]]) -> int:
    """The fewest of the numbers tried that are within 5 % of the best."""
    best = max(mean for mean, _ in rates.values())
    return min(tasks for tasks, (mean, _) in rates.items() if mean >= ENOUGH * best)


def following(rates: Mapping[int, tuple[float, int]], most: int) -> int | None:
    """The number to try next; None when the one wanted is known."""
    tried = sorted(rates)
    best, enough = max(tried, key=lambda tasks: rates[tasks][0]), fewest(rates)
    if enough == best == tried[-1] < most:
        return min(2 * best, most)
    if best == tried[0] > 1 and len(tried) > 1:
        # rather than one between: with fewer a sample is there sooner, too
        return best // 2
    place = tried.index(best)
    for beside in (*tried[place + 1 : place + 2], *tried[max(0, place - 1) : place]):
        if abs(beside - best) > max(1, best // FINE):
            return (beside + best) // 2
    short = max((tasks for tasks in tried if tasks < enough), default=0)
    return (short + enough) // 2 if enough - short > 1 else None
