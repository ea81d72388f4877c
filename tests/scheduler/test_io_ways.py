"""What goes through metered stores is counted whatever ways to read and write a release of Zarr has."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import zarr
from distributed.metrics import context_meter
from zarr.core import codec_pipeline
from zarr.storage import LocalStore, MemoryStore, WrapperStore, ZipStore

from dask_hpc.wire import IO_METRIC
from dask_hpc.worker.io.mounts import mount_of
from dask_hpc.worker.metered import MeteredStore, metered


class Ahead(MemoryStore):
    """With a way past the loop that no release of Zarr has yet."""

    def put_sync(self):
        raise AssertionError("it is not counted")


def test_nothing_goes_past_what_is_counted(tmp_path):
    no_bytes = set("open with_read_only close read_only".split())
    no_bytes |= {f"supports_{what}" for what in ("writes", "deletes", "listing")}
    ways = {name for name in vars(WrapperStore) if not name.startswith("_")} | {"_get_many", "_set_many"}
    assert ways - no_bytes <= vars(MeteredStore).keys()
    assert not hasattr(metered(Ahead()), "put_sync")
    values = np.random.default_rng(3).random((8, 6))
    # some releases have one that does without a loop
    pipelines = vars(codec_pipeline).keys() & {"BatchedCodecPipeline", "FusedCodecPipeline"}
    for number, pipeline in enumerate(sorted(pipelines)):
        for store in (MemoryStore(), LocalStore(tmp_path / pipeline)):
            moved = Counter()

            def tell(name, amount, unit, moved=moved):
                moved[name] += amount

            there = metered(store, f"t{number}")
            with (
                zarr.config.set({"codec_pipeline.path": f"{codec_pipeline.__name__}.{pipeline}"}),
                context_meter.add_callback(tell),
            ):
                array = zarr.create_array(
                    there, shape=(8, 6), chunks=(2, 3), shards=(4, 6), dtype="f8", compressors=None
                )
                array[:] = values
                read = f"{IO_METRIC} read {there.kind} t{number}"
                before = moved[read]
                np.testing.assert_array_equal(array[2:4, :3], values[2:4, :3])
                # the index of a shard of four chunks, with its checksum, and one of these
                assert moved[read] - before == 4 * 16 + 4 + 2 * 3 * 8
            written = asyncio.run(store.getsize_prefix(""))
            assert moved[f"{IO_METRIC} write {there.kind} t{number}"] == written


def test_an_archive_is_where_its_file_is_and_one_in_memory_is_in_no_file(tmp_path):
    archive = ZipStore(tmp_path / "a.zip", mode="w")
    assert (metered(archive).kind, metered(archive).target) == mount_of(tmp_path)
    archive.path = None  # as some releases have it of what is no file
    assert (metered(archive).kind, metered(archive).target) == ("store", "ZipStore")
