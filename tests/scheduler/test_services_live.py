"""Compressed versions on a cluster: written, lost, read back and restored as plain ones are."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import futures_of, wait
from helpers import live, until
from losses import kill
from saved import save, write_key

import dask_hpc
from dask_hpc.checkpoint.opening import open_checkpoint
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.verify import verify
from dask_hpc.errors import CheckpointError, CheckpointValueError, ConfigError
from dask_hpc.scheduler.rpc.service import of


def content() -> xr.Dataset:
    """Regular, ragged, of text, of times and of anything."""
    numbers = np.arange(600.0).reshape(30, 20)
    return xr.Dataset(
        {
            "regular": (("y", "x"), da.from_array(numbers, chunks=(8, 7)), {"units": "K"}),
            "ragged": ("y", da.from_array(numbers[:, 0], chunks=((3, 20, 7),))),
            "text": ("y", da.from_array(np.array([f"row {n}" for n in range(30)], "T"), chunks=11)),
            "when": ("y", da.from_array(np.arange(30).astype("M8[ns]"), chunks=9)),
            "any": ("y", da.from_array(np.array([{"n": n} for n in range(30)], object), chunks=17)),
        },
        {"y": np.arange(30), "x": ("x", da.arange(20, chunks=6))},
    )


def compressed(store, name):
    """Which versions of a name have compressed blocks; None: some are being removed."""
    try:
        found = [each.manifest() for each in Store(store).versions(name) if each.complete]
    except CheckpointError:
        return None
    return [any(array.compressed for array in each.plan.arrays) for each in found]


@pytest.mark.parametrize("services", ["compress", "compress+encrypt"])
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_it_is_restored_on_any_number_of_workers(workers, services, tmp_path):
    found, config = [], {"hpc.checkpoint.key-file": write_key(tmp_path / "key")}

    @live(workers=workers, config=config)
    async def restored(c, s, *there):
        back = await dask_hpc.restore("field", c, store=tmp_path, allow_pickle=True)
        found.append(await c.compute(back))

    with dask.config.set(config):
        save(content(), tmp_path, services=services)
    restored()
    xr.testing.assert_identical(found[0], content().compute(scheduler="sync"))


@live(workers=3)
async def test_what_is_lost_is_read_back_and_the_hint_comes_before_the_setting(c, s, *workers, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    values = np.random.default_rng(3).integers(0, 9, 60_000)
    [field] = c.persist([da.from_array(values, chunks=5000)])
    scattered = await c.scatter([{"n": number} for number in range(6)])
    with pytest.raises(CheckpointValueError, match="services is 'zip'; allowed: plain, compress"):
        await rt.checkpoint(field, "field", services="zip")
    assert (await rt.checkpoint(field, "field")).version == 1
    commit = await rt.checkpoint(field, "field", services="compress")
    assert (await commit.status())["services"] == "compress"
    await rt.update(checkpoint_services="compress")
    await rt.checkpoint(scattered, "values", levels=("L1", "L2", "L3"))
    assert compressed(tmp_path, "field") == [False, True]
    assert (await commit.status())["bytes"] < values.nbytes / 2
    for worker in workers[:2]:
        await kill(s, [worker])
    np.testing.assert_array_equal(await c.compute(field), values)
    assert await c.gather(scattered) == [{"n": number} for number in range(6)]
    await rt.checkpoint(field, "field", services="plain")
    assert compressed(tmp_path, "field") == [True, False]
    assert all(verify(each) == [] for each in Store(tmp_path).versions())


def made(number):
    return np.full(3000, number)


@live(workers=2, config={"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"})
async def test_results_of_a_job_are_read_whatever_services_they_were_written_with(c, s, a, b, tmp_path):
    """A version shares the files of the one before it, which may have had other services."""
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))

    def newest():
        return (compressed(tmp_path, "night") or [])[-1:]

    async with rt.job("night", protect=True):
        first = c.map(made, range(5))
        await until(lambda: newest() == [False], "a version is written")
        await rt.update(checkpoint_services="compress")
        second = c.map(made, range(5, 10))
        await until(lambda: newest() == [True], "another is written")
        await rt.update(checkpoint_services="plain")
        third = c.map(made, range(10, 12))
        await until(lambda: newest() == [False], "and a third one")
        futures = [*first, *second, *third]
        await wait(futures)
        await kill(s, [a])
        for number, value in enumerate(await c.gather(futures)):
            np.testing.assert_array_equal(value, made(number))

    def whole():
        there = [each for each in Store(tmp_path).versions("night") if each.complete]
        # one that is being removed has no manifest any more
        return there[-1].manifest().plan.count == 12 and there[-1]

    version = await until(whole, "the last version has all")
    assert verify(version) == []
    found = dask.compute(open_checkpoint(version.path, allow_pickle=True), scheduler="sync")[0]
    assert {int(value[0]) for value in found.values()} == set(range(12))
    assert of(s).commits.protected.recomputed == 0


@live(workers=2)
async def test_encrypted_values_are_read_back_and_the_key_is_nowhere(c, s, a, b, tmp_path, caplog):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path / "store"))
    scattered = await c.scatter([{"n": number} for number in range(6)])
    [field] = c.persist([da.arange(1000, chunks=300)])
    # asked for, but there is no key
    with pytest.raises(CheckpointError, match="no key is named"):
        await rt.checkpoint(scattered, "values", services="encrypt")
    key_file = write_key(tmp_path / "key")
    with dask.config.set({"hpc.checkpoint.key-file": key_file}):
        commit = await rt.checkpoint(scattered, "values", services="compress+encrypt")
        await rt.checkpoint(field, "field", services="encrypt")
        await kill(s, [a])
        assert await c.gather(scattered) == [{"n": number} for number in range(6)]
        np.testing.assert_array_equal(await c.compute(field), np.arange(1000))
        back = await dask_hpc.restore("field", c, store=tmp_path / "store")
        np.testing.assert_array_equal(await c.compute(back), np.arange(1000))
        back = await dask_hpc.restore("values", c, store=tmp_path / "store", allow_pickle=True)
        assert await c.gather(back) == [{"n": number} for number in range(6)]
    key = Path(key_file).read_text().strip()
    seen = f"{await rt.status()} {await rt.trace()} {await commit.status()} {caplog.text}"
    assert "values" in seen
    assert key not in seen
    assert not any(key.encode() in path.read_bytes() for path in (tmp_path / "store").rglob("*.json"))


@pytest.mark.parametrize("levels", [("L1",), ("L3",)])
@live(workers=1)
async def test_a_key_that_is_given_opens_a_version_wherever_it_is(c, s, a, tmp_path, levels, memory):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path / "store"))
    field = xr.Dataset({"t": ("x", da.arange(100, chunks=25))}, {"x": np.arange(100)})
    [field] = c.persist([field])
    key_file = write_key(tmp_path / "key")
    with dask.config.set({"hpc.checkpoint.key-file": key_file}):
        await rt.checkpoint(field, "field", levels=levels, services="encrypt")
    with pytest.raises(CheckpointError, match="no key is named"):
        await dask_hpc.restore("field", c)
    with pytest.raises(CheckpointError, match=r"cannot be opened: .*the key is another one"):
        await dask_hpc.restore("field", c, key_file=write_key(tmp_path / "another"))
    back = await dask_hpc.restore("field", c, key_file=key_file)
    np.testing.assert_array_equal(await c.compute(back.t.data), np.arange(100))


@live(workers=2)
async def test_a_key_that_is_given_at_last_opens_what_there_is_and_what_is_lost(c, s, a, b, tmp_path, memory):
    rt = await dask_hpc.install(c)
    field = c.persist(da.arange(100, chunks=25))
    key_file = write_key(tmp_path / "key")
    with dask.config.set({"hpc.checkpoint.key-file": key_file}):
        await rt.checkpoint(field, "field", levels="L1", services="encrypt")
    # where no key is configured it cannot be read back itself
    del field
    await until(lambda: not s.tasks, "it is in memory alone")
    without = await dask_hpc.restore("field", c)
    with pytest.raises(CheckpointError, match="no key is named"):
        await c.compute(without)
    back = await dask_hpc.restore("field", c, key_file=key_file)
    blocks = futures_of(back)
    await wait(blocks)
    await kill(s, [a if blocks[0].key in a.data else b])
    np.testing.assert_array_equal(np.concatenate(await c.gather(blocks)), np.arange(100))
    protected = of(s).commits.protected
    assert protected.restored > 0
    assert (protected.recomputed, protected.lost) == (0, 0)


@live(workers=2, config={"hpc.checkpoint.every": "100 ms", "hpc.tick": "50 ms"})
async def test_the_hint_of_a_job_comes_before_the_setting(c, s, a, b, tmp_path):
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path), checkpoint_services="plain")
    with pytest.raises(ValueError, match="does not say protect"):
        rt.job("night", services="compress")
    with pytest.raises(ValueError, match="services is 'zip'; allowed: plain, compress"):
        rt.job("night", protect=True, services="zip")
    async with rt.job("night", protect=True, services="compress"):
        futures = c.map(made, range(5))
        await until(lambda: (compressed(tmp_path, "night") or [])[-1:] == [True], "a version is compressed")
        assert await c.submit(sum, [1, 2]) == 3
        await wait(futures)


@live(workers=1)
async def test_encryption_without_a_key_is_refused_where_it_is_asked_for(c, s, a, tmp_path):
    said = r"hpc.checkpoint.services is 'encrypt': .* no key is named: .* set hpc.checkpoint.key-file"
    rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    with pytest.raises(ConfigError, match=said):
        await rt.update(checkpoint_services="encrypt", lend_s=7.0)
    told = (await rt.status())["settings"]
    assert (told["checkpoint_services"], told["lend_s"] == 7.0) == ("plain", False)
    await rt.uninstall()
    # what is configured at the start may have its key later, and nothing begins without
    with dask.config.set({"hpc.checkpoint.services": "encrypt"}):
        rt = await dask_hpc.install(c, checkpoint_store=str(tmp_path))
    value = c.submit(made, 1)
    with pytest.raises(CheckpointError, match=said):
        await rt.checkpoint(value, "value")
    with pytest.raises(CheckpointError, match=said):
        async with rt.job("night", protect=True):
            pass
    # other settings have nothing to do with that
    await rt.update(lend_s=7.0)
    with dask.config.set({"hpc.checkpoint.key-file": write_key(tmp_path / "key")}):
        assert (await rt.checkpoint(value, "value")).version == 1
        await rt.update(checkpoint_services="plain")
        await rt.update(checkpoint_services="compress+encrypt")
