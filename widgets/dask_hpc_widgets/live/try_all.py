"""Try all: which policy would serve a goal best from here, and a click that chooses it.

Rules of the file: decides nothing about policies; `ranking` does. Nothing reaches the cluster: what is chosen
here is applied, or not, by *Apply to cluster*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc.errors import DaskHPCError
from dask_hpc.report.looks import looks, printable
from dask_hpc_policies.params import ParameterError
from dask_hpc_widgets.base import background, markup
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.live.forecast import outdated, there
from dask_hpc_widgets.live.ranking import ENERGY, GOALS, JOB, Ranking, try_all
from dask_hpc_widgets.live.what_if import WhatIf
from dask_hpc_widgets.views import Picture

_FULL = {"width": "auto"}
_WRAP = {"width": "auto", "flex_flow": "row wrap"}
_BUTTON = {"width": "auto", "min_width": "8rem"}
#: Jobs whose end can be the goal, the first of those that are active.
_MAX_JOBS = 100
_id_and_name = itemgetter("id", "name")
_ANOTHER_TIME = "The time for jobs of which nothing is known was changed since"


class TryAll:
    """The part of the panel that ranks all policies.

    Parameters
    ----------
    runtime, link
        Of the cluster.
    choose
        Given the name of the policy that a person takes, and what it is predicted to do.
    assumed_s
        Gives how long a job takes of which nothing is known; raises `ParameterError` when that is no time.
    """

    def __init__(
        self,
        runtime: Runtime,
        link: Link,
        choose: Callable[[str, WhatIf], None],
        assumed_s: Callable[[], float],
    ) -> None:
        self._runtime, self._link, self._take, self._assumed_s = runtime, link, choose, assumed_s
        self.goal = widgets.Dropdown(
            description="Goal",
            tooltip="By what policies are ranked: less is better",
            options=GOALS,
            style={"description_width": "initial"},
            layout={"width": "auto", "max_width": "25rem"},
        )
        self.start = widgets.Button(
            description="Try all policies",
            tooltip="Simulate every policy from the present state; nothing is changed",
            layout=_BUTTON,
        )
        self.progress = widgets.FloatProgress(
            max=1.0, description="Simulating", style={"description_width": "initial"}
        )
        self.stop = widgets.Button(
            description="Stop trying", tooltip="End it; what was found stays", layout=_BUTTON
        )
        self._running = widgets.HBox([self.progress, self.stop], layout={**_WRAP, "display": "none"})
        self.best = widgets.Button(description="Choose", layout={**_BUTTON, "display": "none"})
        #: What came out, to be shown where it is wide.
        self.says = widgets.HTML(layout=_FULL)
        self.box = widgets.VBox(
            [
                widgets.HBox([self.goal, self.start, self.best], layout=_WRAP),
                self._running,
            ],
            layout=_FULL,
        )
        self.start.on_click(lambda _: self._try())
        self.stop.on_click(lambda _: self._work.cancel() if self._work else None)
        self.best.on_click(lambda _: self._choose())
        self.goal.observe(lambda _: self._show(), names="value")
        #: The goals, and the jobs whose ends are some, that there are to pick from.
        self._told: Any = None
        self._work: background.Work | None = None
        self._busy = False
        #: What was found, whole or up to where it was stopped.
        self._found = Ranking()
        #: The policy that ran when it was begun, and why what was found is not of now any more; empty: it is.
        self._present: Mapping[str, Any] = {}
        self._stale = ""
        #: Nodes that there were then.
        self._nodes = 0
        #: What was assumed for jobs of which nothing is known.
        self._tried_s = 0.0

    def report(self, picture: Picture) -> None:
        """Take what the cluster is now: each end can be a goal, and what was found may be of before."""
        self._age(picture)
        jobs = [row for row in picture.jobs if row["end_s"] is None and not row.get("is_default")]
        active = jobs[:_MAX_JOBS]
        goals = [*GOALS, *([ENERGY] if "chart" in picture.status.get("power", {}) else [])]
        told = (goals, [*map(_id_and_name, active)])
        if told != self._told:
            self._told = told
            self._offer(goals, active)

    def _offer(self, goals: Sequence[tuple[str, str]], active: Sequence[Mapping[str, Any]]) -> None:
        """Have these goals to pick from, and the end of each of these jobs."""
        styles = looks([row["id"] for row in active])
        options = list(goals)
        for row in active:
            name = printable(row["name"] or row["id"])
            options.append((f"End of {styles[row['id']].letter} {name}", f"{JOB}{row['id']}"))
        value = self.goal.value
        if tuple(options) != self.goal.options:
            # what ranks stays what was picked, though the job has ended since
            kept = value if value in {goal for _, goal in options} else GOALS[0][1]
            with self.goal.hold_trait_notifications():
                self.goal.options = options
                self.goal.value = kept

    def assumed_changed(self) -> None:
        """Jobs of which nothing is known are to take another time: what was found is chosen no more."""
        if self._found.tried and not self._busy:
            if not self._stale or self._stale == _ANOTHER_TIME:
                self._stale = "" if self._is_as_assumed() else _ANOTHER_TIME
            self._show()

    def _is_as_assumed(self) -> bool:
        try:
            return self._assumed_s() == self._tried_s
        except ParameterError:
            return False

    def _age(self, picture: Picture) -> None:
        if self._stale or self._busy or not self._found.tried:
            return
        if picture.status["policy"] != self._present:
            self._stale = "The cluster decides by another policy since"
        else:
            runs = [one.result for one in self._found.tried if one.result is not None]
            self._stale = outdated(runs[:1], self._nodes, picture) if runs else ""
        if self._stale:
            self._show()

    def close(self) -> None:
        """End what is under way."""
        if self._work is not None:
            self._work.cancel()

    # ---------------------------------------------------------------- people

    def _try(self) -> None:
        if self._busy:
            return
        try:
            assumed_s = self._assumed_s()
        except ParameterError as error:
            self._show(markup.alert(f"not tried: {error}"))
            return

        def seen(answer: Any) -> None:
            if isinstance(answer, Exception):
                ended(answer)
                return
            view, rows, present = answer
            self._present, self._nodes = present, there(view.nodes)
            self.progress.value = 0.0
            self._running.layout.display = "flex"
            self._work = background.Work(
                lambda progress: try_all(view, rows, present, assumed_s, progress, self._keep),
                self._progressed,
                ended,
            )

        def ended(outcome: Any) -> None:
            if self._link.closed:
                return
            self._work, self._busy, self.start.disabled = None, False, False
            self._running.layout.display = "none"
            if isinstance(outcome, Exception) and not isinstance(outcome, background.Cancelled):
                known = isinstance(outcome, (ValueError, DaskHPCError))
                error = str(outcome) if known else f"{type(outcome).__name__}: {outcome}"
                self._found = Ranking()
                self._show(markup.alert(f"not tried: {error}"))
            else:
                self._stale = "" if self._is_as_assumed() else _ANOTHER_TIME
                self._show()

        self._busy, self.start.disabled, self._tried_s = True, True, assumed_s
        self._found, self._stale = Ranking(), ""
        self._show(markup.soft("Trying all policies from the present state; the cluster is not touched."))
        self._link.ask(lambda: questions.state(self._runtime), seen)

    def _keep(self, ranking: Ranking) -> None:
        # called beside the loop: a whole value at a time
        self._found = ranking

    def _progressed(self, share: float) -> None:
        if not self._link.closed:
            self.progress.value = share

    def _choose(self) -> None:
        found = self._found
        best = found.best(self.goal.value)
        if best is None:
            return

        def drawn(outcome: Any) -> None:
            if not self._link.closed:
                self._take(best.name, outcome)

        # beside the loop: on a large cluster the picture takes a while
        background.Work(lambda _: found.what_if(best), lambda share: None, drawn)

    def _show(self, *said: str) -> None:
        """What was found, by the goal of now."""
        goal = self.goal.value
        best = None if self._busy else self._found.best(goal)
        offered = best is not None and not self._stale and self._is_as_assumed()
        self.best.layout.display = None if offered else "none"
        if best is not None:
            self.best.description = f"Choose {printable(best.name)}"
            self.best.tooltip = "Put it into the form, and what it is predicted to do into the picture"
        pieces: list[str] = list(said)
        if self._found.tried and not self._busy:
            label = next(text for text, value in self.goal.options if value == goal)
            told = f"Best: {best.name}." if best else "None is predicted to do better than what runs."
            stale = [markup.soft(f"Stale. {self._stale}: try again.")] if self._stale else []
            pieces += [*stale, markup.element("p", markup.strong(told)), self._found.html(goal, label)]
        self.says.value = markup.part(markup.status(*pieces)) if pieces else ""
