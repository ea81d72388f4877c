"""The scheduler side: jobs, allotments, admission and reconfiguration on a live Dask scheduler.

`dask_reads` and `dask_writes` are the only modules that touch the internals of `distributed`, one
reading and one writing; `selfcheck` tells at start whether they are as expected.
"""
