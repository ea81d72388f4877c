"""The simulator: what a policy would do to a workload on a machine, with the policy objects that run live.

Rules of the package: no Dask, no cluster, no clock; chance only from a seed. Imports go down:
``engine`` over ``workload`` over ``job`` and ``machine``.
"""
