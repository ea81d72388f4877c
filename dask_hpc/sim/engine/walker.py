"""A place in the program of an application.

Rules of the file: plain data that `copy.deepcopy` copies, and one step.
"""

from __future__ import annotations

from dask_hpc.sim.model.job import Program, Repeat, Stage, amount


class Walker:
    """A place in a program; `next` moves on by one stage that is not a repetition."""

    __slots__ = ("_frames",)

    def __init__(self, program: Program) -> None:
        #: Open repetitions, outermost first: stages, index of the next one, rounds left.
        self._frames: list[tuple[tuple[Stage, ...], int, int]] = [(program.stages, 0, 1)]

    def next(self, nodes: int) -> Stage | None:
        """The next stage on `nodes` nodes; None at the end of the program."""
        frames = self._frames
        while frames:
            stages, i, rounds = frames[-1]
            if i == len(stages):
                if rounds > 1:
                    frames[-1] = (stages, 0, rounds - 1)
                else:
                    frames.pop()
                continue
            frames[-1] = (stages, i + 1, rounds)
            stage = stages[i]
            if not isinstance(stage, Repeat):
                return stage
            times = round(amount(stage.times, nodes))
            if times > 0 and stage.stages:
                frames.append((stage.stages, 0, times))
        return None

    def insert(self, stages: tuple[Stage, ...]) -> None:
        """Do `stages` next, then go on from here."""
        if stages:
            self._frames.append((stages, 0, 1))

    def copy(self) -> Walker:
        """The same place, once more."""
        other = Walker.__new__(Walker)
        other._frames = list(self._frames)
        return other

    def __deepcopy__(self, _: object) -> Walker:
        return self.copy()
