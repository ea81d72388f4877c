"""Pure decisions: what jobs start, grow, shrink or wait, and why.

Nothing in this package knows Dask, a clock or randomness. The scheduler plugin and the simulator hand
the same snapshots to the same policies.
"""
