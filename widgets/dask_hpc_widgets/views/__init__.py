"""The views of the panel and their registry. Another one takes one file and one `register`.

A capability of another package registers its views when it is loaded (`dask_hpc.capabilities`).
"""

from __future__ import annotations

from dask_hpc import capabilities
from dask_hpc_widgets.views import checkpoints, coupling, decisions, io, jobs, nodes, power, sizes, walltime
from dask_hpc_widgets.views.view import Picture, View

__all__ = ["Picture", "View", "named", "register", "registered"]

_views: dict[str, View] = {}


def register(view: View) -> None:
    """Have every panel that is opened from now on show `view`, after those that are registered.

    Raises
    ------
    TypeError
        When it is no `View`.
    ValueError
        When another view has its name, or there is a "/" in it: so the second tables of views are named.
    """
    if not isinstance(view, View):
        raise TypeError(f"register takes a View(name=..., title=..., html=...), not {view!r}")
    if "/" in view.name:
        raise ValueError(f"a view is named {view.name!r}; a name has no '/'")
    if _views.get(view.name, view) != view:
        raise ValueError(f"a view named {view.name!r} is registered; choose another name")
    _views[view.name] = view


def registered() -> tuple[View, ...]:
    """All views in order of registration, those of capabilities last."""
    capabilities.load()
    return tuple(_views.values())


def named(name: str) -> View:
    """The view of that name.

    Raises
    ------
    ValueError
        When there is none.
    """
    capabilities.load()
    if name not in _views:
        raise ValueError(f"no view is named {name!r}; there are {', '.join(_views)}")
    return _views[name]


for _view in (
    jobs.VIEW, sizes.VIEW, nodes.VIEW, walltime.VIEW, decisions.VIEW, power.VIEW, checkpoints.VIEW, io.VIEW,
    coupling.VIEW,
):  # fmt: skip
    register(_view)
