"""The producer's end of a flow: programs outside Dask that hand their fields over step by step."""
