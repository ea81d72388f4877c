"""Services in the memory of hosts: managers compress and encrypt what they hold, for others too."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hosts import before, five_hosts, lose, places
from saved import write_key

import dask_hpc
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.layout import slot_bytes
from dask_hpc.checkpoint.plan import Array
from dask_hpc.checkpoint.segments import Segments
from dask_hpc.checkpoint.services import closed, most_added, served, services_of, unserved, unwrapped
from dask_hpc.checkpoint.values import form
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.serving import serve

TEXT = b"what is written here is in the clear; "
HOSTS = ("alpha", "beta")


def dataset():
    numbers = np.arange(600.0).reshape(30, 20)
    return xr.Dataset(
        {
            "regular": (("y", "x"), da.from_array(numbers, chunks=(8, 7)), {"units": "K"}),
            "ragged": ("y", da.from_array(numbers[:, 0], chunks=((3, 20, 7),))),
            "text": ("y", da.from_array(np.array([f"row {n}" for n in range(30)], "T"), chunks=11)),
            "any": ("y", da.from_array(np.array([{"n": n} for n in range(30)], object), chunks=17)),
        },
        {"y": np.arange(30)},
    )


def put(segments, folder, raws, more):
    """Write blocks as a worker does; gives the segment and the rows that its manager is told."""
    name, at, rows = segments.reserve(sum(slot_bytes(len(raw) + more) for raw in raws)), 0, []
    for number, raw in enumerate(raws):
        with open(folder / f"{name}.segment", "r+b") as file:
            os.pwrite(file.fileno(), raw, at)
        rows.append([0, number, at, len(raw), crc32c(raw), None])
        at += slot_bytes(len(raw) + more)
    return name, rows


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("sealed", [None, "field/1"])
def test_blocks_are_served_in_place_and_nothing_of_them_stays_in_the_clear(compressed, sealed, tmp_path):
    """Noise becomes longer, and must not run over the block behind it."""
    array = Array("a", "opaque", None, (5,), ((1,) * 5,), compressed=compressed, sealed=sealed)
    key_file = write_key(tmp_path / "key")
    raws = [os.urandom(4092), TEXT * 500, b"", os.urandom(4085), os.urandom(8188)]
    segments = Segments(str(tmp_path), 1 << 20)
    name, rows = put(segments, tmp_path, raws, most_added(array))
    before_bytes = (tmp_path / f"{name}.segment").stat().st_size
    places = serve(str(tmp_path), name, [array], rows, key_file)
    segments.shrink(name, sum(slot_bytes(nbytes) for _, nbytes, _ in places))
    content = (tmp_path / f"{name}.segment").read_bytes()
    assert (len(content) < before_bytes) == compressed
    # of what repeats, once is enough
    assert (content.count(TEXT) < 10) == (compressed or sealed is not None)
    for number, (raw, (offset, nbytes, crc)) in enumerate(zip(raws, places, strict=True)):
        stored = np.frombuffer(content[offset : offset + nbytes], np.uint8)
        assert crc32c(stored) == crc
        with dask.config.set({"hpc.checkpoint.key-file": key_file}):
            assert raw == b"" or unwrapped(form(array, number), stored, None).tobytes() == raw
    if sealed:
        # the first 50 bytes of each block, and what is behind it
        assert all(raw[:50] not in content for raw in raws if raw)


def test_what_a_worker_has_not_written_as_it_says_is_refused(tmp_path):
    array = Array("a", "opaque", None, (2,), ((1, 1),), compressed=True)
    segments = Segments(str(tmp_path), 1 << 20)
    name, rows = put(segments, tmp_path, [b"one", b"two"], most_added(array))
    with pytest.raises(CheckpointError, match=r"block 1 of a is not what was to be written: the checksum"):
        serve(str(tmp_path), name, [array], [rows[0], [*rows[1][:4], 7, None]], None)
    with pytest.raises(ValueError, match="begins before"):
        serve(str(tmp_path), name, [array], [rows[0], rows[0]], None)
    with pytest.raises(CheckpointError, match="no key is named"):
        serve(str(tmp_path), name, [replace(array, sealed="field/1")], rows, None)


@pytest.mark.parametrize("services", ["plain", "compress", "encrypt", "compress+encrypt"])
def test_a_plan_with_services_is_known_by_them_and_is_as_it_was_without(services, tmp_path):
    plan, _ = describe(dataset(), "field")
    with dask.config.set({"hpc.checkpoint.key-file": write_key(tmp_path / "key")}):
        found = closed(served(plan, services))
        assert services_of(found) == services
        assert unserved(found) == plan


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    key_file = write_key(tmp_path_factory.mktemp("keys") / "key")
    # workers and the scheduler, and whoever restores, have it from their configuration
    with pytest.MonkeyPatch.context() as patched, dask.config.set({"hpc.checkpoint.key-file": key_file}):
        patched.setenv("DASK_HPC__CHECKPOINT__KEY_FILE", key_file)
        with five_hosts(HOSTS) as client:
            yield client


@pytest.mark.parametrize("transfer", ["push", "pull"])
def test_managers_hold_blocks_with_services_and_what_a_host_loses_comes_back(transfer, cluster):
    before(lambda: set(places(cluster)) == set(HOSTS), "both hosts are there")
    rt = dask_hpc.install(cluster)
    rt.update(checkpoint_redundancy="partner", checkpoint_transfer=transfer)
    [field] = cluster.persist([dataset()])
    data = cluster.scatter([TEXT * 4000, np.zeros(9000), {"n": 1}], hash=False)
    commit = rt.checkpoint(field, "field", levels=("L1", "L2"), services="compress+encrypt")
    row = commit.status()
    assert (row["levels"], row["services"]) == (["L1", "L2"], "compress+encrypt")
    values = rt.checkpoint(data, "values", levels=("L1", "L2"), services="compress+encrypt")
    assert values.status()["bytes"] < 20_000
    folders = [Path(folder) for _, folder, _ in places(cluster).values()]
    content = b"".join(path.read_bytes() for folder in folders for path in folder.glob("*.segment"))
    assert TEXT not in content
    assert b"row 1" not in content
    since = rt.status()["checkpoints"]
    lose(cluster, "alpha")
    back = cluster.gather(data)
    assert (bytes(back[0]), back[2]) == (TEXT * 4000, {"n": 1})
    np.testing.assert_array_equal(back[1], np.zeros(9000))
    got = cluster.compute(dask_hpc.restore("field", cluster, allow_pickle=True), sync=True)
    xr.testing.assert_identical(got, dataset().compute(scheduler="sync"))
    told = rt.status()["checkpoints"]
    assert told["restored_results"] > since["restored_results"]
    assert told["recomputed_results"] == since["recomputed_results"]
