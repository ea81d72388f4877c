"""The views of the panel and their registry. Another one takes one file and one `register`.

A view of another package is an entry point of the group ``dask_hpc.views`` whose object is a `View`, or is
registered by whoever opens the panel.
"""

from __future__ import annotations

import functools

from dask_hpc import extensions
from dask_hpc_widgets.views import decisions, jobs, nodes, sizes, walltime
from dask_hpc_widgets.views.view import Picture, View

__all__ = ["Picture", "View", "named", "register", "registered"]

GROUP = "dask_hpc.views"

_views: dict[str, View] = {}


def register(view: View) -> None:
    """Have every panel that is opened from now on show `view`, after those that are registered.

    Raises
    ------
    TypeError
        When it is no `View`.
    ValueError
        When another view has its name.
    """
    if not isinstance(view, View):
        raise TypeError(f"register takes a View(name=..., title=..., html=...), not {view!r}")
    if _views.get(view.name, view) != view:
        raise ValueError(f"a view named {view.name!r} is registered; choose another name")
    _views[view.name] = view


def registered() -> tuple[View, ...]:
    """All views in order of registration, those of other packages included."""
    _load_others()
    return tuple(_views.values())


def named(name: str) -> View:
    """The view of that name.

    Raises
    ------
    ValueError
        When there is none.
    """
    _load_others()
    if name not in _views:
        raise ValueError(f"no view is named {name!r}; there are {', '.join(_views)}")
    return _views[name]


@functools.cache
def _load_others() -> None:
    """Register the views of other packages, once; one that cannot be is left out with a warning."""
    extensions.load(GROUP, register)


for _view in (jobs.VIEW, sizes.VIEW, nodes.VIEW, walltime.VIEW, decisions.VIEW):
    register(_view)
