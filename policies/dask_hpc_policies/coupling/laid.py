"""Where the blocks of producers lie, as that becomes known: one that cannot lie there is not taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dask_hpc_policies.coupling.contract import Field, uncovered

#: A producer's blocks: of each field where it begins, and how many indices it has.
Blocks = Sequence[tuple[str, Sequence[int], Sequence[int]]]


class Laid:
    """The blocks of a flow's producers, one of each field.

    Parameters
    ----------
    fields
        Of the flow.
    ranks
        How many producers it has.
    """

    def __init__(self, fields: Sequence[Field], ranks: int) -> None:
        self._fields = {one.name: one for one in fields}
        #: By rank: whether it is known where its blocks lie, and the last step of which it is.
        self._known = np.zeros(ranks, dtype=bool)
        self._step = np.zeros(ranks, dtype=np.int64)
        self._begin = {one.name: np.zeros((ranks, len(one.shape)), dtype=np.int64) for one in fields}
        self._end = {name: begin.copy() for name, begin in self._begin.items()}

    def lay(self, rank: int, step: int, blocks: Blocks, same: Iterable[int] = ()) -> str:
        """Note where the blocks of a rank lie at a step; why they cannot, if so, and then they are not noted.

        They overlap those that are known of that step, or are the last ones and leave a gap.

        Parameters
        ----------
        same
            Ranks that have sent that step, and whose blocks lie as before.
        """
        self._step[list(same)] = step
        others = self._known & (self._step == step)
        others[rank] = False
        for name, at, shape in blocks:
            begin, end = np.array(at), np.array(at) + shape
            meets = others & ((self._begin[name] < end) & (begin < self._end[name])).all(axis=1)
            if meets.any():
                other = int(meets.argmax())
                first = np.maximum(begin, self._begin[name][other]).tolist()
                named = ", ".join(
                    [f"{dim}={each}" for dim, each in zip(self._fields[name].dims, first, strict=True)]
                )
                return f"{name!r} has two blocks at {named}: rank {other} has sent that of step {step}"
        if others.sum() == len(others) - 1:
            for name, at, shape in blocks:
                ends = self._end[name] - self._begin[name]
                known = zip(self._begin[name][others].tolist(), ends[others].tolist(), strict=True)
                placed = [(tuple(begin), tuple(lengths)) for begin, lengths in known]
                if why := uncovered(self._fields[name], [*placed, (tuple(at), tuple(shape))]):
                    return f"{why}, and all other ranks have sent theirs of step {step}"
        for name, at, shape in blocks:
            self._begin[name][rank] = at
            self._end[name][rank] = np.array(at) + shape
        self._known[rank], self._step[rank] = True, step
        return ""
