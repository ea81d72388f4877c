"""Every registered policy from the present state of a cluster, and which serves a goal best.

Rules of the file: a snapshot and specifications in, runs of the simulator and markup out. No widget, no
cluster. A policy that cannot be run from there is named with the reason and ranks nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any

from dask_hpc.errors import WorkloadError
from dask_hpc_policies import registry
from dask_hpc_policies.metrics import JobRun, ended_in_all, makespan_s, mean_turnaround_s, unended
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.view import seen
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.background import Cancelled
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.forms.model import is_custom, title
from dask_hpc_widgets.live.forecast import more_end
from dask_hpc_widgets.live.what_if import Progress, WhatIf, left_out, picture_of

if TYPE_CHECKING:
    from dask_hpc.sim.learned import Knowledge
    from dask_hpc.sim.model.power import NodePower
    from dask_hpc.sim.run import Result

#: Goals that need no job: label and metric. Less is better.
GOALS = (("Mean turnaround", "mean_turnaround_s"), ("Last end", "makespan_s"))
#: The goal that there is where the state says what nodes draw: while a power corridor is set.
ENERGY = ("Energy", "energy_j")
#: How the goal of one job begins; its id follows.
JOB = "job:"
#: How goals that are about the jobs that end come to their values, over any of these.
_OVER: Mapping[str, Callable[[Iterable[JobRun]], float | None]] = {
    "mean_turnaround_s": mean_turnaround_s,
    "makespan_s": makespan_s,
}
#: Differences below this part of a value are none.
_SAME = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One policy and what it comes to."""

    name: str
    #: Whether it is the one that decides now, with its parameters.
    runs: bool
    result: Result | None
    #: Why there is no result; empty when there is.
    failure: str = ""

    def value(self, goal: str) -> float | None:
        """What it comes to by a goal, in seconds or joules; None: not known; inf: nothing of it ends."""
        if self.result is None:
            return None
        if goal in _OVER:
            found = _OVER[goal](self.result.runs)
            return inf if found is None else found
        if not goal.startswith(JOB):
            told: float | None = self.result.metrics(jobs=False).get(goal)
            return told
        run = next((one for one in self.result.runs if one.id == goal.removeprefix(JOB)), None)
        if run is None:
            return None
        return inf if run.end_s is None else run.end_s - (self.result.from_s or 0.0)

    def unended(self, goal: str) -> int:
        """Jobs that do not end and that the goal is about: all, or, of the goal of one job, none."""
        return 0 if self.result is None or goal.startswith(JOB) else unended(self.result.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What was tried, the policy that runs first where it can be run; and what is known of each job."""

    tried: tuple[Tried, ...] = ()
    knowledge: tuple[Knowledge, ...] = ()
    #: Policies that there are; fewer were tried when it was stopped.
    count: int = 0
    #: What they were tried from.
    view: ClusterSnapshot = field(default_factory=lambda: ClusterSnapshot(now_s=0.0), repr=False)

    def ranked(self, goal: str) -> list[tuple[Tried, float]]:
        """Policies with what they come to by `goal`, the best first; of equal ones the one that runs.

        Under whom more jobs end is better: who leaves some to wait for ever has the others end sooner. Those
        under whom as many end are compared over the jobs that end under all of them.
        """
        found: list[tuple[Tried, float]] = []
        for group in self._groups(goal):
            values = [one.value(goal) for one in group]
            if goal in _OVER:
                values = [_OVER[goal](runs) for runs in _common(group)]
            pairs = [(one, inf if value is None else value) for one, value in zip(group, values, strict=True)]
            found += sorted(pairs, key=lambda pair: (round(pair[1], 6), not pair[0].runs))
        return found

    def _groups(self, goal: str) -> list[list[Tried]]:
        """Policies of which it is known what they come to, by how many jobs do not end, the fewest first."""
        groups: dict[int, list[Tried]] = {}
        for one in self.tried:
            if one.value(goal) is not None:
                groups.setdefault(one.unended(goal), []).append(one)
        return [groups[left] for left in sorted(groups)]

    def best(self, goal: str) -> Tried | None:
        """What to choose instead of what runs; None when nothing is better."""
        every = self.ranked(goal)
        ranked = [pair for pair in every if pair[1] < inf]
        runs, present = next((pair for pair in every if pair[0].runs), (None, inf))
        if not ranked or runs is None or runs.unended(goal) > ranked[0][0].unended(goal):
            return ranked[0][0] if ranked else None
        # nor one under which fewer end, where those that leave as many as what runs have no job in common
        left = [pair for pair in ranked if pair[0].unended(goal) <= runs.unended(goal)]
        first, least = next((pair for pair in left if _compare(goal, pair[0], runs)), (None, inf))
        return None if present < inf and present - least <= _SAME * present else first

    def what_if(self, chosen: Tried) -> WhatIf:
        """What `chosen` comes to beside what runs, as *Simulate* shows it."""
        runs = {f"{one.name}, as it runs": one.result for one in self.tried if one.runs and one.result}
        assert chosen.result is not None, "only what has a result ranks"
        runs[f"{chosen.name}, as chosen"] = chosen.result
        found = WhatIf(
            runs=runs,
            knowledge=self.knowledge,
            forecast=picture_of(runs, self.view),
            notes=tuple(left_out(self.view)),
        )
        # here, beside the loop of the kernel
        found.html()
        return found

    def _over(self, goal: str) -> dict[str, str]:
        """Of policies that are compared over some of their jobs that end alone: over how many, by name."""
        told = {}
        for group in self._groups(goal) if goal in _OVER else ():
            jobs = len(_common(group)[0])
            for one in group:
                if jobs and one.result is not None and jobs < len(ended_in_all([one.result.runs])[0]):
                    told[one.name] = f" over the {counted(jobs, 'job')} that all of these end"
        return told

    def html(self, goal: str, label: str) -> Markup:
        """A table, the best first, each beside what runs."""
        # late: most of the time of opening a panel would go to it
        from dask_hpc.sim.learned import guess

        ranked = self.ranked(goal)
        present = next((pair for pair in ranked if pair[0].runs), None)
        over = self._over(goal)
        columns = (("Rank", True), ("Policies", False), (label, True), ("Beside what runs", False))
        rows: list[list[str]] = []
        for place, (one, value) in enumerate(ranked, 1):
            name = f"{one.name}, as it runs" if one.runs else one.name
            text = _text(goal, value) + over.get(one.name, "")
            left = one.unended(goal)
            text += f"; {counted(left, 'job')} of then never end{'s' * (left == 1)}" if left else ""
            if rows and rows[-1][2] == text:
                # many do the same from here: they share a row
                rows[-1][1] += f"; {name}"
            else:
                rows.append(
                    [str(place), name, text, "" if present is None else _beside(goal, (one, value), present)]
                )
        failed = [f"{one.name} cannot be run from here: {one.failure}." for one in self.tried if one.failure]
        missing = self.count - len(self.tried)
        stopped = f"Stopped: {missing} of {self.count} not tried." if missing > 0 else ""
        return Markup().join(
            [
                markup.table(columns, rows, f"Policies by {label.lower()}"),
                *(
                    markup.soft(text)
                    for text in (guess(self.knowledge), stopped, *failed, *left_out(self.view))
                    if text
                ),
            ]
        )


def try_all(
    view: ClusterSnapshot,
    rows: Sequence[Mapping[str, Any]],
    present: Mapping[str, Any],
    assumed_s: float,
    progress: Progress = lambda share: None,
    found: Callable[[Ranking], None] = lambda ranking: None,
) -> Ranking:
    """Run every registered policy, with its default parameters, from the state `view`.

    Parameters
    ----------
    view, rows, present, assumed_s
        As `dask_hpc_widgets.live.what_if.what_if` takes them.
    progress
        Told the share that is done, often; raises `Cancelled` to end it.
    found
        Given what there is after each policy.

    Raises
    ------
    WorkloadError
        When there is no job or no node to go on from.
    ValueError
        When `assumed_s` is not above 0 and finite.
    """
    # late: most of the time of opening a panel would go to it
    from dask_hpc.sim.learned import learn
    from dask_hpc.sim.what_if import simulate_from

    learned, knowledge = learn(view, rows, assumed_s)
    specs: list[tuple[str, bool, Mapping[str, Any]]] = []
    if not is_custom(present):
        specs.append((title(present), True, present))
    tried: list[Tried] = []
    broken: list[Tried] = []
    for name in registry.names():
        try:
            own = registry.spec_of(registry.create(name))
        except Exception as error:
            # it may be anybody's code
            broken.append(Tried(name=name, runs=False, result=None, failure=_said(error)))
            continue
        if own != present:
            specs.append((name, False, own))
    jobs, power = max(1, len(knowledge)), _power(view)
    ranking = Ranking(knowledge=knowledge, count=len(specs) + len(broken), view=view)
    for place, (name, runs, spec) in enumerate(specs):

        def told(ended: int, place: int = place) -> None:
            progress((place + min(1.0, ended / jobs)) / len(specs))

        told(0)
        result, failure = None, ""
        try:
            result = simulate_from(learned, spec, progress=told, power=power, name="this cluster")
        except (Cancelled, WorkloadError):
            raise
        except Exception as error:
            failure = _said(error)
        tried.append(Tried(name=name, runs=runs, result=result, failure=failure))
        ranking = replace(ranking, tried=(*tried, *broken))
        found(ranking)
    progress(1.0)
    return ranking


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _power(view: ClusterSnapshot) -> NodePower | None:
    """What nodes draw, as far as the state says it."""
    from dask_hpc.sim.model.power import NodePower

    told = seen(view)
    return NodePower(idle_w=told.idle_w, busy_w=told.busy_w) if told is not None and told.busy_w else None


def _common(group: Sequence[Tried]) -> tuple[tuple[JobRun, ...], ...]:
    """Of each the jobs that end under all of them."""
    return ended_in_all(one.result.runs for one in group if one.result is not None)


def _compare(goal: str, one: Tried, other: Tried) -> bool:
    """Whether what both come to can be compared: energy is that of a run, so where the same jobs end."""
    if goal != ENERGY[1] or one.result is None or other.result is None:
        return True
    ended = [{run.id for run in ended_in_all([runs])[0]} for runs in (one.result.runs, other.result.runs)]
    return ended[0] == ended[1]


def _text(goal: str, value: float) -> str:
    if value == inf:
        return "never" if goal.startswith(JOB) else "no job ends under all of these"
    if goal != ENERGY[1]:
        return markup.seconds(value)
    return f"{value / 3.6e6:.3g} kWh" if value >= 3.6e5 else f"{value / 1000:.3g} kJ"


def _beside(goal: str, here: tuple[Tried, float], runs: tuple[Tried, float]) -> str:
    (one, value), (other, present) = here, runs
    if more := other.unended(goal) - one.unended(goal):
        return more_end(more)
    if not _compare(goal, one, other):
        return "of other jobs"
    if inf in (value, present):
        return "same" if value == present else "never ends" if value == inf else "ends"
    if abs(value - present) <= _SAME * max(value, present):
        return "same"
    words = ("less", "more") if goal == ENERGY[1] else ("sooner", "later")
    return f"{_text(goal, abs(value - present))} {words[value > present]}"
