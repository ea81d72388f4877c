"""Checkpoints in a YAML workload: when a job commits, what that costs and what it survives.

.. code-block:: yaml

    checkpoints:
      every: 30 s                   # from the end of one commit to the next; points: after scheduling points;
                                    # policy: when the policy asks for it
      levels:
        - {survives: process, blocking: 2 s}
        - survives: domain          # process, host, domain or several: the worst failure it survives
          each: 4                   # every fourth commit is of this level too (default 1)
          blocking: 1 s             # holds the job up
          node_bytes: 2e9           # of each node; moved beside computing, over
          path: link                # the links to other nodes, or the file-system (default)
          restart: 10 s             # reading back holds a job up that begins again from here
"""

from __future__ import annotations

import math
from typing import Any

from dask_hpc.sim.formats.fields import Field
from dask_hpc.sim.model.checkpoints import PATHS, Checkpoints, Level
from dask_hpc_policies.rules.losses import SEVERITIES

#: Words for commits after scheduling points, and for those that only the policy asks for.
POINTS, POLICY = "points", "policy"
_LEVEL = ("survives", "each", "blocking", "node_bytes", "path", "restart")


def read_checkpoints(place: Field | None, *, staged: bool) -> Checkpoints | None:
    """The checkpoints at `place` of a job, which has stages or not; None when nothing is said of them.

    Raises
    ------
    WorkloadError
        For whatever is missing, unknown or out of range, with file, line and field.
    """
    if place is None or place.value is None:
        return None
    place.mapping(("every", "levels"))
    every, levels = place.need("every"), place.need("levels")
    found = tuple(_level(one) for one in levels.sequence())
    if not found:
        levels.fail("is empty; give one level at least")
    if every.value == POLICY:
        return Checkpoints(levels=found, every_s=math.inf)
    if every.value != POINTS:
        return Checkpoints(levels=found, every_s=every.duration_s(above_zero=True))
    if not staged:
        every.fail("points are of jobs with stages; give a duration")
    return Checkpoints(levels=found)


def _level(place: Field) -> Level:
    place.mapping(_LEVEL)
    each, blocking, restart = place.get("each"), place.get("blocking"), place.get("restart")
    node_bytes, path = place.get("node_bytes"), place.get("path")
    if path is not None and node_bytes is None:
        path.fail("is of bytes that are moved; give node_bytes, or leave it out")
    where: Any = "file-system" if path is None else path.text(PATHS)
    survives: Any = place.need("survives").text(SEVERITIES)
    return Level(
        survives=survives,
        each=1 if each is None else each.integer(1),
        blocking_s=0.0 if blocking is None else blocking.duration_s(),
        node_bytes=0.0 if node_bytes is None else node_bytes.number(),
        path=where,
        restart_s=0.0 if restart is None else restart.duration_s(),
    )


def checkpoints_text(checkpoints: Checkpoints) -> dict[str, Any]:
    """What `read_checkpoints` reads back."""
    levels = []
    for level in checkpoints.levels:
        row: dict[str, Any] = {"survives": level.survives}
        given = {
            "each": (level.each, 1),
            "blocking": (level.blocking_s, 0.0),
            "node_bytes": (level.node_bytes, 0.0),
            "path": (level.path if level.node_bytes else "file-system", "file-system"),
            "restart": (level.restart_s, 0.0),
        }
        levels.append(row | {key: value for key, (value, default) in given.items() if value != default})
    every_s = checkpoints.every_s
    every = POINTS if every_s is None else POLICY if every_s == math.inf else every_s
    return {"every": every, "levels": levels}
