"""Lists of plain dicts that show themselves as a table in a notebook.

They equal, and are written to JSON as, the list that they are. A slice is one again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from dask_hpc.reprs import html, never_raises


class Rows(list):
    """Rows of one kind, and when they were true.

    Parameters
    ----------
    rows
        Dicts.
    now_s
        Clock of the scheduler when it gave them; None when it did not say.
    """

    #: What the function is called that shows them.
    _kind: ClassVar[str]

    def __init__(self, rows: Iterable[dict[str, Any]] = (), now_s: float | None = None) -> None:
        super().__init__(rows)
        self.now_s = now_s

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return type(self)(found, self.now_s) if isinstance(index, slice) else found

    @never_raises
    def _repr_html_(self) -> str | None:
        return html(self._kind, self, self.now_s)


class Jobs(Rows):
    """What `Runtime.jobs` gives."""

    _kind = "jobs"


class Decisions(Rows):
    """What `Runtime.decisions` gives."""

    _kind = "decisions"


class Policies(Rows):
    """What `policies` gives."""

    _kind = "policies"


def policies() -> Policies:
    """Policies and ready-made settings by name: what each does and its parameters, one dict each.

    The same rows as ``dask hpc policies --json``.
    """
    from dask_hpc_policies import registry

    return Policies(registry.describe_all())
