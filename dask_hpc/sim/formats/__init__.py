"""Readers of workloads, one module a format; `dask_hpc.sim.model.workload` chooses among them."""
