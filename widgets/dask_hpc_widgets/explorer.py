"""The simulation explorer: several policies on one workload, compared, without any cluster.

Rules of the file: puts the parts together. What is chosen is in the forms' models, what is run in
`exploration`; only `background` crosses threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dask_hpc.errors import DaskHPCError
from dask_hpc_widgets.base import background, markup
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base.background import Progress
from dask_hpc_widgets.explore import exploration
from dask_hpc_widgets.explore.exploration import Explored, Plan
from dask_hpc_widgets.forms.fields import LABELLED, below, row
from dask_hpc_widgets.forms.policies import PoliciesForm
from dask_hpc_widgets.forms.workload import WorkloadForm
from dask_hpc_widgets.forms.workload_model import WorkloadModel

_FULL = {"width": "auto"}
_WRAP = {"width": "auto", "flex_flow": "row wrap", "align_items": "center"}


#: What errors call an option of the command line, and the field here.
_FIELDS = (
    ("take a larger --nodes, or --wide drop or clip", "take a larger Machine, or drop or clip wider jobs"),
    ("give --nodes", "say so under Machine"),
)


class Explorer(widgets.VBox):  # type: ignore[misc]
    """Compare policies on a workload in the simulator. Made by ``dask_hpc.explore()``.

    Where widgets are not shown (an exported notebook, a page on GitHub) its static twin is: `html`.

    Parameters
    ----------
    workload
        What is chosen at first: ``builtin:NAME`` or a path.
    policies
        Likewise; the first is the measure of the others.

    Raises
    ------
    TypeError, ValueError
        When there is no such builtin workload or policy, or the policies are no list, too few or too many.
    """

    # an explorer whose making has failed is closed as well when it goes
    _closed = True

    @widgets.alike()
    def __init__(self, workload: str | Path, policies: Sequence[Any]) -> None:
        self.workload = WorkloadForm(WorkloadModel(workload), self._edited)
        self.policies = PoliciesForm(policies, self._edited)
        self.look = widgets.button(
            "Read workload", "Say what the workload holds and on what machine; simulates nothing"
        )
        self.run = widgets.button("Run", "Simulate the workload under each policy and compare", "primary")
        #: Why nothing can be run; empty when it can.
        self.why = widgets.HTML(layout=_FULL)
        self.progress = widgets.FloatProgress(
            max=1.0, description="Progress", style={"description_width": "initial"}
        )
        self.stop = widgets.button("Stop", "End the simulation; results of policies that have run are kept")
        self._under_way = widgets.HBox([self.progress, self.stop], layout={**_WRAP, "display": "none"})
        #: What came of the last click.
        self.says = widgets.HTML(layout=_FULL)
        #: Whether the results are of other choices than those of now, and the results.
        self.stale = widgets.HTML(layout=_FULL)
        self.results = widgets.HTML(layout=_FULL)
        self.path = widgets.Text(
            description="Results file",
            placeholder="results.json",
            tooltip="Path of a file that ends in .json, on the machine of the notebook's kernel",
            **LABELLED,
        )
        self.replace = widgets.Checkbox(
            description="Replace the file",
            tooltip="Overwrite a file of this name",
            indent=False,
            layout={"width": "auto"},
        )
        self.save = widgets.button(
            "Save results", "Write all metrics and jobs of the runs to this file, as JSON"
        )
        #: What came of saving.
        self.saved = widgets.HTML(layout=_FULL)
        end = widgets.button("Close explorer", "Take the explorer off the page")
        self._plan: Plan | None = None
        self._outcome: Explored | None = None
        #: What there is of the run under way and is not shown yet; filled beside the loop.
        self._parts: list[Explored] = []
        #: Policies of that run whose results are shown.
        self._kept: tuple[str, ...] = ()
        #: The work that is under way; what others come to is not wanted any more.
        self._turn: object | None = None
        self._work: background.Work | None = None
        super().__init__(
            [
                widgets.HTML(markup.style()),
                widgets.HTML(_heading("Workload and machine")),
                self.workload.box,
                widgets.HTML(_heading("Policies")),
                self.policies.box,
                widgets.HBox([self.run, self.look, self.why], layout=_WRAP),
                self.says,
                self._under_way,
                self.stale,
                self.results,
                row(self.path, widgets.HBox([self.replace, self.save], layout=_WRAP)),
                self.saved,
                end,
            ],
            layout={"width": "auto", "max_width": "80rem"},
        )
        self.add_class("dask-hpc-explorer").add_class("dask-hpc-controls")
        self.look.on_click(lambda _: self._look())
        self.run.on_click(lambda _: self._run())
        self.stop.on_click(lambda _: self._stop())
        self.save.on_click(lambda _: self._save())
        self.path.observe(lambda _: self._mended(self.saved), names="value")
        end.on_click(lambda _: self.close())
        self._enable()
        self._closed = False

    def html(self) -> str:
        """The static twin: what is chosen and what came out, without widgets."""
        try:
            chosen = exploration.chosen(self._chosen())
        except ValueError:
            chosen = markup.alert(self._wrong())
        outcome = markup.soft("Nothing has been run.") if self._outcome is None else self._outcome.html
        return markup.page(markup.element("h3", "Workload and policies"), chosen, self._stale(), outcome)

    def close(self) -> None:
        """End what is under way and take every widget out of the kernel and the page."""
        if self._closed:
            return
        self._closed = True
        self._give_up()
        self._outcome, self._parts = None, []
        for widget in below(self):
            if widget is not self:
                widget.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        found = super()._repr_mimebundle_(**kwargs)
        data = found[0] if isinstance(found, tuple) else found
        if data is not None:
            data["text/plain"] = repr(self)
            data["text/html"] = self.html()
        return found

    def __repr__(self) -> str:
        if self._closed:
            return "<Explorer closed>"
        source = self.workload.model.name or self.workload.model.path
        return f"<Explorer workload={source!r} policies={len(self.policies.entries)}>"

    # --------------------------------------------------------------- choosing

    def _wrong(self) -> str:
        """What keeps everything from being run, in a sentence; empty when nothing does."""
        wrong = [*self.workload.model.wrong, *self.policies.wrong]
        return f"not valid: {'; '.join(wrong)}" if wrong else ""

    def _chosen(self) -> Plan:
        return Plan(workload=self.workload.model.arguments(), policies=self.policies.by_title())

    def _edited(self) -> None:
        if self._turn is None:
            self._mended(self.says)
        self._enable()

    def _mended(self, said: Any) -> None:
        """Take an error away: what it was about has been changed."""
        if 'role="alert"' in said.value:
            _set(said, "")

    def _enable(self) -> None:
        wrong = self._wrong()
        self._plan = None if wrong else self._chosen()
        self.run.disabled = self.look.disabled = bool(wrong) or self._turn is not None
        self.save.disabled = self._outcome is None or self._turn is not None
        _set(self.why, markup.part(markup.soft(f"To run, mend what is {wrong}.")) if wrong else "")
        stale = self._stale()
        _set(self.stale, markup.part(stale) if stale else "")

    def _stale(self) -> str:
        if self._outcome is None or self._outcome.plan == self._plan:
            return ""
        return markup.soft("The choices have changed since these results: run again to see their effect.")

    # ---------------------------------------------------------------- running

    def _look(self) -> None:
        plan = self._plan
        if plan is None or self._turn is not None:
            return

        def ended(found: Any) -> None:
            if isinstance(found, Exception):
                _set(self.says, markup.part(markup.alert(f"not read: {_reason(found)}")))
            else:
                _set(self.says, _status(found))

        self._parts, self._kept = [], ()
        self._show_work()
        self._begin(lambda _: exploration.read(plan), lambda _: None, ended)

    def _run(self) -> None:
        plan = self._plan
        if plan is None or self._turn is not None:
            return
        count = len(plan.policies)
        # a list of its own: what was stopped may still add to the one before
        parts: list[Explored] = []
        self._parts, self._kept = parts, ()

        def progressed(share: float) -> None:
            self.progress.value = share
            self._show_part()
            number = min(count, int(share * count) + 1)
            name = list(plan.policies)[number - 1]
            _set(self.says, _status(f"Running policy {number} of {count}: {name}."))

        def ended(outcome: Any) -> None:
            if isinstance(outcome, Exception):
                self._show_part()
                _set(self.says, markup.part(markup.alert(f"not run: {_reason(outcome)}")))
                return
            parts.append(outcome)
            self._show_part()
            failed = [f"{name} failed: {error}" for name, error in outcome.failures.items()]
            said = "Done." if outcome.runs else "No policy could be run."
            _set(self.says, _status(said, *map(markup.alert, failed)))

        self._show_work()
        self._begin(lambda progress: exploration.run(plan, progress, parts.append), progressed, ended)

    def _show_part(self) -> None:
        if self._parts:
            # one at a time: the thread may add to them meanwhile
            while self._parts:
                part = self._parts.pop(0)
            self._outcome, self._kept = part, tuple(part.runs)
            _set(self.saved, "")
            _set(self.results, markup.part(part.html))

    def _save(self) -> None:
        outcome, path, replace = self._outcome, self.path.value, self.replace.value
        if outcome is None or self._turn is not None:
            return

        def ended(saved: Any) -> None:
            if isinstance(saved, Exception):
                _set(self.saved, markup.part(markup.alert(f"not saved: {_reason(saved)}")))
                return
            # another file is not replaced unasked because this one was
            self.replace.value = False
            _set(self.saved, _status(f"Saved as {saved}."))

        self._begin(lambda _: exploration.save(outcome, path, replace=replace), lambda _: None, ended)

    def _show_work(self) -> None:
        self.progress.value = 0.0
        self._under_way.layout.display = "flex"
        _set(self.says, _status("Reading the workload."))

    def _begin(
        self, function: Callable[[Progress], Any], progressed: Progress, ended: Callable[[Any], None]
    ) -> None:
        """Do it beside the kernel's loop; what comes of it is dropped once it is given up."""
        turn = self._turn = object()

        def told(share: float) -> None:
            if self._turn is turn:
                progressed(share)

        def done(outcome: Any) -> None:
            if self._turn is turn:
                self._over()
                ended(outcome)
                self._enable()

        self._enable()
        work = background.Work(function, told, done)
        if self._turn is turn:
            self._work = work

    def _over(self) -> None:
        self._turn = self._work = None
        self._under_way.layout.display = "none"

    def _give_up(self) -> None:
        if self._work is not None:
            self._work.cancel()
        self._over()

    def _stop(self) -> None:
        if self._turn is None:
            return
        self._give_up()
        self._show_part()
        kept = f"kept: {', '.join(self._kept)}" if self._kept else "no policy had run to its end"
        _set(self.says, _status(f"Stopped; {kept}."))
        self._enable()


def _reason(error: Exception) -> str:
    """An error in words; of one that was not made for users, its kind as well."""
    if isinstance(error, (DaskHPCError, ValueError, OSError)):
        text = str(error)
        for option, field in _FIELDS:
            text = text.replace(option, field)
        return text
    return f"{type(error).__name__}: {error}"


def _status(*pieces: str) -> str:
    """Sentences that are read out when they appear."""
    return markup.part(markup.status(*pieces))


def _heading(text: str) -> str:
    return markup.part(markup.element("h3", text))


def _set(widget: Any, text: str) -> None:
    """Show `text`; what is shown already is not sent again."""
    if widget.value != text:
        widget.value = text
