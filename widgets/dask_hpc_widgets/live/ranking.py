"""Every registered policy from the present state of a cluster, and which serves a goal best.

Rules of the file: a snapshot and specifications in, runs of the simulator and markup out. No widget, no
cluster. A policy that cannot be run from there is named with the reason and ranks nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dask_hpc.errors import WorkloadError
from dask_hpc_policies import registry
from dask_hpc_policies.metrics import unended
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.view import seen
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.background import Cancelled
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.forms.model import is_custom, title
from dask_hpc_widgets.live.forecast import more_end
from dask_hpc_widgets.live.what_if import Progress, WhatIf, picture_of

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
        """What it comes to by a goal, in seconds or joules; None: not known, or the job does not end."""
        if self.result is None:
            return None
        if not goal.startswith(JOB):
            found: float | None = self.result.metrics(jobs=False).get(goal)
            return found
        run = next((one for one in self.result.runs if one.id == goal.removeprefix(JOB)), None)
        return None if run is None or run.end_s is None else run.end_s - (self.result.from_s or 0.0)

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

        Under whom more jobs end is better: who leaves some to wait for ever has the others end sooner.
        """
        found = [(one, value) for one in self.tried if (value := one.value(goal)) is not None]
        return sorted(found, key=lambda pair: (pair[0].unended(goal), round(pair[1], 6), not pair[0].runs))

    def best(self, goal: str) -> Tried | None:
        """What to choose instead of what runs; None when nothing is better."""
        ranked = self.ranked(goal)
        if not ranked:
            return None
        first, least = ranked[0]
        runs, present = next((pair for pair in ranked if pair[0].runs), (None, None))
        if runs is not None and runs.unended(goal) > first.unended(goal):
            return first
        return None if present is not None and present - least <= _SAME * present else first

    def what_if(self, chosen: Tried) -> WhatIf:
        """What `chosen` comes to beside what runs, as *Simulate* shows it."""
        runs = {f"{one.name}, as it runs": one.result for one in self.tried if one.runs and one.result}
        assert chosen.result is not None, "only what has a result ranks"
        runs[f"{chosen.name}, as chosen"] = chosen.result
        return WhatIf(runs=runs, knowledge=self.knowledge, forecast=picture_of(runs, self.view))

    def html(self, goal: str, label: str) -> Markup:
        """A table, the best first, each beside what runs."""
        ranked = self.ranked(goal)
        present = next((pair for pair in ranked if pair[0].runs), None)
        columns = (("Rank", True), ("Policies", False), (label, True), ("Beside what runs", False))
        rows: list[list[str]] = []
        for place, (one, value) in enumerate(ranked, 1):
            name = f"{one.name}, as it runs" if one.runs else one.name
            text, left = _text(goal, value), one.unended(goal)
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
        poor = sum(one.confidence == "poor" for one in self.knowledge)
        guess = f"Of {counted(poor, 'job')} little is known: take this for a guess." if poor else ""
        return Markup().join(
            [
                markup.table(columns, rows, f"Policies by {label.lower()}"),
                *(markup.soft(text) for text in (guess, stopped, *failed) if text),
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
    defaults = {name: registry.spec_of(registry.create(name)) for name in registry.names()}
    specs += [(name, False, spec) for name, spec in defaults.items() if spec != present]
    jobs, power = max(1, len(knowledge)), _power(view)
    tried: list[Tried] = []
    ranking = Ranking(knowledge=knowledge, count=len(specs), view=view)
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
            # a policy may be anybody's code
            failure = f"{type(error).__name__}: {error}"
        tried.append(Tried(name=name, runs=runs, result=result, failure=failure))
        ranking = Ranking(tried=tuple(tried), knowledge=knowledge, count=len(specs), view=view)
        found(ranking)
    progress(1.0)
    return ranking


def _power(view: ClusterSnapshot) -> NodePower | None:
    """What nodes draw, as far as the state says it."""
    from dask_hpc.sim.model.power import NodePower

    told = seen(view)
    return NodePower(idle_w=told.idle_w, busy_w=told.busy_w) if told is not None and told.busy_w else None


def _text(goal: str, value: float) -> str:
    if goal != ENERGY[1]:
        return markup.seconds(value)
    return f"{value / 3.6e6:.3g} kWh" if value >= 3.6e5 else f"{value / 1000:.3g} kJ"


def _beside(goal: str, here: tuple[Tried, float], runs: tuple[Tried, float]) -> str:
    (one, value), (other, present) = here, runs
    if more := other.unended(goal) - one.unended(goal):
        return more_end(more)
    if abs(value - present) <= _SAME * max(value, present):
        return "same"
    words = ("less", "more") if goal == ENERGY[1] else ("sooner", "later")
    return f"{_text(goal, abs(value - present))} {words[value > present]}"
