"""Flows of steps from programs outside Dask."""
