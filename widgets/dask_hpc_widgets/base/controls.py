"""The widgets of ipywidgets that the package uses, which tell a page of nothing that it takes for granted.

A layout has 45 properties of which three are set; a page takes each that it is not told of for None. A
panel of 70 widgets so begins with a sixth less to send. Widgets that are made together share the layouts and
styles that are alike (`alike`): else most of what a panel begins with would be these.

What a page tells a widget is taken in the loop that it was made in. Some kernels take messages of widgets in
a thread beside that of cells (*subshells*: ipykernel 7.0 with JupyterLab 4.4), where a click would meet an
update half done. Import it as ``widgets``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import ipywidgets
from ipywidgets.widgets.trait_types import InstanceDict
from ipywidgets.widgets.widget import widget_serialization

from dask_hpc.show import running_loop

#: Layouts and styles of the widgets that are being made together, by kind and what they say.
_together: ContextVar[dict[Any, Any] | None] = ContextVar("_together", default=None)


@contextmanager
def alike() -> Iterator[None]:
    """Widgets that are made inside share their layouts and styles where these say the same.

    A layout that says anything of ``display`` is its widget's own: what is shown and hidden says so from the
    beginning. Whoever closes one of the widgets closes all that were made with it.
    """
    before = _together.set({})
    try:
        yield
    finally:
        _together.reset(before)


def _alike(kind: Any, says: Any) -> Any:
    """A layout or style that says this."""
    made = _together.get()
    if made is None or not isinstance(says, Mapping) or "display" in says:
        return says
    key = kind, tuple(sorted(says.items()))
    return made.get(key) or made.setdefault(key, kind(**says))


class AtHome:
    """A widget that hears what a page sends in the loop that it was made in, if there was one."""

    _home: asyncio.AbstractEventLoop | None = None

    def __init__(self, *children: Any, **given: Any) -> None:
        self._home = running_loop()
        super().__init__(*children, **given)

    def _handle_msg(self, message: Any) -> None:
        """See `ipywidgets.Widget`."""
        take = super()._handle_msg  # type: ignore[misc]
        if self._home is None or self._home.is_closed() or self._home is running_loop():
            take(message)
        else:
            self._home.call_soon_threadsafe(take, message)


class _Lean(AtHome):
    def __init__(self, *children: Any, **given: Any) -> None:
        for name in ("layout", "style"):
            trait = type(self).class_traits().get(name)  # type: ignore[attr-defined]
            if trait is not None and isinstance(trait, InstanceDict):
                given[name] = _alike(trait.klass, given.get(name) or {})
        super().__init__(*children, **given)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> Any:
        """See `ipywidgets.Widget`; asked for all of it, what is None is left out."""
        state = super().get_state(key, drop_defaults)  # type: ignore[misc]
        if key is not None:
            return state
        return {name: value for name, value in state.items() if value is not None or name.startswith("_")}


class Layout(_Lean, ipywidgets.Layout):  # type: ignore[misc]
    """See `ipywidgets.Layout`."""


def _lean(kind: Any) -> Any:
    """The same kind of widget, with lean layouts."""
    layout = InstanceDict(Layout).tag(sync=True, **widget_serialization)
    return type(kind.__name__, (_Lean, kind), {"layout": layout, "__doc__": kind.__doc__})


Button = _lean(ipywidgets.Button)
Checkbox = _lean(ipywidgets.Checkbox)
Dropdown = _lean(ipywidgets.Dropdown)
FloatProgress = _lean(ipywidgets.FloatProgress)
GridBox = _lean(ipywidgets.GridBox)
HBox = _lean(ipywidgets.HBox)
HTML = _lean(ipywidgets.HTML)
Text = _lean(ipywidgets.Text)
Textarea = _lean(ipywidgets.Textarea)
VBox = _lean(ipywidgets.VBox)


def button(label: str, tooltip: str, style: str = "") -> Any:
    """A button as wide as its words, and not much narrower than others."""
    layout = {"width": "auto", "min_width": "8rem"}
    return Button(description=label, tooltip=tooltip, button_style=style, layout=layout)
