"""Widgets that are drawn in the browser by a module of their own, put together of parts without a build step.

Rules of the file: knows no cluster. Without anywidget there are none: who makes one asks `AnyWidget` first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import traitlets

from dask_hpc_widgets.base.controls import AtHome, Layout


def _any_widget() -> Any:
    try:
        from anywidget import AnyWidget
    except ImportError:
        return None
    return AnyWidget


#: The base of widgets that bring their own module; None: it is not installed.
AnyWidget: Any = _any_widget()

#: All that a page begins with, as data.
Whole = Callable[[], Mapping[str, Any]]


def drawn(parts: Sequence[str], style: str, whole: Whole) -> Any:
    """A widget whose module is the templates `parts` one after the other, and whose look is `style`.

    Its trait ``first`` is asked of `whole` whenever a page needs it: also when one is loaded again.
    """
    return _made(tuple(parts), style)(whole)


@functools.cache
def _made(parts: tuple[str, ...], style: str) -> Any:
    """The class of such a widget; made when anywidget is there."""
    code = resources.files("dask_hpc_widgets").joinpath("templates")

    class Drawn(AtHome, AnyWidget):  # type: ignore[misc]
        _esm = _module(parts)
        _css = code.joinpath(style).read_text(encoding="utf-8")
        first: traitlets.Dict[str, Mapping[str, Any]] = traitlets.Dict().tag(
            sync=True, to_json=lambda value, widget: widget.whole()
        )

        def __init__(self, whole: Whole) -> None:
            self.whole = whole
            super().__init__(layout=Layout())

    # a page keeps one look for each name of a class
    Drawn.__name__ = f"Drawn_{style.partition('.')[0]}"
    return Drawn


def _module(names: Sequence[str]) -> str:
    """An ES module of these parts, without what a browser does not need: comments and indentation."""
    code = resources.files("dask_hpc_widgets").joinpath("templates")
    texts = (code.joinpath(name).read_text(encoding="utf-8") for name in names)
    lines = (line.strip() for text in texts for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
