"""Which node holds which part of a domain, and what has to move when that changes.

A domain is the index range ``0 .. size`` of one dimension; a layout gives each node one contiguous
range of it, or several, in order. The plan between two layouts is plain: every range of the new layout is put
together from the pieces of the old one that it overlaps, each piece cut where it lies. A planner that
moves less by choosing the new layout well has the same signature (`Planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

from dask_hpc_policies.numeric import whole


class LayoutError(ValueError):
    """A layout does not cover its domain; the message names the range and the node."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part that a node holds: the indices ``start`` up to, not including, ``stop``."""

    node: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of indices."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """Parts in order that cover a domain of `size` indices without gap or overlap."""

    size: int
    parts: tuple[Part, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes in order of their first parts."""
        return tuple(dict.fromkeys(part.node for part in self.parts))

    def check(self, nodes: Sequence[str], least: int = 1) -> None:
        """Refuse a layout that cannot be: it must give each of `nodes` a part of the domain, or several.

        Parameters
        ----------
        least
            Indices that every part needs at least (the width of what neighbours exchange).

        Raises
        ------
        LayoutError
        """
        at = 0
        for part in self.parts:
            if not (isinstance(part.start, Integral) and isinstance(part.stop, Integral)):
                raise LayoutError(
                    f"the part of {part.node} is {part.start!r}:{part.stop!r}; allowed: whole numbers"
                )
            if part.start != at:
                kind = "a gap" if part.start > at else "an overlap"
                raise LayoutError(
                    f"the layout has {kind} at index {min(at, part.start)}: the part of {part.node} starts "
                    f"at {part.start}; the part before it stops at {at}"
                )
            if part.size < least:
                raise LayoutError(
                    f"the part of {part.node} is {part.start}:{part.stop}, {part.size} of {self.size} "
                    f"indices; allowed: {least} or more (use fewer nodes or a larger domain)"
                )
            at = part.stop
        if at != self.size:
            raise LayoutError(f"the layout covers 0:{at}; the domain is 0:{self.size}")
        if sorted(self.nodes) != sorted(nodes):
            raise LayoutError(
                f"the layout is for the nodes {', '.join(self.nodes)}; it must give a part to each of "
                f"{', '.join(nodes)}"
            )


@dataclass(frozen=True, slots=True)
class Piece:
    """The indices ``start`` up to ``stop``, which the part number `source` of the old layout holds."""

    source: int
    start: int
    stop: int


#: Pieces, in order, that make up each part of the new layout.
Plan = tuple[tuple[Piece, ...], ...]
Planner = Callable[[Layout, Layout], Plan]


def even_layout(size: int, nodes: Sequence[str], blocks_per_node: int = 1) -> Layout:
    """Contiguous parts in the order of `nodes`, so many a node, whose sizes differ by at most one.

    Raises
    ------
    LayoutError
        When there are more parts than indices, or none.
    """
    count = len(nodes) * blocks_per_node
    if count < 1 or size < count:
        each = f" with {blocks_per_node} blocks each" if blocks_per_node != 1 else ""
        most = size // max(1, blocks_per_node)
        raise LayoutError(
            f"{size} indices cannot be laid out over {len(nodes)} nodes{each}; allowed: 1 to {most} nodes"
        )
    share, extra = divmod(size, count)
    parts, start = [], 0
    for number in range(count):
        stop = start + share + (number < extra)
        parts.append(Part(nodes[number // blocks_per_node], start, stop))
        start = stop
    return Layout(size, tuple(parts))


def checked_layout(layout: Any, size: int, nodes: Sequence[str], least: int, who: str) -> Layout:
    """What `who` gave as the layout of `size` indices over `nodes`, parts of at least `least` of them.

    Raises
    ------
    LayoutError
        When it is none.
    """
    if not isinstance(layout, Layout):
        raise LayoutError(f"{who} gave {layout!r}; needed: a Layout")
    if layout.size != size:
        raise LayoutError(f"{who} gave a layout of {layout.size} indices; the domain has {size}")
    layout.check(nodes, least)
    return layout


def checked_domain(size: Any, dim: Any) -> tuple[int, str]:
    """Number of indices and name of the dimension that a state is split along.

    Raises
    ------
    TypeError, ValueError
        When `dim` is no name; when `size` is no number of indices.
    """
    if (indices := whole(size)) is None or indices < 1:
        raise ValueError(f"size is {size!r:.80}; allowed: a number of indices, 1 or more")
    if not isinstance(dim, str) or not dim:
        raise TypeError(f"dim is {dim!r:.80}; needed: the name of the dimension that it is split along")
    return indices, dim


def checked_function(what: str, given: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is `given` as `what`; raises `TypeError` for anything else."""
    if not callable(given):
        raise TypeError(f"{what} is {given!r:.80}; needed: a function")
    return given


def layout_function(
    layout: Callable[[int, Sequence[str]], Layout] | None, blocks_per_node: int
) -> Callable[[int, Sequence[str]], Layout]:
    """What makes a layout from a number of indices and node names: `layout`, or an even one.

    Raises
    ------
    TypeError, ValueError
        When `layout` is no function; when `blocks_per_node` is no number of blocks, or a layout is given
        beside it.
    """
    blocks = whole(blocks_per_node)
    if blocks is None or blocks < 1:
        raise ValueError(f"blocks_per_node is {blocks_per_node!r}; allowed: a number of blocks, 1 or more")
    if layout is None:
        return partial(even_layout, blocks_per_node=blocks)
    if blocks != 1:
        raise ValueError(
            f"blocks_per_node is {blocks_per_node} beside a layout function, which says itself how many "
            "parts each node has; give one of them"
        )
    return checked_function("layout", layout)


def overlap_plan(old: Layout, new: Layout) -> Plan:
    """Every part of `new` from the pieces of `old` that it overlaps.

    Raises
    ------
    LayoutError
        When the layouts are of different domains.
    """
    if old.size != new.size:
        raise LayoutError(
            f"the old layout has {old.size} indices, the new one {new.size}; they must be equal"
        )
    plan, first = [], 0
    for target in new.parts:
        while old.parts[first].stop <= target.start:
            first += 1
        pieces, source = [], first
        while source < len(old.parts) and old.parts[source].start < target.stop:
            part = old.parts[source]
            pieces.append(Piece(source, max(part.start, target.start), min(part.stop, target.stop)))
            source += 1
        plan.append(tuple(pieces))
    return tuple(plan)


def indices_moved(old: Layout, new: Layout, plan: Plan) -> int:
    """Number of indices that change their node under `plan`."""
    return sum(
        piece.stop - piece.start
        for target, pieces in zip(new.parts, plan, strict=True)
        for piece in pieces
        if old.parts[piece.source].node != target.node
    )


def check_plan(old: Layout, new: Layout, plan: Plan) -> None:
    """Raise `LayoutError` unless the pieces of `plan` make up the parts of `new`."""
    if not isinstance(plan, tuple) or len(plan) != len(new.parts):
        what = f"pieces for {len(plan)} parts" if isinstance(plan, tuple) else repr(plan)
        raise LayoutError(
            f"the plan function gave {what}; needed: a tuple of pieces a part, {len(new.parts)}"
        )
    for part, pieces in zip(new.parts, plan, strict=True):
        at = part.start
        for piece in pieces:
            if not 0 <= piece.source < len(old.parts):
                raise LayoutError(
                    f"the plan for the part of {part.node} takes from source {piece.source}; allowed: 0 to "
                    f"{len(old.parts) - 1}"
                )
            source = old.parts[piece.source]
            if piece.start != at or not source.start <= piece.start < piece.stop <= source.stop:
                raise LayoutError(
                    f"the plan puts {piece.start}:{piece.stop} at index {at} of the part of {part.node}; its "
                    f"source holds {source.start}:{source.stop}"
                )
            at = piece.stop
        if at != part.stop:
            raise LayoutError(
                f"the plan for the part of {part.node} ends at {at}; it must end at {part.stop}"
            )
