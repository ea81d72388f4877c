"""Several policies to be compared, each in the same form; the first is the measure of the others.

Rules of the file: widgets and models alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_hpc_policies import registry
from dask_hpc_policies.params import shown
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.forms.fields import PolicyForm, below
from dask_hpc_widgets.forms.model import PolicyModel, is_custom, titles

#: Fewer are no comparison; more cannot be read side by side.
FEWEST, MOST = 2, 6


class Entry:
    """One of the policies: a heading, a button that takes it away, and the form."""

    # it is closed by itself: it shares nothing with the others
    @widgets.alike()
    def __init__(self, policy: Any, changed: Callable[[], None], remove: Callable[[Entry], None]) -> None:
        spec = registry.spec_of(registry.create(policy))
        if is_custom(spec):
            raise ValueError(
                f"policy {spec['policy']!r} is an object: give a name, a file or a specification"
            )
        self.form = PolicyForm(PolicyModel(spec), changed, runs=False)
        self.head = widgets.HTML(layout={"width": "auto"})
        self.remove = widgets.Button(layout={"width": "auto"})
        line = widgets.HBox(
            [self.head, self.remove], layout={"flex_flow": "row wrap", "align_items": "center"}
        )
        self.box = widgets.VBox([line, self.form.box], layout={"width": "auto"})
        self.remove.on_click(lambda _: remove(self))

    def show(self, number: int, name: str, of: int) -> None:
        """Say that this is policy `number` of so many, and what it is called."""
        role = ", the measure of the others" if number == 1 else ""
        called = f": {name}" if name else ""
        self.head.value = markup.part(markup.element("h4", f"Policy {number}{called}{role}"))
        self.remove.description = f"Remove policy {number}"
        self.remove.tooltip = f"Compare without policy {number}; at least {FEWEST} stay"
        self.remove.disabled = of <= FEWEST


class PoliciesForm:
    """Forms for the policies of a comparison.

    Parameters
    ----------
    policies
        What `dask_hpc_policies.registry.create` takes, each.
    changed
        Called after everything that a person changes, valid or not.

    Raises
    ------
    TypeError, ValueError
        When they are no list, too few or too many, or one is no policy that can be made from data.
    """

    def __init__(self, policies: Sequence[Any], changed: Callable[[], None] = lambda: None) -> None:
        if isinstance(policies, str) or not isinstance(policies, Sequence):
            raise TypeError(f"policies is {shown(policies)}; needed: a list of {FEWEST} to {MOST} policies")
        if not FEWEST <= len(policies) <= MOST:
            raise ValueError(f"{len(policies)} policies to compare; give {FEWEST} to {MOST}")
        self._changed = changed
        self.entries = [self._entry(policy) for policy in policies]
        self._list = widgets.VBox(layout={"width": "auto"})
        self.add = widgets.Button(
            description="Add policy",
            tooltip=f"Compare with one more; {FEWEST} to {MOST} can be compared",
            layout={"width": "auto"},
        )
        self.box = widgets.VBox([self._list, self.add], layout={"width": "auto"})
        self.add.on_click(lambda _: self._add())
        self._arrange()

    @property
    def models(self) -> list[PolicyModel]:
        """What is edited, in order."""
        return [entry.form.model for entry in self.entries]

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in a few words each."""
        found = [f"Policy {i}" for i, model in enumerate(self.models, start=1) if model.errors]
        if found:
            return found
        specs = self.specs()
        first = [specs.index(spec) for spec in specs]
        return [
            f"Policy {i + 1} is just as policy {same + 1}: change or remove it"
            for i, same in enumerate(first)
            if same != i
        ]

    def specs(self) -> list[dict[str, Any]]:
        """The specifications, in order.

        Raises
        ------
        ParameterError
            When a field is not valid.
        """
        return [model.spec() for model in self.models]

    def by_title(self) -> dict[str, Mapping[str, Any]]:
        """The specifications by what they are called in results.

        Raises
        ------
        ParameterError
            When a field is not valid.
        """
        specs = self.specs()
        return dict(zip(titles(specs), specs, strict=True))

    # ---------------------------------------------------------------- people

    def _edited(self) -> None:
        self._name()
        self._changed()

    def _add(self) -> None:
        if len(self.entries) >= MOST:
            return
        taken = {model.spec()["policy"] for model in self.models if not model.errors}
        names = registry.names()
        self.entries.append(self._entry(next((name for name in names if name not in taken), names[0])))
        self._arrange()
        self._changed()

    def _remove(self, entry: Entry) -> None:
        if len(self.entries) <= FEWEST:
            return
        self.entries.remove(entry)
        self._arrange()
        for widget in below(entry.box):
            widget.close()
        self._changed()

    def _entry(self, policy: Any) -> Entry:
        return Entry(policy, self._edited, self._remove)

    def _arrange(self) -> None:
        self._list.children = [entry.box for entry in self.entries]
        self.add.disabled = len(self.entries) >= MOST
        self._name()

    def _name(self) -> None:
        """Number the policies, and say what each is called."""
        valid = not any(model.errors for model in self.models)
        names = titles(self.specs()) if valid else [""] * len(self.entries)
        for number, (entry, name) in enumerate(zip(self.entries, names, strict=True), start=1):
            entry.show(number, name, len(self.entries))
