"""The static twin of a panel in a notebook: what stays in the cell when the panel is gone.

Rules of the file: the one module that writes outputs of cells. The twin stands in an output of its own, and a
page hides it as long as the panel is there; so it needs no kernel to come back: after *Close panel*, after a
restart of the kernel, in an exported notebook.
"""

from __future__ import annotations

import itertools
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

import IPython.display

from dask_hpc_widgets.base.markup import Markup, template

_numbers = itertools.count()
#: It has no types of its own.
_publish: Any = IPython.display.publish_display_data


class Record:
    """The twin of one panel.

    Attributes
    ----------
    name
        A class that the panel has in a page, and nothing else there.
    there
        Whether a cell shows it.
    """

    def __init__(self) -> None:
        self._id = f"dask-hpc-{secrets.token_hex(4)}-{next(_numbers)}"
        self.name = f"{self._id}-panel"
        self.there = False

    def show(self, twin: str, panel: Mapping[str, Any]) -> None:
        """Write both as outputs of the cell that runs: `twin` as HTML, `panel` by MIME type."""
        self.there = True
        self._publish(twin, update=False)
        _publish(dict(panel))

    def keep(self, twin: Callable[[], str]) -> None:
        """Have the cells that show the panel keep what `twin` gives; without such cells it is not asked."""
        if self.there and not sys.is_finalizing():
            self._publish(twin(), update=True)

    def _publish(self, twin: str, update: bool) -> None:
        text = template("record.html", id=self._id, panel=self.name, twin=Markup(twin))
        _publish({"text/html": str(text)}, transient={"display_id": self._id}, update=update)
