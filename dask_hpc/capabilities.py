"""Capabilities of other packages: found by their entry points, loaded once.

A capability is a module that, when it is imported, registers what it brings: parts of the scheduler side
(`dask_hpc.scheduler.tables.parts`), settings (`dask_hpc.config`), methods of the runtime
(`dask_hpc.client.methods`), a twin in the simulator (`dask_hpc.sim.engine.twins`), views of the panel
(`dask_hpc_widgets.views`). A package names it in the entry-point group ``dask_hpc.capabilities``; it has
to be installed wherever it is to work: for a part, with the scheduler.
"""

from __future__ import annotations

import functools
import warnings
from importlib.metadata import entry_points

GROUP = "dask_hpc.capabilities"


@functools.cache
def load() -> tuple[str, ...]:
    """Import all capabilities that are installed, once; gives the names of those that could be.

    One that cannot be imported is left out with a warning.
    """
    loaded = []
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            text = f"capability {entry.name!r} ({entry.value}) is left out: {type(error).__name__}: {error}"
            warnings.warn(text, stacklevel=2)
        else:
            loaded.append(entry.name)
    return tuple(loaded)
