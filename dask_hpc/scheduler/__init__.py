"""The scheduler side: jobs, allotments, admission and reconfiguration on a live Dask scheduler.

The room `internals` alone touches the internals of `distributed`; its `selfcheck` tells at start whether they
are as expected.
"""
