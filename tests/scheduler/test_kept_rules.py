"""Which versions in memory that nobody reads stay, as rules alone: without hosts that hold them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.checkpoint import memory as of_memory
from dask_hpc.scheduler.checkpoint.held import Held
from dask_hpc.scheduler.checkpoint.kept import Kept
from dask_hpc.scheduler.checkpoint.protected import Protected
from dask_hpc.scheduler.checkpoint.protected_result import Result
from dask_hpc.worker.saved import MEMORY, Copy, MemoryCopy
from dask_hpc_policies.resilience.redundancy_sets import Scheme


class Memory:
    """Says of which versions others have parities, and notes what is dropped."""

    def __init__(self, shared: Collection[str]) -> None:
        self.shared = frozenset(shared).__contains__
        self.dropped = set[str]()

    def drop(self, folders: Collection[str]) -> None:
        self.dropped |= set(folders)


def kept_of(*folders: str, shared: str = "", used: str = "") -> tuple[Kept, Any]:
    memory: Any = Memory(shared)
    kept = Kept(memory, lambda name, keys: False, lambda: None, lambda: set(used))
    for folder in folders:
        kept.keep("night", [folder], True)
    return kept, memory


@pytest.mark.parametrize(
    ("as_asked", "used", "stay", "dropped"),
    [(True, "", "", "ab"), (True, "a", "", "b"), (False, "", "a", "b"), (False, "b", "a", "")],
)
def test_of_older_versions_those_stay_that_are_read_and_of_which_others_alone_have_parities(
    as_asked: bool, used: str, stay: str, dropped: str
) -> None:
    kept, memory = kept_of("a", "b", shared="a", used=used)
    kept.replace("night", True, as_asked)
    assert (set(kept.folders), memory.dropped) == (set(stay), set(dropped))


@pytest.mark.parametrize(("used", "dropped"), [("", "b"), ("b", "")])
def test_where_there_is_room_for_two_the_one_without_parities_makes_room(used: str, dropped: str) -> None:
    kept, memory = kept_of("a", "b", shared="a", used=used)
    kept.make_room("night", True)
    assert (set(kept.folders), memory.dropped) == ({"a"}, set(dropped))


def test_a_version_that_was_made_again_is_kept_by_its_new_name() -> None:
    kept, memory = kept_of("a", "b")
    assert kept.remade("a", "c")
    assert not kept.remade("a", "d")
    assert (set(kept.folders), memory.dropped) == ({"b", "c"}, set())


HERE, THERE = Home("tcp://here:1", "/here"), Home("tcp://there:1", "/there")


@pytest.mark.parametrize("replaced", [False, True])
def test_of_a_version_that_is_made_whole_again_hosts_go_on_holding_what_the_new_record_names(
    replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = SimpleNamespace(rpc=None, id="one", address="tcp://one:1")
    watched = SimpleNamespace(listen=lambda listener: None, leave=lambda listener: None)
    memory = of_memory.Memory(SimpleNamespace(scheduler=scheduler), watched)  # type: ignore[arg-type]
    old: Any = SimpleNamespace(id="old")
    new: Any = SimpleNamespace(id="new", segments=lambda: {HERE: {"data", "made"}})
    dropped: list[Any] = []
    memory.records["old"], memory._segments["old"] = old, {HERE: {"data", "parity"}, THERE: {"lost"}}

    async def begin() -> Any:
        return SimpleNamespace(domains={})

    async def made(*_: Any) -> Any:
        return new, ""

    async def keep(record: Any, domains: Any) -> bool:
        memory.records[record.id] = record
        if replaced:
            memory.drop(["old"])
            dropped.clear()
        return True

    monkeypatch.setattr(memory, "_begin", begin)
    monkeypatch.setattr(memory, "_keep", keep)
    monkeypatch.setattr(of_memory, "repaired", made)
    monkeypatch.setattr(memory._dropping, "drop", lambda *what: dropped.append(("now", *what)))
    monkeypatch.setattr(memory._dropping, "drop_at", lambda _, *what: dropped.append(("later", *what)))
    if replaced:
        with pytest.raises(CheckpointError, match="it was replaced meanwhile"):
            asyncio.run(memory.repair(f"{MEMORY}old", Scheme()))
        assert dropped == [("now", HERE, {"data", "made"}, "new")]
        assert not memory.records
        return
    assert asyncio.run(memory.repair(f"{MEMORY}old", Scheme())) == (f"{MEMORY}new", "")
    # who reads it by its old record goes on for a while
    assert dropped == [
        ("now", HERE, set(), "old"),
        ("later", HERE, {"parity"}, "old"),
        ("now", THERE, set(), "old"),
        ("later", THERE, {"lost"}, "old"),
    ]
    assert memory.records == {"new": new}


@pytest.mark.parametrize("stays", [True, False])
def test_what_is_kept_is_kept_by_the_name_that_it_has_once_it_is_whole_again(stays: bool) -> None:
    async def repair(folder: str, scheme: Scheme) -> tuple[str, str]:
        return f"{MEMORY}new", ""

    memory: Any = Memory(())
    memory.repair = repair
    record = SimpleNamespace(groups=("a group",), name="night", manifest=SimpleNamespace(version=3))
    memory.records = {"old": record}
    settings = SimpleNamespace(checkpoint_redundancy="partner", checkpoint_set_size=8)
    state: Any = SimpleNamespace(scheduler=None, settings=settings)
    held = Held(state, None, SimpleNamespace(folders=set), memory, None, None)  # type: ignore[arg-type]
    if stays:
        held._kept.keep("night", [f"{MEMORY}old"], True)
    assert asyncio.run(held._remake(f"{MEMORY}old"))
    assert set(held._kept.folders) == ({f"{MEMORY}new"} if stays else set())
    assert memory.dropped == (set() if stays else {f"{MEMORY}new"})
    assert held.status() == [{"name": "night", "version": 3, "state": "whole", "reason": ""}]


def test_results_leave_memory_for_the_next_version_only_where_the_store_has_all_of_them() -> None:
    left: dict[Any, Any] = {}
    in_memory, in_store = MemoryCopy("v" * 32, *[None] * 4), Copy("/store", *[None] * 3)  # type: ignore[arg-type]
    protected = object.__new__(Protected)
    protected._have = lambda key, one, copies: left.update({key: copies})  # type: ignore[method-assign]
    both, alone = Result((in_memory, in_store), "int", False), Result((in_memory,), "int", False)
    protected._of = {"both": both, "alone": alone}
    assert not protected.leave_memory({in_memory.folder})
    assert left == {}
    del protected._of["alone"]
    assert protected.leave_memory({in_memory.folder})
    assert left == {"both": (in_store,)}
