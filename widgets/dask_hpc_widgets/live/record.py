"""The static twin of a panel in a notebook: what stays in the cell when the panel is gone.

Rules of the file: the one module that writes outputs of cells. The twin stands in an output of its own, and a
page hides it as long as the panel is there; so it needs no kernel to come back: after *Close panel*, after a
restart of the kernel, in an exported notebook.
"""

from __future__ import annotations

import itertools
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import IPython.display

from dask_hpc_widgets.base.markup import Markup, template

#: Least time between two writings of what goes on; all of the twin is written then.
PERIOD_S = 60.0
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
        #: What was known when it was written last, and when that was.
        self._phase: Any = None
        self._known: Any = None
        self._kept_s = 0.0

    def show(self, twin: str, panel: Mapping[str, Any], phase: Any, known: Any) -> None:
        """Write both as outputs of the cell that runs: `twin` as HTML, `panel` by MIME type.

        `phase`, `known`: see `due`.
        """
        self.there = True
        self._phase, self._known, self._kept_s = phase, known, time.monotonic()
        self._publish(twin, update=False)
        _publish(dict(panel))

    def due(self, phase: Any, known: Any, now_s: float | None = None) -> bool:
        """Whether cells are to be written anew: at once when `phase` is another, else once a minute.

        Asked again and again while the kernel is free, with what the twin would tell now: `known` is another
        when that is. `now_s` is on the clock of `time.monotonic`; None: now.
        """
        now_s = time.monotonic() if now_s is None else now_s
        fresh = phase == self._phase and (known == self._known or now_s - self._kept_s < PERIOD_S)
        if fresh or not self.there:
            return False
        self._phase, self._known, self._kept_s = phase, known, now_s
        return True

    def failed(self) -> None:
        """What was due was not written: it is due again when its time has come."""
        self._known = None

    def keep(self, twin: Callable[[], str]) -> None:
        """Have the cells that show the panel keep what `twin` gives; without such cells it is not asked."""
        if self.there and not sys.is_finalizing():
            self._publish(twin(), update=True)

    def _publish(self, twin: str, update: bool) -> None:
        text = template("record.html", id=self._id, panel=self.name, twin=Markup(twin))
        _publish({"text/html": str(text)}, transient={"display_id": self._id}, update=update)
