"""What a view is: a name, a heading, and a function from what is known of the cluster to HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.views.table import Search, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the runtime answered at one moment, in sections by name."""

    #: `Runtime.status`: about the whole, and a section of each part of the runtime that has one.
    status: Mapping[str, Any]
    #: `Runtime.jobs` and the last of `Runtime.decisions`.
    jobs: Sequence[Mapping[str, Any]] = ()
    decisions: Sequence[Mapping[str, Any]] = ()
    #: Jobs that have ended and are remembered; `jobs` may hold the last of them alone.
    ended_jobs: int = 0
    #: What nodes and jobs have done since the picture before this one, as the runtime tells it.
    happened: Mapping[str, Any] = field(default_factory=dict)

    def section(self, name: str) -> Any:
        """``jobs``, ``decisions``, or what `status` has under this name; None when nobody fills it."""
        own = {"jobs": self.jobs, "decisions": self.decisions}
        return own[name] if name in own else self.status.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One part of the panel. It has no state: what it shows live is what it shows in an exported notebook."""

    #: Stable and short: what users and tests choose it by.
    name: str
    title: str
    #: The section of the picture that it shows; where that is missing, so is the view. Empty: it needs none.
    section: str = ""
    #: Pure, and called in any thread: views go on while a cell computes. Gives the markup below the title
    #: (`dask_hpc_widgets.base.markup`); must escape what it puts into markup of its own.
    html: Callable[[Picture], str]
    #: Pure. The same as data, for a browser that is sent what changes alone; None: it is sent as markup.
    table: Callable[[Picture, Search], Table] | None = None

    def body(self, picture: Picture) -> Markup:
        """What it shows; a view that fails says so and leaves the others alone."""
        try:
            found = self.html(picture)
            if not isinstance(found, str):
                raise TypeError(f"its function gave {type(found).__name__}, not text")
        except Exception as error:
            return markup.alert(f"the view {self.name} failed: {type(error).__name__}: {error}")
        return Markup(found)

    def is_in(self, picture: Picture) -> bool:
        """Whether there is anything to show."""
        return not self.section or picture.section(self.section) is not None
