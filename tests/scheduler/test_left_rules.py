"""What stays of versions that an earlier scheduler has left, and what goes: the rules, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from distributed.utils_test import gen_test

from dask_hpc.checkpoint.describe import PROGRAM, RESULTS
from dask_hpc.checkpoint.keys import as_json
from dask_hpc.scheduler.checkpoint import left as of_left
from dask_hpc.scheduler.checkpoint.left import Left
from dask_hpc.worker.saved import MEMORY


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
async def test_results_are_those_of_the_newest_run_alone():
    left, _ = left_of(version("a", 1.0, "first"), version("b", 2.0, "second"), version("c", 3.0, "second"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_left, "copies_of", lambda record: [record.id])
        assert await left.results_of("night") == ("second", {key: (key, "object") for key in "bc"})


@gen_test(timeout=10)
async def test_what_results_are_read_from_goes_with_the_last_of_them():
    left, memory = left_of(version("a"), version("b"), version("state", **{PROGRAM: {}}), used="a")
    left.newer("night")
    # the state of a program goes when there is a newer one
    assert (set(memory.records), memory.untouched) == ({"a", "state"}, {"state"})
