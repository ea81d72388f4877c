"""Clusters on Slurm, through dask-jobqueue."""
