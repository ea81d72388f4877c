"""Once a host: one samples, parts add up to the whole, and whoever samples may die."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from dask_hpc.errors import WorkerError
from dask_hpc.worker.power import board as boards
from dask_hpc.worker.power.board import Board, Member
from dask_hpc.worker.power.figures import Figure

CLUSTER = "tcp://10.0.0.1:8786"
FIGURE = Figure("measured", "rapl", 120.0, 60.0)


def joined(root: Path, name: str, pid: int = 0, threads: int = 1) -> Board:
    return Board(CLUSTER, Member(name, pid or os.getpid(), threads), root)


def test_one_samples_and_all_know_their_parts_which_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu_s = {1: 10.0, 2: 50.0}
    monkeypatch.setattr(boards, "_cpu_s", lambda pid: cpu_s[pid])
    a, b, c = joined(tmp_path, "a", 1, 2), joined(tmp_path, "b", 2, 1), joined(tmp_path, "c", 2, 1)
    assert [one.leads() for one in (a, b, c, a)] == [True, False, False, True]
    a.tell(FIGURE, 100.0, 100.0)
    # nothing is known of their CPU time yet: by threads
    for one in (a, b, c):
        told = one.read()
        assert told is not None
        assert told.share_w == pytest.approx({"a": 60.0, "b": 30.0, "c": 30.0})
    cpu_s.update({1: 13.0, 2: 51.0})
    a.tell(FIGURE, 101.0, 101.0)
    told = b.read()
    assert told is not None
    assert (told.figure, told.at_s, told.workers, told.threads) == (FIGURE, 101.0, 3, 4)
    assert told.share_w == pytest.approx({"a": 90.0, "b": 15.0, "c": 15.0}, rel=0.03)
    assert told.energy_j == pytest.approx({"a": 75.0, "b": 22.5, "c": 22.5}, rel=0.03)
    # what a host draws idle is nobody's load: half by threads, the rest by CPU time
    cpu_s.update({1: 16.0, 2: 52.0})
    a.tell(FIGURE, 102.0, 102.0, idle_w=60.0)
    told = c.read()
    assert told is not None
    assert told.share_w == pytest.approx({"a": 75.0, "b": 22.5, "c": 22.5}, rel=0.03)
    # one that rests draws something all the same
    cpu_s[1] = 66.0
    rested = a.tell(FIGURE, 103.0, 103.0)
    assert 0 < rested.share_w["b"] < 0.1
    assert sum(rested.share_w.values()) == pytest.approx(120.0)
    for one in (a, b, c):
        one.stop()
    assert list(tmp_path.iterdir()) == []


def test_another_one_takes_over_and_energy_goes_on(tmp_path: Path) -> None:
    a, b = joined(tmp_path, "a"), joined(tmp_path, "b")
    assert a.leads()
    a.tell(FIGURE, 100.0, 100.0)
    a.stop()
    assert b.leads()
    b.tell(FIGURE, 101.0, 101.0)
    told = b.read()
    assert told is not None
    assert told.energy_j == pytest.approx({"b": 90.0})
    assert told.share_w == pytest.approx({"b": 120.0})
    b.stop()


def test_one_that_begins_anew_stays_when_what_it_was_before_ends(tmp_path: Path) -> None:
    a, b = joined(tmp_path, "a"), joined(tmp_path, "b")
    assert a.leads()
    anew = joined(tmp_path, "a")
    a.stop()
    assert b.leads()
    assert {member.id for member in b.members()} == {"a", "b"}
    assert set(b.tell(FIGURE, 100.0, 100.0).share_w) == {"a", "b"}
    b.stop()
    # nobody but itself is there
    last = joined(tmp_path, "a")
    assert anew.leads()
    anew.stop()
    assert last.leads()
    last.stop()
    assert list(tmp_path.iterdir()) == []


def test_one_that_is_killed_leaves_its_place(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from dask_hpc.worker.power.board import Board, Member\n"
        "import os; board = Board(sys.argv[1], Member('a', os.getpid(), 1), Path(sys.argv[2]))\n"
        "assert board.leads(); print('leads', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, CLUSTER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "leads\n"
        b = joined(tmp_path, "b")
        assert not b.leads()
        assert {member.id for member in b.members()} == {"a", "b"}
        assert psutil.Process(other.pid).is_running()
        other.kill()
        other.wait()
    assert b.leads()
    assert [member.id for member in b.members()] == ["b"]
    b.stop()


def test_what_is_not_known_has_no_parts(tmp_path: Path) -> None:
    a = joined(tmp_path, "a")
    assert a.read() is None
    a.tell(Figure("unavailable", "rapl", reason="denied"), 100.0, 100.0)
    told = a.read()
    assert told is not None
    assert (told.share_w, told.energy_j) == ({}, {"a": 0.0})
    a.stop()


def test_the_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    a = joined(tmp_path, "a")
    folder = next(tmp_path.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    a.stop()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkerError, match="belongs to somebody else"):
        joined(tmp_path, "a")
