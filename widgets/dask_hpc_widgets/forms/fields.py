"""Forms made from declarations: one row a parameter, with its unit, bounds, help and error; the policy form.

Rules of the file: widgets and the model alone, no cluster. A control holds what is typed; whether it is valid
only the model says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dask_hpc_policies import registry
from dask_hpc_policies.params import Parameter
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.forms.model import PolicyModel, is_custom, refused, title

#: Values of the choice of policies that are no names.
_RUNNING, _FILE = "\0running", "\0file"
_FULL = {"width": "auto"}
#: What every control with a text label has.
LABELLED: dict[str, Any] = {"style": {"description_width": "13rem"}, "layout": _FULL}
#: Two columns where there is room for them, one where there is not.
_ROW = {
    "width": "auto",
    "grid_template_columns": "repeat(auto-fit, minmax(min(100%, 28rem), 1fr))",
    "grid_gap": "0 1rem",
}


class Fields:
    """A row for each declared parameter: its control, and beside it help, or what is wrong.

    Parameters
    ----------
    typed
        Called with the name of a parameter and what a person typed.
    """

    def __init__(self, typed: Callable[[str, str], None]) -> None:
        self._typed = typed
        self._filling = False
        self._declared: list[Parameter] = []
        #: Control of each parameter by name, and what is said beside it.
        self.controls: dict[str, Any] = {}
        self.says: dict[str, Any] = {}
        self.box = widgets.VBox(layout=_FULL)

    def fill(self, declared: Iterable[Parameter], texts: Mapping[str, str]) -> None:
        """Show these texts; rows are made anew when the parameters are others."""
        self._filling = True
        try:
            rows = list(declared)
            if rows != self._declared:
                self._make(rows)
            for one in rows:
                self.controls[one.name].value = texts[one.name]
        finally:
            self._filling = False

    def say(self, errors: Mapping[str, str]) -> None:
        """Say in each row what is wrong with it, or else what it is."""
        for one in self._declared:
            wrong = errors.get(one.name)
            text = markup.alert(wrong) if wrong else markup.soft(_hint(one))
            self.says[one.name].value = markup.part(text)

    @widgets.alike()
    def _make(self, declared: list[Parameter]) -> None:
        old = list(self.box.children)
        self._declared = declared
        self.controls = {one.name: _control(one) for one in declared}
        self.says = {one.name: widgets.HTML(layout=_FULL) for one in declared}
        self.box.children = [row(self.controls[one.name], self.says[one.name]) for one in declared]
        for one in declared:
            self.controls[one.name].observe(self._observer(one.name), names="value")
        # nothing of a form that is gone stays in the kernel
        for gone in old:
            for widget in below(gone):
                widget.close()

    def _observer(self, name: str) -> Callable[[dict[str, Any]], None]:
        def typed(change: dict[str, Any]) -> None:
            if not self._filling:
                self._typed(name, change["new"])

        return typed


class PolicyForm:
    """Widgets to choose a policy and its parameters.

    Parameters
    ----------
    model
        What is edited. Call `refresh` after changing it otherwise than by the form.
    changed
        Called after everything that a person changes, valid or not.
    runs
        Whether there is a cluster that runs ``model.running``, which can then be chosen as it runs.
    """

    def __init__(
        self, model: PolicyModel, changed: Callable[[], None] = lambda: None, *, runs: bool = True
    ) -> None:
        self.model = model
        self._changed = changed
        self._runs = runs
        self._filling = False
        self._file = ""
        self.policy = widgets.Dropdown(
            description="Policy",
            tooltip="What decides about the nodes of jobs. Choosing one loads its default parameters.",
            **LABELLED,
        )
        self._fields = Fields(self._typed)
        #: What the chosen policy is, or why it cannot be.
        self.about = widgets.HTML(layout=_FULL)
        self.path = widgets.Text(
            description="Policy file",
            placeholder="policy.yaml",
            tooltip="Path of a YAML file with a policy, on the machine of the notebook's kernel",
            **LABELLED,
        )
        self.load = widgets.Button(description="Load file", tooltip="Edit the policy in this file")
        self.save = widgets.Button(
            description="Save file", tooltip="Write the policy as chosen here to this file"
        )
        self.replace = widgets.Checkbox(
            description="Replace the file",
            tooltip="Let Save overwrite a file of this name: all of it, with what no form shows",
            indent=False,
            layout={"width": "auto"},
        )
        buttons = widgets.HBox([self.load, self.save, self.replace], layout={"flex_flow": "row wrap"})
        files = row(self.path, buttons)
        style = widgets.HTML(markup.style())
        self.box = widgets.VBox([style, row(self.policy, self.about), self._fields.box, files], layout=_FULL)
        self.box.add_class("dask-hpc-form")
        self.policy.observe(self._choose, names="value")
        self.load.on_click(self._load)
        self.save.on_click(self._save)
        self._choice: str = _RUNNING if self._can_run_on() else str(model.spec()["policy"])
        self.refresh()

    @property
    def controls(self) -> dict[str, Any]:
        """Control of each parameter, by name."""
        return self._fields.controls

    @property
    def says(self) -> dict[str, Any]:
        """What is said beside each control, by name of the parameter."""
        return self._fields.says

    def refresh(self) -> None:
        """Show what the model holds; rows are made anew when the parameters are others."""
        self._filling = True
        try:
            names = [*registry.names(), *registry.library_names()]
            options = [(f"as it runs: {title(self.model.running)}", _RUNNING)] if self._can_run_on() else []
            options += [(name, name) for name in names]
            options += [(f"file {self._file}", _FILE)] if self._choice == _FILE else []
            if tuple(options) != self.policy.options:
                self.policy.options = options
            known = self._choice in {value for _, value in options}
            self.policy.value = self._choice if known else self._named()
        finally:
            self._filling = False
        self._fields.fill(self.model.parameters, self.model.texts)
        self._describe()
        self.show_errors()

    def choose(self, name: str) -> None:
        """Choose a policy with its default parameters, also where it is chosen already and was edited.

        Raises
        ------
        ValueError
            When no policy has that name.
        """
        self.model.load(name)
        self._choice = name
        self.refresh()
        self._changed()

    def follow(self) -> None:
        """Show the policy that runs, as the model has it."""
        self._choice = _RUNNING
        self.refresh()

    def close(self) -> None:
        """Take every widget out of the kernel and out of the page."""
        for widget in below(self.box):
            widget.close()

    def _can_run_on(self) -> bool:
        """Whether what runs can be chosen."""
        return self._runs and not is_custom(self.model.running)

    def _named(self) -> str | None:
        name = self.model.spec()["policy"] if not self.model.errors else None
        return name if name in registry.names() else None

    def _describe(self) -> None:
        try:
            value = self.policy.value
            told = registry.describe(value) if value not in (_RUNNING, _FILE, None) else None
        except ValueError as error:
            self.about.value = markup.part(markup.alert(str(error)))
            return
        text = told["summary"] if told else ""
        if value == _FILE:
            text = f"{self._file} holds {title(self.model.spec())}."
        if not self.controls:
            text = f"{text} It has no parameters.".strip()
        self.about.value = markup.part(markup.soft(text)) if text else ""

    # ---------------------------------------------------------------- people

    def _choose(self, change: dict[str, Any]) -> None:
        if self._filling or change["new"] is None:
            return
        chosen = change["new"]
        try:
            if chosen != _FILE:
                self.model.load(self.model.running if chosen == _RUNNING else chosen)
        except Exception as error:
            # a policy may be anybody's code: the one that was chosen before stays, and is shown
            self.refresh()
            self.about.value = markup.part(markup.alert(f"not chosen: {chosen}: {refused(error)}"))
            return
        self._choice = chosen
        self.refresh()
        self._changed()

    def _typed(self, name: str, text: str) -> None:
        self.show_errors(name, self.model.type(name, text))
        self._changed()

    def _load(self, _: Any) -> None:
        try:
            path = self._named_file()
            self.model.load(path)
        except Exception as error:  # also a user that is not there, and YAML without end
            self.about.value = markup.part(markup.alert(f"not loaded: {refused(error)}"))
            return
        self._choice, self._file = _FILE, path.name
        self.refresh()
        self._changed()

    def _save(self, _: Any) -> None:
        try:
            path = self._named_file()
            if path.suffix not in (".yaml", ".yml"):
                raise ValueError(f"policy file is {path.name!r}: give it a name that ends in .yaml")
            if path.exists() and not self.replace.value:
                raise ValueError(f"{path} is there already: tick 'Replace the file', or choose another name")
            self.model.save(path)
        except Exception as error:
            self.about.value = markup.part(markup.alert(f"not saved: {refused(error)}"))
            return
        self.replace.value = False
        self.about.value = markup.part(markup.soft(f"Saved as {path}."))

    def _named_file(self) -> Path:
        text = self.path.value.strip()
        if not text:
            raise ValueError("no policy file is named: give the path of a YAML file")
        return Path(text).expanduser()

    def show_errors(self, typed: str = "", error: str = "") -> None:
        """Say in each row what is wrong with it; `error` is what was said of the field `typed` just now."""
        errors = self.model.errors
        if "" in errors and not error:
            # wrong together: at the last field, unless one was typed
            typed, error = next(reversed(self.controls), ""), errors[""]
        self._fields.say({typed: error, **errors})


def row(control: Any, beside: Any, **more: str) -> Any:
    """A control, and what is beside it, or below where there is little room; `more` is said of the layout."""
    return widgets.GridBox([control, beside], layout={**_ROW, **more})


def below(widget: Any) -> list[Any]:
    """A widget and all that it holds, their layouts and styles included."""
    own = [getattr(widget, name, None) for name in ("layout", "style")]
    inside = [one for child in getattr(widget, "children", ()) for one in below(child)]
    return [*inside, *(part for part in own if part is not None), widget]


def _control(one: Parameter) -> Any:
    label = one.label or one.name
    common: dict[str, Any] = {
        "description": f"{label} ({one.unit})" if one.unit else label,
        "tooltip": f"{one.name}: {_hint(one)}",
        **LABELLED,
    }
    if one.kind in ("choice", "bool"):
        values = list(one.choices) if one.kind == "choice" else ["true", "false"]
        return widgets.Dropdown(options=[*values, *([one.none] if one.none_ok else [])], **common)
    return widgets.Text(placeholder=one.allowed, **common)


def _hint(one: Parameter) -> str:
    """Help and allowed values of a parameter in words."""
    allowed = f"Allowed: {one.allowed}."
    return f"{one.help.rstrip('.')}. {allowed}" if one.help else allowed
