"""Tune: the policy form with Simulate, Apply and Revert.

Rules of the file: decides nothing about policies; the model, `effect` and `what_if` do. Nothing reaches the
cluster that the model has not found valid, and no job loses nodes before a person has agreed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc.errors import DaskHPCError
from dask_hpc_policies.params import ParameterError
from dask_hpc_widgets.base import background, markup
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.forms.fields import PolicyForm
from dask_hpc_widgets.forms.model import Edit, PolicyModel, changes, is_custom, title
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.live.assumed import Assumed
from dask_hpc_widgets.live.effect import Effect, effect, question
from dask_hpc_widgets.live.forecast import Forecast, outdated
from dask_hpc_widgets.live.what_if import WhatIf, what_if
from dask_hpc_widgets.views import Picture

_FULL = {"width": "auto"}
_WRAP = {"width": "auto", "flex_flow": "row wrap"}
_EDITED = "The settings have changed since"


class Tuning:
    """The part of the panel that changes things.

    Parameters
    ----------
    runtime, link
        Of the cluster.
    model
        What is edited.
    shown
        Given what is predicted, and given it again when it is not of now any more.
    """

    def __init__(
        self,
        runtime: Runtime,
        link: Link,
        model: PolicyModel,
        shown: Callable[[Forecast], None] = lambda forecast: None,
    ) -> None:
        self._runtime, self._link, self.model, self._shown = runtime, link, model, shown
        self.form = PolicyForm(model, self._edited)
        self.simulate = widgets.button(
            "Simulate",
            "Predict what these settings would do from the present state; nothing is changed",
        )
        self.apply = widgets.button(
            "Apply to cluster", "Have the cluster decide so; asks before a job loses nodes", "primary"
        )
        self.revert = widgets.button("Revert", "Take the last Apply back; asks before a job loses nodes")
        #: For all that the panel predicts.
        self.assumed = Assumed()
        #: What came of the last click.
        self.says = widgets.HTML(layout=_FULL)
        self.go = widgets.button("Go ahead", "Apply, although jobs lose nodes", "warning")
        self.cancel = widgets.button("Cancel", "Change nothing")
        self._question = widgets.HBox([self.go, self.cancel], layout={**_WRAP, "display": "none"})
        self.progress = widgets.FloatProgress(
            max=1.0, description="Simulating", style={"description_width": "initial"}
        )
        self.stop = widgets.button("Stop", "End the simulation")
        self._running = widgets.HBox([self.progress, self.stop], layout={**_WRAP, "display": "none"})
        #: What came of a simulation, to be shown where it is wide.
        self.predicted = widgets.HTML(layout=_FULL)
        buttons = widgets.HBox([self.simulate, self.apply, self.revert], layout=_WRAP)
        self.box = widgets.VBox(
            [self.form.box, self.assumed.field, buttons, self.says, self._question, self._running],
            layout=_FULL,
        )
        self.simulate.on_click(lambda _: self._simulate())
        self.apply.on_click(lambda _: self._apply())
        self.revert.on_click(lambda _: self._revert())
        self.assumed.field.observe(lambda _: self._edited(), names="value")
        self.stop.on_click(lambda _: self._work.cancel() if self._work else None)
        self.go.on_click(lambda _: self._answer(True))
        self.cancel.on_click(lambda _: self._answer(False))
        self._busy = False
        #: Whether a simulation is under way, and whether Apply was clicked before the page knew of that.
        self._simulating = self._apply_then = False
        self._agree: Callable[[], None] | None = None
        self._work: background.Work | None = None
        self._found: WhatIf | None = None
        self._stale = False
        self._enable()

    def report(self, running: Mapping[str, Any]) -> None:
        """Take what the cluster says it runs."""
        # what is under way here is told when it is done
        if not self._busy:
            self._report(running)

    def _report(self, running: Mapping[str, Any]) -> None:
        if self.model.report(running):
            # what was asked was about another policy
            self._answer(False)
            self.form.refresh()
            self._outdate("The cluster decides by another policy since")
            self._say(markup.soft(f"The cluster decides by {title(running)} now; it was not changed here."))
            self._enable()

    def happened(self, picture: Picture) -> None:
        """Take what the cluster is now: what was predicted may not be of it any more."""
        if self._found is not None and not self._stale:
            why = outdated(list(self._found.runs.values()), self._found.forecast.nodes, picture)
            if why:
                self._outdate(why)

    def choose(self, name: str, outcome: WhatIf) -> None:
        """Have the policy of that name in the form, with what it was predicted to do."""
        if self._busy:
            self._say(markup.soft(f"{name} was not chosen: something else is under way here. Choose again."))
            return
        self.form.choose(name)
        self._predicted(outcome, self._chosen())

    def summary(self) -> Markup:
        """What is chosen here and what was predicted, for a page without widgets."""
        try:
            difference = _difference(self.model.changes()) or markup.soft("The settings are those that run.")
        except ValueError as error:
            difference = markup.alert(str(error))
        return difference + ("" if self._found is None else self._found.html())

    def close(self) -> None:
        """End what is under way."""
        if self._work is not None:
            self._work.cancel()
        self._agree = None

    # --------------------------------------------------------------- clicks

    def _edited(self) -> None:
        self._apply_then = False
        self._answer(False)
        self._outdate(_EDITED)
        self._enable()

    def _chosen(self) -> tuple[Any, str]:
        """The policy in the form, None where it cannot be, and what is assumed, as typed."""
        return None if self.model.errors else self.model.spec(), self.assumed.field.value

    def _outdate(self, why: str) -> None:
        """Say of what was predicted that it is not of now any more."""
        if self._found is None or self._stale:
            return
        self._stale = True
        stale = markup.soft(f"Stale. {why}: simulate again to see the effect.")
        self.predicted.value = markup.part(stale, self._found.html())
        self._shown(replace(self._found.forecast, stale=f"{why[0].lower()}{why[1:]}"))

    def _enable(self) -> None:
        valid = not self.model.errors
        self.simulate.disabled = self._busy or not valid
        self.apply.disabled = self._busy or not valid
        self.revert.disabled = self._busy or self.model.previous is None
        self.go.disabled = self._busy

    def _set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._enable()

    def _say(self, *pieces: str) -> None:
        self.says.value = markup.part(markup.status(*pieces))

    # ------------------------------------------------------- apply and revert

    def _apply(self) -> None:
        self._apply_then = self._simulating
        if self._busy or self.model.errors:
            return
        self._answer(False)
        self._change(self.model.spec(), "Applied", self._applied)

    def _applied(self, running: Mapping[str, Any]) -> None:
        self.model.applied(running)
        self.form.follow()

    def _revert(self) -> None:
        spec = self.model.previous
        if self._busy or spec is None:
            return
        self._answer(False)
        self._change(spec, "Reverted", self._reverted)

    def _reverted(self, running: Mapping[str, Any]) -> None:
        self.model.reverted(running)
        self.form.follow()

    def _change(
        self,
        spec: Mapping[str, Any],
        word: str,
        done: Callable[[Mapping[str, Any]], None],
        agreed: Effect | None = None,
    ) -> None:
        """Have the cluster run `spec`, once it is known what that does at once and a person has agreed."""
        try:
            assumed_s = self.assumed.seconds()
        except ParameterError as error:
            self._say(markup.alert(f"nothing was changed: {error}"))
            return

        def seen(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._set_busy(False)
                self._say(markup.alert(f"nothing was changed: {answer}"))
                return
            # beside the loop: a policy is the user's code and may take its time
            self._work = background.Work(
                lambda _: effect(spec, answer.view, answer.rows, assumed_s),
                self._progressed,
                lambda now: decided(answer.running, now),
            )

        def decided(running: Mapping[str, Any], now: Any) -> None:
            self._work = None
            if self._link.closed:
                return
            self._set_busy(False)
            self._report(running)
            found = changes(self.model.running, spec)
            if isinstance(now, Effect):
                now = replace(now, more=_gone(self.model.running))
            if isinstance(now, Exception):
                self._say(markup.alert(f"nothing was changed: {type(now).__name__}: {now}"))
            elif done == self._reverted and self.model.previous != spec:
                self._say(markup.soft("Nothing to take back: the policy was changed elsewhere meanwhile."))
            elif not found:
                self._say(markup.soft("Nothing to apply: the cluster runs just these settings."))
            elif now.failure:
                stays = title(self.model.running)
                told = f"{title(spec)} fails on the present state: {now.failure}. {stays} stays."
                self._say(markup.alert(told))
            elif asked := _asked(now, agreed):
                self._ask(_difference(found), asked, _items(now.gives))
                self._agree = lambda: self._change(spec, word, done, now)
            else:
                self._set_busy(True)
                self._say(markup.soft("Waiting for the scheduler to change the policy."))
                self._link.ask(
                    lambda: questions.update(self._runtime, spec),
                    lambda answer: changed(answer, found, now),
                    patient=True,
                )

        def changed(answer: Any, found: tuple[Edit, ...], now: Effect) -> None:
            self._set_busy(False)
            if isinstance(answer, Exception):
                refused = isinstance(answer, (ValueError, DaskHPCError))
                what = "nothing was changed" if refused else "whether the policy was changed is not known"
                self._say(markup.alert(f"{what}: {answer}"))
                return
            done(answer)
            self._outdate(f"{word} since")
            self._enable()
            sentences = [loss.text for loss in now.takes] + list(now.gives)
            at_once = markup.items(sentences) if sentences else markup.soft("No job changes at once.")
            stays = "Nodes that jobs have got or given up since stay so until the policy decides otherwise."
            after = markup.soft(stays) if done == self._reverted else ""
            told = markup.element("p", markup.strong(f"{word}.")) + _difference(found, done=True)
            self._say(told, at_once, after)

        self._set_busy(True)
        self._link.ask(lambda: questions.state(self._runtime), seen)

    def _ask(self, *pieces: str) -> None:
        self._say(*pieces)
        self._question.layout.display = "flex"

    def _answer(self, yes: bool) -> None:
        agree, self._agree = self._agree, None
        if agree is None:
            return
        if yes and self._busy:
            self._agree = agree
            return
        self._question.layout.display = "none"
        if yes:
            agree()
        else:
            self._say(markup.soft("Nothing was changed."))

    # --------------------------------------------------------------- simulate

    def _simulate(self) -> None:
        if self._busy or self.model.errors:
            return
        self._answer(False)
        try:
            assumed_s = self.assumed.seconds()
        except ParameterError as error:
            self._say(markup.alert(f"not simulated: {error}"))
            return
        chosen = self._chosen()

        def seen(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._predicted(answer, chosen)
                return
            view, rows, present = answer
            self._report(present)
            self.progress.value = 0.0
            self._running.layout.display = "flex"
            self._work = background.Work(
                lambda progress: what_if(view, rows, present, chosen[0], assumed_s, progress),
                self._progressed,
                lambda outcome: self._predicted(outcome, chosen),
            )

        self._simulating = True
        self._set_busy(True)
        self._link.ask(lambda: questions.state(self._runtime), seen)

    def _progressed(self, share: float) -> None:
        if not self._link.closed:
            self.progress.value = share

    def _predicted(self, outcome: Any, chosen: tuple[Any, str]) -> None:
        if self._link.closed:
            return
        self._work = None
        self._running.layout.display = "none"
        then, self._simulating, self._apply_then = self._apply_then, False, False
        self._set_busy(False)
        if isinstance(outcome, background.Cancelled):
            self._say(markup.soft("The simulation was stopped."))
        elif isinstance(outcome, Exception):
            known = isinstance(outcome, (ValueError, DaskHPCError))
            error = str(outcome) if known else f"{type(outcome).__name__}: {outcome}"
            self._say(markup.alert(f"not simulated with {title(chosen[0])}: {error}"))
        else:
            self._found, self._stale = outcome, False
            self._shown(outcome.forecast)
            self._say(markup.soft("Simulated; the cluster was not touched."))
            self.predicted.value = markup.part(outcome.html())
            if self._chosen() != chosen:
                self._outdate(_EDITED)
            if then:
                self._apply()


def _difference(found: tuple[Edit, ...], done: bool = False) -> Markup:
    """A table of what changes, or has changed; empty when nothing does."""
    if not found:
        return Markup()
    rows = [[text or "not there" for text in (one.label, one.before, one.after)] for one in found]
    before, after = ("Before", "Now") if done else ("Runs", "Chosen")
    return markup.table((("Setting", False), (before, False), (after, False)), rows, "What is changed")


def _gone(running: Mapping[str, Any]) -> str:
    """What a change loses for good besides nodes; empty: nothing."""
    gone = f"{title(running)} is an object that only the cluster has and cannot be brought back."
    return gone if is_custom(running) else ""


def _asked(now: Effect, agreed: Effect | None) -> Markup:
    """What a person is asked before a change; empty when nothing is lost by it that was not agreed to."""
    if not (text := question(now, agreed)):
        return Markup()
    return markup.element("p", markup.strong(text)) + _items([loss.text for loss in now.takes])


def _items(sentences: Sequence[str]) -> Markup:
    return markup.items(sentences) if sentences else Markup()
