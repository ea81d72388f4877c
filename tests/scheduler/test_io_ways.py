"""What goes through metered stores is counted whatever ways to read and write a release of Zarr has."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import zarr
from distributed.metrics import context_meter
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from dask_hpc.wire import IO_METRIC
from dask_hpc.worker.metered import MeteredStore, metered


def test_nothing_goes_past_what_is_counted(tmp_path):
    no_bytes = set("open with_read_only close read_only".split())
    no_bytes |= {f"supports_{what}" for what in ("writes", "deletes", "listing")}
    ways = {name for name in vars(WrapperStore) if not name.startswith("_")} | {"_get_many", "_set_many"}
    assert ways - no_bytes <= vars(MeteredStore).keys()
    assert not hasattr(metered(MemoryStore()), "put_sync")
    values = np.random.default_rng(3).random((8, 6))
    for number, store in enumerate((MemoryStore(), LocalStore(tmp_path))):
        moved = Counter()
        with context_meter.add_callback(lambda name, value, unit, moved=moved: moved.update({name: value})):
            there = metered(store, f"t{number}")
            array = zarr.create_array(there, shape=(8, 6), chunks=(2, 3), shards=(4, 6), dtype="f8")
            array[:] = values
            read = f"{IO_METRIC} read {there.kind} t{number}"
            before = moved[read]
            np.testing.assert_array_equal(array[2:4, :3], values[2:4, :3])
            # the index of a shard, and one of its chunks
            assert before < moved[read] < before + values.nbytes
        written = asyncio.run(store.getsize_prefix(""))
        assert moved[f"{IO_METRIC} write {there.kind} t{number}"] == written
