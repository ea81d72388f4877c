"""Failures on purpose: what was protected is there afterwards, and a run in which it is not says so."""

from __future__ import annotations

import json
import os
import posix
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from command_line import refused, run
from distributed import Client, LocalCluster
from helpers import Gate
from outside import until

import dask_hpc
from dask_hpc.chaos import clusters, work
from dask_hpc.chaos import plan as plans
from dask_hpc.chaos.clusters import hold, own
from dask_hpc.chaos.plan import ALONE, FAULTS, MOMENTS, plan
from dask_hpc.chaos.run import Outcome, _check
from dask_hpc.chaos.run import run as run_once
from dask_hpc.chaos.session import rows_on_own
from dask_hpc.chaos.work import BLOCKS
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.host_memory import manager_folder
from dask_hpc.worker.managers import listening


def test_a_seed_says_all_and_seeds_reach_everything() -> None:
    made = [plan(seed) for seed in range(300)]
    assert made == [plan(seed) for seed in range(300)]
    assert {fault for one in made for fault in one.faults} == set(FAULTS)
    assert {(one.faults[0], one.moment) for one in made} == {(f, m) for f in FAULTS for m in MOMENTS}
    assert {one.elements for one in made} == set(plans._SIZES)
    assert {(one.kin, one.moment) for one in made} == {(kin, m) for kin in plans.KIN for m in MOMENTS}
    # who asks for no worker to be lost loses none
    assert {plan(seed, ("delay", "manager")).kin for seed in range(50)} == {""}
    assert all(len(set(one.faults)) == len(one.faults) for one in made)
    assert all(len(one.faults) == 1 for one in made if set(ALONE) & set(one.faults))
    assert {plan(seed, ("worker",)).faults for seed in range(20)} == {("worker",)}


@pytest.mark.parametrize("what", ["wrong", "lost", "recomputed"])
def test_one_broken_promise_is_a_fault(what: str) -> None:
    outcome = Outcome(plan(0))
    assert outcome.good
    setattr(outcome, what, 1)
    assert not outcome.good
    assert outcome.row()[what] == 1


def test_what_a_successor_finds_is_held_against_what_was_whole() -> None:
    def held(told: list[tuple[int, int, bool]]) -> tuple[int, int]:
        outcome = Outcome(plan(0))
        hold(told, 3, plan(0), outcome)
        assert outcome.good == (not outcome.wrong and not outcome.lost)
        return outcome.wrong, outcome.lost

    whole = [(3, block, True) for block in range(BLOCKS)]
    assert held(whole) == (0, 0)
    assert held([(4, block, True) for block in range(BLOCKS)]) == (0, 0)
    assert held([(2, block, True) for block in range(BLOCKS)]) == (0, 1)
    assert held([*whole[:-1], (3, BLOCKS - 1, False)]) == (1, 0)
    assert held([*whole[:-1], (3, 0, True)]) == (1, 0)
    assert held([*whole[:-1], (2, BLOCKS - 1, True)]) == (1, 0)
    assert held(whole[:-1]) == (0, 1)
    assert held([]) == (0, 3 + BLOCKS)


class Said:
    """A cluster in a process of its own that says what it does until it is killed; notes what was done."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @contextmanager
    def __call__(self, module: str, *arguments: Any) -> Iterator[tuple[SimpleNamespace, Iterator[str]]]:
        self.log.append(" ".join([module, *(word for word in map(str, arguments) if word == "killed")]))
        living = [True]

        def lines() -> Iterator[str]:
            yield "reads"
            for version in count(1):
                for word in ("computes", "writes", "whole"):
                    if not living:
                        return
                    self.log.append(f"{word} {version}")
                    yield self.log[-1]

        def kill() -> None:
            living.clear()
            self.log.append("killed")

        found = lines() if module == "victim" else iter(["reads", "found []"])
        yield SimpleNamespace(pid=kill, kill=kill), found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", ALONE)
def test_whole_clusters_are_killed_at_the_moment_that_the_row_says(
    fault: str, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = next(one for one in map(plan, range(1000)) if (one.faults, one.moment) == ((fault,), moment))
    log: list[str] = []
    monkeypatch.setattr(clusters, "_process", Said(log))
    monkeypatch.setattr(Popen, "kill", lambda process: process.kill())
    # of the whole group, the scheduler and all workers
    monkeypatch.setattr(os, "killpg", lambda kill, _: (log.append("all of it"), kill()))
    monkeypatch.setattr(dask_hpc, "restore", lambda *_, **__: None)
    client: Any = SimpleNamespace(gather=lambda _: [])
    if fault == "cluster":
        outcome = clusters.kill_all(client, chosen, tmp_path)
    else:
        outcome = clusters.lose_controller(chosen, tmp_path)
    first, second = log.index("killed"), log[log.index("killed") + 1 :]
    all_of_it = ["all of it"] if fault == "cluster" else []
    doing = log[first - 1 - len(all_of_it)].split()
    assert doing[0] == ("computes" if moment == "compute" else "writes")
    again = ["successor killed", *all_of_it, "killed"] if moment == "restore" else []
    assert second == [*again, *(["successor"] if fault == "controller" else [])]
    # nothing has come back: all versions that were whole are lost
    assert outcome.lost == int(doing[1]) - 1 + BLOCKS > BLOCKS


def test_faults_that_there_are_not_are_refused() -> None:
    refused(
        run("chaos", "--faults", "worker,fire"),
        2,
        "worker,fire",
        "worker, host, cluster, store, delay, manager, partition, agent, controller, hang",
    )


def test_a_folder_where_no_store_can_be_made_is_refused_before_a_cluster_starts(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    refused(run("chaos", "--runs", "1", "--folder", missing), 2, missing, "No such file", "--folder")


@pytest.mark.slow
def test_nothing_protected_is_lost_computed_again_or_wrong(tmp_path: Path) -> None:
    found = list(rows_on_own(range(len(FAULTS)), FAULTS, tmp_path))
    assert [row for row in found if not row["good"]] == []
    assert {row["seed"] for row in found if not row["killed"]} <= {4, 6}
    # a worker that is killed before it holds anything has nothing to be read back
    unread = [row for row in found if row["killed"] and not row["restored"]]
    assert len(unread) <= 1, unread


@pytest.mark.slow
def test_workers_of_a_running_cluster_are_killed_where_its_address_is_given(tmp_path: Path) -> None:
    with own(2) as cluster, Client(cluster) as client:
        before = set(client.run(os.getpid).values())
        where = ("--address", cluster.scheduler_address, "--folder", str(tmp_path))
        done = run("chaos", "--runs", "2", "--faults", "worker", *where, "--json")
        client.wait_for_workers(2)
        after = set(client.run(os.getpid).values())
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert {"faults", "wrong", "lost", "recomputed", "restored"} < set(row)
        assert (row["good"], row["killed"] > 0) == (True, True), row
    assert before != after
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_fault_happens_within_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # no worker of so few results writes so often
    monkeypatch.setattr("dask_hpc.chaos.run._CALLS", 10**6)
    with own() as cluster, Client(cluster) as client:
        rt = dask_hpc.install(client)
        for fault in ("agent", "store"):
            chosen = next(one for one in map(plan, range(1000)) if one.faults == (fault,))
            (tmp_path / fault).mkdir()
            outcome = run_once(client, rt, chosen, tmp_path / fault)
            assert outcome.good, outcome.row()
            assert outcome.killed, fault
            # none is left that ends in the middle of what the next run writes
            client.wait_for_workers(4)
            assert not any(client.run(_ends_while_writing).values())


@pytest.mark.slow
def test_a_manager_that_is_to_hang_does_and_goes_on_later(tmp_path: Path) -> None:
    with own(2) as cluster, Client(cluster) as client:
        data = client.scatter([1.0, 2.0], hash=False)
        dask_hpc.install(client).checkpoint(data, "data", levels=["L1"], store=tmp_path)
        folders = client.run(_manager)
        (folder,) = [each for each in folders.values() if each is not None][:1]
        victim = next(address for address, each in folders.items() if each == folder)
        manager = psutil.Process(listening(Path(folder))["pid"])
        client.run(work.stand_still, 1.0, False, True, workers=[victim])
        until(lambda: manager.status() == psutil.STATUS_STOPPED, "it hangs")
        until(lambda: manager.status() != psutil.STATUS_STOPPED, "it goes on")


def _manager(dask_worker: Any) -> str | None:
    folder = manager_folder(dask_worker)
    return None if folder is None else str(folder)


def _ends_while_writing() -> bool:
    return os.pwrite is not posix.pwrite


class Unprotected:
    """A runtime whose checkpoints are written and protect nothing."""

    def __init__(self, rt: Any) -> None:
        self.rt = rt

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        commit = self.rt.checkpoint(*args, **kwargs)
        self.rt.client.run_on_scheduler(_unprotect)
        return commit

    def status(self) -> Any:
        return self.rt.status()


def _unprotect(dask_scheduler: Any) -> None:
    of(dask_scheduler).commits.protected.unwrap()


def test_of_what_does_not_come_a_run_tells_what_was_done_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_hpc.chaos.run._PATIENCE_S", 0.1)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        gate = Gate()
        stuck = client.submit(gate.wait, key="stuck")
        nobody = client.submit(int, key="nobody", resources={"none": 1})
        outcome = Outcome(plan(1))
        _check(client, [stuck, nobody], {}, outcome)
        gate.open()
    assert outcome.lost == 2
    of_stuck, of_nobody = outcome.faults[1], outcome.faults[3]
    assert "scheduler: waiting processing" in of_stuck
    assert "tcp" in of_stuck or "inproc" in of_stuck, "and its worker"
    assert of_nobody.endswith("scheduler: waiting no-worker")


@pytest.mark.slow
def test_without_protection_a_run_says_what_is_lost_and_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dask_hpc.chaos.run._PATIENCE_S", 15.0)
    with own() as cluster, Client(cluster) as client:
        rt = dask_hpc.install(client)
        # all workers of a host are killed when all is written
        chosen = next(
            one
            for one in map(plan, range(1000))
            if (one.faults, one.moment, one.kin) == (("host",), "restore", "scattered")
        )
        outcome = run_once(client, Unprotected(rt), chosen, tmp_path)
    assert outcome.killed
    assert outcome.lost + outcome.recomputed > 0
    # what hangs on something that was lost before it is gone
    assert [fault for fault in outcome.faults if re.match("derived-.* is lost", fault)]
    assert not outcome.good
    assert json.dumps(outcome.row())
