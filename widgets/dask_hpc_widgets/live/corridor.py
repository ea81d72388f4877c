"""Bounds of the power corridor: typed, set and cleared in the panel; what came of it is said in words.

Rules of the file: whether bounds can be only the scheduler says; the ones that hold stay until others do.
"""

from __future__ import annotations

from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc_policies.power.checks import MOST_TOTAL_W
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
    box
        All of it, and what came of it.
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
        self.says = widgets.HTML(layout={"width": "auto"})
        self.box = widgets.HBox(
            [self.lower, self.upper, self.set, self.clear, self.says],
            layout={"width": "auto", "flex_flow": "row wrap", "display": "none"},
        )
        self.set.on_click(lambda _: self._set())
        self.clear.on_click(lambda _: self._ask("It was not cleared", clear=True))

    def show(self, shown: bool) -> None:
        """Be there with the view, or not."""
        self.box.layout.display = None if shown else "none"

    def _set(self) -> None:
        typed = {"lower_w": self.lower.value.strip(), "upper_w": self.upper.value.strip()}
        self._ask("Nothing was set", **{name: text for name, text in typed.items() if text})

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
