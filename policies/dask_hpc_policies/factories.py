"""The builtin policies as callables, for the entry-point group ``dask_hpc.policies``.

Each takes its declared parameters by keyword and returns a policy.
"""

from __future__ import annotations

from functools import partial

from dask_hpc_policies.builtin import builtin

fcfs = partial(builtin, "fcfs")
easy = partial(builtin, "easy")
conservative = partial(builtin, "conservative")
fixed = partial(builtin, "fixed")
dask_default = partial(builtin, "dask-default")
prma_fpsma = partial(builtin, "prma-fpsma")
prma_egs = partial(builtin, "prma-egs")
pwma_fpsma = partial(builtin, "pwma-fpsma")
pwma_egs = partial(builtin, "pwma-egs")
equipartition = partial(builtin, "equipartition")
performance_aware = partial(builtin, "performance-aware")
fcfs_malleable = partial(builtin, "fcfs-malleable")
mebf = partial(builtin, "mebf")
io_aware = partial(builtin, "io-aware")
sfsj = partial(builtin, "sfsj")
power_aware = partial(builtin, "power-aware")
fair = partial(builtin, "fair")
interval_fixed = partial(builtin, "interval-fixed")
interval_young = partial(builtin, "interval-young")
interval_daly = partial(builtin, "interval-daly")
placement = partial(builtin, "placement")
