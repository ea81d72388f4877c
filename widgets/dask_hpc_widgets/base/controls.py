"""The widgets of ipywidgets that the package uses, which tell a page of nothing that it takes for granted.

A layout has 45 properties of which three are set; a page takes each that it is not told of for None. A
panel of 70 widgets so begins with a sixth less to send. Import it as ``widgets``.
"""

from __future__ import annotations

from typing import Any

import ipywidgets
from ipywidgets.widgets.trait_types import InstanceDict
from ipywidgets.widgets.widget import widget_serialization


class _Lean:
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
