"""Bounds of the power corridor: typed, set and cleared in the panel; what came of it is said in words.

Rules of the file: whether bounds can be only the scheduler says; the ones that hold stay until others do. To
keep bounds jobs are shrunk, and plain work has fewer nodes: while any runs a person is asked first.
"""

from __future__ import annotations

from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc_policies.power.checks import MOST_TOTAL_W
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.live import questions

_BUTTON = {"width": "auto"}


class CorridorPart:
    """The form, below the view of power.

    Parameters
    ----------
    runtime, link
        Of the cluster.

    Attributes
    ----------
    lower, upper
        What a person types: watts, or text such as 1.7 kW; empty: that side is open.
    set, clear
        The buttons.
    asks, go, cancel
        The question, and its buttons.
    says
        What came of it.
    box
        All of it.
    """

    def __init__(self, runtime: Runtime, link: Link) -> None:
        self._runtime, self._link = runtime, link
        self.lower, self.upper = (
            widgets.Text(
                placeholder="open, or 1.7 kW",
                description=f"{side} bound (W)",
                style={"description_width": "initial"},
                layout={"width": "16rem"},
            )
            for side in ("Lower", "Upper")
        )
        self.set = widgets.Button(
            description="Set corridor",
            tooltip="Keep the draw between both bounds, in place of those that hold",
            layout=_BUTTON,
        )
        self.clear = widgets.Button(description="No corridor", tooltip="Clear it", layout=_BUTTON)
        self.go = widgets.Button(
            description="Set bounds",
            tooltip="Set the bounds, although jobs may lose nodes",
            button_style="warning",
            layout=_BUTTON,
        )
        self.cancel = widgets.Button(description="Set nothing", tooltip="Change nothing", layout=_BUTTON)
        self.asks, self.says = (widgets.HTML(layout={"width": "auto"}) for _ in range(2))
        self._question = widgets.HBox(
            [self.asks, self.go, self.cancel],
            layout={"width": "auto", "flex_flow": "row wrap", "display": "none"},
        )
        #: The bounds that are to be set once it is known what runs, and those that a person is asked about.
        self._typed: dict[str, str] | None = None
        self._asked: dict[str, str] | None = None
        self.box = widgets.HBox(
            [self.lower, self.upper, self.set, self.clear, self.says, self._question],
            layout={"width": "auto", "flex_flow": "row wrap", "display": "none"},
        )
        self.set.on_click(lambda _: self._set())
        self.clear.on_click(lambda _: self._clear())
        self.go.on_click(lambda _: self._answer(True))
        self.cancel.on_click(lambda _: self._answer(False))
        for field in (self.lower, self.upper):
            field.observe(lambda _: self._answer(False), names="value")

    def show(self, shown: bool) -> None:
        """Be there with the view, or not."""
        self.box.layout.display = None if shown else "none"

    def _set(self) -> None:
        typed = {"lower_w": self.lower.value.strip(), "upper_w": self.upper.value.strip()}
        self._answer(False)
        bounds = self._typed = {name: text for name, text in typed.items() if text}

        def seen(answer: Any) -> None:
            if self._typed is not bounds:
                return  # others were typed meanwhile
            self._typed = None
            if isinstance(answer, Exception):
                self.says.value = markup.part(markup.alert(f"Nothing was set: {answer}"))
            elif who := _at_work(*answer):
                self._asked = bounds
                self._question.layout.display = "flex"
                text = f"{who} may lose nodes to these bounds. Go ahead?"
                self.asks.value = markup.part(markup.status(markup.strong(text)))
            else:
                self._ask("Nothing was set", **bounds)

        # as it is now: what is shown may be old
        self._link.ask(lambda: questions.at_work(self._runtime), seen, patient=True)

    def _clear(self) -> None:
        self._answer(False)
        self._ask("It was not cleared", clear=True)

    def _answer(self, yes: bool) -> None:
        bounds, self._asked, self._typed = self._asked, None, None
        if bounds is None:
            return
        self._question.layout.display = "none"
        if yes:
            self._ask("Nothing was set", **bounds)
        else:
            self.says.value = markup.part(markup.soft("Nothing was set."))

    def _ask(self, failed: str, **arguments: Any) -> None:
        def done(answer: Any) -> None:
            if isinstance(answer, Exception):
                self.says.value = markup.part(markup.alert(f"{failed}: {answer}"))
            elif answer["mode"] is None:
                self.says.value = markup.part(markup.soft("There is no corridor."))
            else:
                upper_w = answer["upper_w"]
                open_w = upper_w is None or upper_w >= MOST_TOTAL_W
                upper = "no upper bound" if open_w else f"at most {upper_w:g} W"
                text = f"Set: at least {answer['lower_w']:g} W, {upper} ({answer['mode']})."
                self.says.value = markup.part(markup.soft(text))

        self._link.ask(lambda: questions.corridor(self._runtime, arguments), done, patient=True)


def _at_work(jobs: int, plain: bool) -> str:
    """Who runs, as the beginning of a sentence; empty: nobody."""
    if not jobs:
        return "Plain work runs and" if plain else ""
    return f"{counted(jobs, 'job')} {'runs and' if jobs == 1 else 'run, of which any'}"
