"""At how many watts hosts are capped so that all together draw no more than may be drawn.

Power is divided as bandwidth is, max-min fair (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2):
hosts that draw less than the level keep what they draw, all others have the level.

Rules of the file: pure; what a capped host would draw without its cap is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: A host that draws this share of its cap would draw more.
_PRESSED = 0.95


@dataclass(frozen=True, slots=True)
class CappedHost:
    """A host that gives leave."""

    name: str
    #: What the part of it that is capped draws now: not its board and fans, where that is known.
    draw_w: float
    #: What it can be capped at.
    least_w: float
    most_w: float
    #: Its cap now; None: it has none.
    cap_w: float | None = None

    def at(self, level_w: float) -> float:
        """What it draws at most under a cap at `level_w`, as far as is known."""
        would_w = self.most_w if self.pressed else min(self.draw_w, self.most_w)
        return min(would_w, max(self.least_w, level_w))

    @property
    def pressed(self) -> bool:
        """Whether it would draw more than it may."""
        return self.cap_w is not None and self.draw_w >= _PRESSED * self.cap_w


def caps(upper_w: float, draw_w: float, hosts: Sequence[CappedHost]) -> Mapping[str, float]:
    """Watts of hosts that are to be capped, by name; empty: none needs to be.

    Parameters
    ----------
    upper_w
        What all nodes may draw.
    draw_w
        What they draw, those that give no leave included, and what of a host no cap is for.
    hosts
        Those that give it. Where even their least is too much they are capped at that.
    """
    budget_w = upper_w - (draw_w - sum(host.draw_w for host in hosts))
    top_w = max((host.most_w for host in hosts), default=0.0)
    if not hosts or sum(host.at(top_w) for host in hosts) <= budget_w:
        return {}
    # between two of these levels the sum is a line
    levels = sorted({0.0, top_w, *(w for host in hosts for w in (host.least_w, host.at(top_w)))})
    level_w = 0.0
    for low_w, high_w in pairwise(levels):
        below_w, above_w = (sum(host.at(level) for host in hosts) for level in (low_w, high_w))
        if above_w >= budget_w:
            rises_w = above_w - below_w
            share = 1.0 if rises_w <= 0 else min(1.0, max(0.0, (budget_w - below_w) / rises_w))
            level_w = low_w + share * (high_w - low_w)
            break
    return {host.name: min(host.most_w, max(host.least_w, level_w)) for host in hosts}
