"""Settings of the cluster: what they are, and a form to change them.

Rules of the file: decides nothing about settings; the model does. Nothing reaches the cluster that the model
has not found valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc.errors import DaskHPCError
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.forms.fields import Fields
from dask_hpc_widgets.forms.settings_model import SettingsModel
from dask_hpc_widgets.live import questions

_FULL = {"width": "auto"}
_BUTTON = {"width": "auto", "min_width": "8rem"}


class SettingsPart:
    """The part of the panel that changes settings; closed until a person opens it.

    Parameters
    ----------
    runtime, link
        Of the cluster.
    model
        What is edited.
    """

    def __init__(self, runtime: Runtime, link: Link, model: SettingsModel) -> None:
        self._runtime, self._link, self.model = runtime, link, model
        self.show = widgets.Checkbox(
            description="Change settings",
            tooltip="Show or hide a form for the settings of the cluster",
            indent=False,
            layout=_FULL,
        )
        self.fields = Fields(self._typed)
        self.apply = widgets.Button(
            description="Apply settings",
            tooltip="Have the cluster work by these settings",
            button_style="primary",
            layout=_BUTTON,
        )
        self.reset = widgets.Button(
            description="Reset", tooltip="Show the settings as the cluster has them", layout=_BUTTON
        )
        #: What came of the last click.
        self.says = widgets.HTML(layout=_FULL)
        buttons = widgets.HBox([self.apply, self.reset], layout={**_FULL, "flex_flow": "row wrap"})
        self._form = widgets.VBox([self.fields.box, buttons, self.says], layout={**_FULL, "display": "none"})
        self.box = widgets.VBox([self.show, self._form], layout=_FULL)
        self._busy = False
        self.show.observe(lambda change: self._open(change["new"]), names="value")
        self.apply.on_click(lambda _: self._apply())
        self.reset.on_click(lambda _: self._reset())

    def report(self, running: Mapping[str, Any]) -> None:
        """Take what the cluster has now."""
        # what is under way here is told when it is done
        if not self._busy and self.model.report(running):
            self._refresh()
            if theirs := ", ".join(f"{key} is {text}" for key, text in self.model.theirs.items()):
                self._say(markup.soft(f"What is edited here was changed elsewhere: {theirs}."))

    def summary(self) -> markup.Markup:
        """The settings as the cluster has them, as markup for a page without widgets."""
        rows = [(row.name, self.model.running[row.name], row.help) for row in self.model.rows]
        columns = (("Setting", False), ("Value", False), ("What it does", False))
        return markup.table(columns, rows, "Settings of the cluster")

    def _open(self, shown: bool) -> None:
        self._form.layout.display = "flex" if shown else "none"
        self._refresh()

    def _refresh(self) -> None:
        # rows are made when they are shown first
        if self.show.value:
            self.fields.fill(self.model.rows, self.model.texts)
            self._check()

    def _check(self) -> None:
        errors = self.model.errors
        self.fields.say(errors)
        self.apply.disabled = self._busy or bool(errors)

    def _say(self, *pieces: str) -> None:
        self.says.value = markup.part(markup.status(*pieces))

    # --------------------------------------------------------------- people

    def _typed(self, key: str, text: str) -> None:
        self.model.texts[key] = text
        self._check()

    def _reset(self) -> None:
        self.model.reset()
        self._refresh()

    def _apply(self) -> None:
        if self._busy or self.model.errors:
            return
        changes = self.model.changes()
        if not changes:
            self._say(markup.soft("Nothing to apply: the cluster has just these settings."))
            return

        def answered(answer: Any) -> None:
            self._busy = False
            if isinstance(answer, Exception):
                refused = isinstance(answer, (ValueError, DaskHPCError))
                what = "nothing was changed" if refused else "whether the settings were changed is not known"
                self._say(markup.alert(f"{what}: {answer}"))
            else:
                self.model.report(answer)
                told = ", ".join(f"{key} is {text}" for key, text in changes.items())
                self._say(markup.element("p", markup.strong("Applied"), f": {told}."))
            self._refresh()

        self._busy = True
        self._check()
        self._link.ask(lambda: questions.change(self._runtime, changes), answered, patient=True)
