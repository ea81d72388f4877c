"""Ranges and choices that settings share with the rules they are for.

A module of its own: every worker reads its settings when it starts, and none of those rules runs on one.
"""

from __future__ import annotations

from typing import Literal

from dask_hpc_policies.params import Duration

#: Smallest and largest weight of a user.
WEIGHTS = (0.001, 1000.0)
#: More than one node draws: two racks of accelerators draw a tenth of it.
MOST_NODE_W = 1e6

#: How long nodes of a pool are kept.
HOLD = Duration("hold_s", None, hi=86400.0, none_ok=True, none="auto", label="Hold",
                help="how long nodes are kept after they were last needed, or have come")  # fmt: skip
#: They are kept so many times as long as they take to come, unless a hold is set.
HOLD_MULTIPLE = 2.0
#: Longest hold that comes of this, in seconds, and the hold while no node has been seen to come.
MOST_HOLD_S = 60.0

#: What may be done to keep a power corridor, and what is where nobody says it.
LEVERS = ("resize", "hold", "start", "pool", "steal", "cap")
DEFAULT_LEVERS = ("resize", "hold", "start")
#: So far ahead the draw is forecast, and announced bounds count for a job of unknown length, by default.
HORIZON_S = 30.0

#: Redundancy of what is in the memory of hosts, and the most hosts in a set: as many as the field of the code
#: has elements.
SchemeName = Literal["single", "partner", "xor", "reed-solomon"]
SCHEMES: tuple[SchemeName, ...] = ("single", "partner", "xor", "reed-solomon")
MOST_HOSTS = 16
