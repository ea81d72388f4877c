"""The form for what is simulated on what: a builtin workload with its options or a file, and settings.

Rules of the file: widgets and the model alone. What is wrong stands in its row; what a file holds is found
out when it is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask_hpc.sim.workloads.sources import READERS
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.forms.fields import LABELLED, Fields, row
from dask_hpc_widgets.forms.workload_model import FILE, GENERATORS, WorkloadModel

_FILES = (
    "Allowed: SWF, ElastiSim JSON, YAML, output of sacct, or a trace recorded live "
    f"({', '.join(READERS)}; .gz may follow)."
)


class WorkloadForm:
    """Widgets to choose a workload and its machine.

    Parameters
    ----------
    model
        What is edited.
    changed
        Called after everything that a person changes, valid or not.
    """

    def __init__(self, model: WorkloadModel, changed: Callable[[], None] = lambda: None) -> None:
        self.model = model
        self._changed = changed
        self.name = widgets.Dropdown(
            options=[*((name, name) for name in GENERATORS), ("a file", FILE)],
            value=model.name,
            description="Workload",
            tooltip="The jobs to simulate: a builtin workload or a file. Choosing one loads its defaults.",
            **LABELLED,
        )
        self.about = widgets.HTML(layout={"width": "auto"})
        self.path = widgets.Text(
            value=model.path,
            description="Workload file",
            placeholder="trace.swf.gz",
            tooltip=f"Path of a file on the machine of the notebook's kernel. {_FILES}",
            **LABELLED,
        )
        #: What is wrong with the path, or what it may be.
        self.path_says = widgets.HTML(layout={"width": "auto"})
        self._path_row = row(self.path, self.path_says, display="grid")
        #: Rows of the options of a builtin workload, and of the settings of every one.
        self.options = Fields(self._option_typed)
        self.settings = Fields(self._setting_typed)
        choice = row(self.name, self.about)
        self.box = widgets.VBox(
            [choice, self._path_row, self.options.box, self.settings.box], layout={"width": "auto"}
        )
        self.name.observe(lambda change: self._chosen(change["new"]), names="value")
        self.path.observe(lambda change: self._path_typed(change["new"]), names="value")
        self._refresh()

    def _refresh(self) -> None:
        model = self.model
        text = "Jobs from a file." if model.name == FILE else GENERATORS[model.name].summary
        self.about.value = markup.part(markup.soft(text))
        self._path_row.layout.display = "grid" if model.name == FILE else "none"
        self.options.fill(model.options, model.option_texts)
        self.settings.fill(model.settings, model.setting_texts)
        self._say()

    def _say(self) -> None:
        error = self.model.path_error
        self.path_says.value = markup.part(markup.alert(error) if error else markup.soft(_FILES))
        self.options.say(self.model.option_errors)
        self.settings.say(self.model.setting_errors)

    # ---------------------------------------------------------------- people

    def _chosen(self, name: str) -> None:
        self.model.choose(name)
        self._refresh()
        self._changed()

    def _path_typed(self, text: str) -> None:
        self.model.path = text
        self._say()
        self._changed()

    def _option_typed(self, name: str, text: Any) -> None:
        self.model.option_texts[name] = text
        self._say()
        self._changed()

    def _setting_typed(self, name: str, text: Any) -> None:
        self.model.type_setting(name, text)
        self._say()
        self._changed()
