"""Readers of workloads, one module a format; `dask_hpc.sim.workload` chooses among them."""
