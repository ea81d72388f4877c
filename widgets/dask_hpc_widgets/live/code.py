"""Copy as code: what is chosen in the panel as lines of Python that do the same, in a box with a copy button.

Rules of the file: the code is made of data alone; it is never run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pprint import pformat
from typing import Any

from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.drawn import AnyWidget, drawn
from dask_hpc_widgets.forms.fields import below

_PARTS = ("elements.js", "code.js")
_FULL = {"width": "auto"}
_WIDTH = 80


def code(spec: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    """Python that has a cluster decide by `spec` (`registry.spec_of`) and work by `settings`, by key.

    It names ``rt``, the handle of the runtime, and nothing else.
    """
    lines = ["# rt is what dask_hpc.install(client) or dask_hpc.runtime(client) gives"]
    lines.append(f"policy = {_text(spec, 'policy = ')}")
    if settings:
        lines.append(f"settings = {_text(settings, 'settings = ')}")
    lines.append(f"rt.update(policy{', **settings' if settings else ''})")
    return "\n".join(lines) + "\n"


def _text(data: Mapping[str, Any], before: str) -> str:
    """Plain data as Python, under its own beginning."""
    lines = pformat(dict(data), sort_dicts=False, width=_WIDTH - len(before)).splitlines()
    return f"\n{' ' * len(before)}".join(lines)


class CodePart:
    """The button and, once it was clicked, the box.

    Parameters
    ----------
    told
        Gives the code of what is chosen now; raises `ValueError` when that is not valid.
    """

    def __init__(self, told: Callable[[], str]) -> None:
        self._told = told
        #: What is in the box, and whether that is a text to be copied.
        self.text = ""
        self.show = widgets.Button(
            description="Copy as code",
            tooltip="The chosen policy and settings as lines of Python that do the same",
            layout={"width": "auto", "min_width": "8rem"},
        )
        self.says = widgets.HTML(layout=_FULL)
        self._text: Any
        if AnyWidget is None:
            self._text = widgets.Textarea(description="Code", disabled=False, layout=_FULL)
        else:
            self._text = drawn(_PARTS, "code.css", lambda: {"code": self.text})
        self._open = False
        self.box = widgets.VBox([self.show, self.says], layout=_FULL)
        self.show.on_click(lambda _: self._click())

    def refresh(self) -> None:
        """Show what is chosen now, where the box is open."""
        if not self._open:
            return
        try:
            text, error = self._told(), ""
        except ValueError as wrong:
            text, error = "", f"No code: {wrong}"
        # the field says it aloud
        says = markup.part(markup.soft(error)) if error else ""
        if self.says.value != says:
            self.says.value = says
        shown = [self.show, self.says, *([self._text] if text else [])]
        if len(self.box.children) != len(shown):
            self.box.children = shown
        if text != self.text:
            self.text = text
            if AnyWidget is None:
                self._text.value = text
            else:
                self._text.send({"code": text})

    def close(self) -> None:
        """Take the box out of the kernel, also while it is not shown."""
        for widget in below(self._text):
            widget.close()

    def _click(self) -> None:
        self._open = not self._open
        self.show.description = "Hide code" if self._open else "Copy as code"
        if not self._open:
            self.says.value = ""
            self.box.children = [self.show, self.says]
        self.refresh()
