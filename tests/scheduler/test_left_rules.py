"""What stays of versions that an earlier scheduler has left, and what goes: the rules, without a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed.utils_test import gen_test

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.describe import PROGRAM, RESULTS
from dask_hpc.checkpoint.keys import as_json
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import left as of_left
from dask_hpc.scheduler.checkpoint import results as of_results
from dask_hpc.scheduler.checkpoint.given import Given
from dask_hpc.scheduler.checkpoint.left import Left
from dask_hpc.scheduler.checkpoint.results import Results
from dask_hpc.worker import repairing
from dask_hpc.worker.left_behind import LeftBehind
from dask_hpc.worker.saved import MEMORY, MemoryCopy


def version(id, created_s=0.0, run=None, **extra):
    """A version called ``night``, as far as these rules look at it; its hosts are there."""
    extra |= {} if run is None else {"run": run, "keys": [as_json(id)]}
    plan = SimpleNamespace(extra=extra, kind="arrays" if run is None else RESULTS)
    manifest = SimpleNamespace(created_s=created_s, version=1, plan=plan)
    return SimpleNamespace(id=id, name="night", manifest=manifest, all_homes=(), readable=lambda there: True)


class Memory:
    """Versions that were left."""

    def __init__(self, versions):
        self.records = {one.id: one for one in versions}
        self.untouched = set(self.records)

    def touch(self, id, touched=True):
        (self.untouched.discard if touched else self.untouched.add)(id)

    def drop(self, ids):
        for id in ids:
            del self.records[id]
            self.untouched.discard(id)

    async def there(self, homes):
        return set(homes)


def left_of(*versions, used=()):
    state = SimpleNamespace(
        scheduler=SimpleNamespace(id="this one", workers={}),
        settings=SimpleNamespace(checkpoint_store=None, checkpoint_linger_s=1e6),
    )
    protected = SimpleNamespace(folders=lambda: {MEMORY + id for id in used})
    memory = Memory(versions)
    held = SimpleNamespace(has_state=lambda name: False, let_go=lambda name, after_s: None)
    return Left(state, None, protected, memory, held, None), memory


@gen_test(timeout=10)
async def test_the_newest_run_stays_whole_unless_a_job_may_still_ask_for_all():
    left, memory = left_of(
        version("a", 1.0, "first"), version("b", 2.0, "second"), version("c", 3.0, "second")
    )
    left.hold("night")
    await left._tidy("night")
    assert set(memory.records) == set("abc")
    left.keep("night")
    await left._tidy("night")
    assert set(memory.records) == set("bc")


@gen_test(timeout=10)
async def test_what_is_newer_than_what_can_be_read_at_the_moment_stays():
    """Its hosts may be back in a moment."""
    versions = [version(id, float(at)) for at, id in enumerate("abcd")]
    for away in versions[2:]:
        away.readable = lambda there: False
    left, memory = left_of(*versions)
    await left._tidy("night")
    assert set(memory.records) == set("bcd")


@gen_test(timeout=10)
async def test_results_are_those_of_the_newest_run_alone():
    every = [version("a", 1.0, "first"), version("b", 2.0, "second"), version("c", 3.0, "second")]
    left, memory = left_of(*every)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_left, "copies_of", lambda record: [record.id])
        assert await left.results_of("night") == ("second", {key: (key, "object") for key in "bc"})
        # what this scheduler has had written, or given somebody, was left by nobody
        for id in "bc":
            memory.touch(id)
        assert await left.results_of("night") == ("first", {"a": ("a", "object")})


@gen_test(timeout=10)
async def test_what_results_are_read_from_goes_with_the_last_of_them():
    left, memory = left_of(version("a"), version("b"), version("state", **{PROGRAM: {}}), used="a")
    left.newer("night")
    # the state of a program goes when there is a newer one
    assert (set(memory.records), memory.untouched) == ({"a", "state"}, {"state"})


@gen_test(timeout=10)
async def test_only_what_nobody_has_asked_for_by_then_goes_for_that():
    left, memory = left_of(version("asked for"), version("gone"), version("left"))
    ids = set(memory.untouched)
    memory.touch("asked for")
    memory.drop(["gone"])
    left._expire(ids)
    assert set(memory.records) == {"asked for"}


@gen_test(timeout=10)
async def test_what_others_have_had_no_use_of_is_kept_so_much_shorter():
    left, memory = left_of(version("a while ago"), version("long ago"))
    left._expire_later({"a while ago"}, 10.0)
    left._expire_later({"long ago"}, left._state.settings.checkpoint_linger_s)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert set(memory.records) == {"a while ago"}


def test_who_goes_on_from_a_run_is_of_that_run_so_that_the_next_one_finds_the_results_of_both():
    left = {"x": ("a copy", "object")}
    job = Results("night", "second")
    job.take_up("first", left, resume=True)
    assert (job.run, job.take(["x"])) == ("first", left)
    # what the store has is of the run that it says
    job = Results("night", "in the store", written={"y": ("a copy", "object")})
    job.take_up("first", left, resume=True)
    assert (job.run, job.found) == ("in the store", left)


def test_what_the_store_has_not_is_read_from_memory_also_after_a_version_is_whole():
    there: Any = (MemoryCopy("0" * 32, *[None] * 4), "object")
    gone, newer = ("a copy of the version before", "object"), ("a copy", "object")
    job = Results("night", "first", found={"x": there, "y": gone, "z": gone})
    with pytest.MonkeyPatch.context() as patch:
        # copies have no numbers here
        patch.setattr(of_results, "sorted", lambda items, key: items, raising=False)
        job.wrote({"z": newer})
    assert job.found == {"x": there, "z": newer}


@gen_test(timeout=10)
async def test_a_host_is_not_said_to_have_nothing_before_it_was_looked_at():
    found = LeftBehind(None, None)
    assert await found.looked(), "there is nothing to look at"
    ends = asyncio.Event()
    found._task = asyncio.ensure_future(ends.wait())
    asked = asyncio.ensure_future(found.looked())
    await asyncio.wait([asked], timeout=0.05)
    assert not asked.done()
    ends.set()
    assert await asked


@pytest.mark.parametrize("extra", [{}, {"keys": ["x"], "run": "first"}, {"keys": 1, "run": "first"}])
def test_a_version_that_does_not_say_whose_results_it_has_is_refused_with_the_remedy(extra):
    plan = SimpleNamespace(kind=RESULTS, extra=extra, arrays=[SimpleNamespace(count=2)])
    manifest = SimpleNamespace(plan=plan)
    found = SimpleNamespace(path="folder/1", manifest=lambda: manifest)
    store = SimpleNamespace(folder=Path("folder"), find=lambda name: found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_results, "Store", lambda folder: store)
        patch.setattr(of_results, "numbers", lambda folder: [1])
        patch.setattr(of_results, "check_signed", lambda path, manifest: None)
        with pytest.raises(CheckpointError, match=r"folder/1 does not say whose .* resume=False"):
            of_results.found_in("folder", "night", True, "second")


@gen_test(timeout=10)
async def test_what_holds_parities_alone_has_no_blocks_to_be_held_against_checksums():
    asked = []

    async def ask(pool, address, method, within_s, **what):
        asked.append((address, what))

    home, block = Home("tcp://a", "/folder"), SimpleNamespace(pack="a", offset=0, nbytes=8, crc32c=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repairing, "ask", ask)
        await repairing._verified(None, [block], [(home, "a"), (home, "parities")])
    assert asked == [("tcp://a", {"segment": "a", "blocks": [(0, 8, 1)]})]


@pytest.mark.parametrize(
    ("read", "known", "unclaimed"), [(False, True, ["night"]), (True, True, []), (False, False, [])]
)
def test_what_was_given_and_not_submitted_is_waited_for_no_more_and_dropped_again_where_nobody_reads_it(
    read, known, unclaimed
):
    record, let_go, told = version("night"), [], []
    watched = SimpleNamespace(unwatch=lambda key, hears: let_go.append(key))
    protected = SimpleNamespace(folders=lambda: {MEMORY + record.id} if read else set())
    memory = Memory([record] if known else [])
    given = Given(watched, protected, memory, None, lambda one: told.append(one.id))
    given._due = {"late": object(), "of another": object()}
    given._over(record, ["came", "late"])
    assert (let_go, list(given._due), told) == (["late"], ["of another"], unclaimed)
