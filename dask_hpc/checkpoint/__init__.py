"""Checkpoints on a file system: level L3, versions of named data as plain Zarr groups.

`describe` says what an object is made of, `write_blocks` puts its blocks to disk from any number of writers,
`Store` makes a version of them, `open_checkpoint` gives the object back. Nobody here knows a cluster.
"""
