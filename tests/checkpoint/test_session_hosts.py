"""Programs whose versions are in the memories of hosts: what is killed, and what the next run finds."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Security
from distributed.core import ConnectionPool
from distributed.system import MEMORY_LIMIT
from outside import PATHS, until
from session_memory import home
from session_tries import those_that_hold, tried

from dask_hpc import CheckpointSession
from dask_hpc.checkpoint.record import dump, parse, read_records, records, write_record
from dask_hpc.checkpoint.segments import held_bytes
from dask_hpc.checkpoint.store import Store
from dask_hpc.errors import CheckpointError
from dask_hpc.session import keys
from dask_hpc.worker import fetching, managers
from dask_hpc.worker.host_process import collect
from dask_hpc.worker.left_behind import MANAGER
from dask_hpc.worker.managers import listening


def program(**options: Any) -> CheckpointSession:
    return CheckpointSession("run", **{"levels": "L1", **options})


PROGRAM = """
import os, signal, sys
import numpy as np
from dask_hpc import CheckpointSession
session = CheckpointSession("run", levels="L1").init()
field = session.add("field", np.zeros(100_000))
session.restart_all()
for step in range(3):
    field += 1
    session.commit(step=step)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_program_that_was_killed_goes_on_from_memory_without_any_store(memory: Path) -> None:
    environment = dict(os.environ, PYTHONPATH=PATHS)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment)
    assert done.returncode == -signal.SIGKILL
    folder, manager = home()
    assert manager is not None
    with program() as session:
        field = session.add("field", np.empty(100_000))
        assert session.restart_all() == 3
        assert session.values == {"step": 2}
        assert set(field) == {3.0}
        # the newest one stays alone
        assert session.commit(step=3).version == 4
        assert len(records(str(folder))) == 1
    # what others have left of it is found by name: another name has nothing
    with CheckpointSession("other", levels="L1") as other:
        assert other.restart() is None


def test_a_manager_ends_when_the_program_has_not_come_back_in_time(memory: Path) -> None:
    with dask.config.set({"hpc.checkpoint.linger": "1 s"}), program() as session:
        session.add("field", np.zeros(10))
        session.commit()
        folder, _ = home()
        assert folder.exists()
    until(lambda: not folder.exists(), "the manager has ended")


def test_versions_go_with_the_session_when_they_are_not_to_stay(memory: Path) -> None:
    session = program().init()
    session.add("field", np.zeros(10_000))
    session.commit()
    folder, _ = home()
    assert held_bytes(str(folder)) > 0
    session.finalize(persist=False)
    assert (records(str(folder)), held_bytes(str(folder))) == ([], 0)


def test_a_manager_that_is_killed_between_two_versions_is_started_anew(memory: Path) -> None:
    with program() as session:
        field = session.add("field", np.zeros(1000))
        session.commit()
        _, manager = home()
        assert manager is not None
        os.kill(manager, signal.SIGKILL)
        field[:] = 7
        assert session.commit().status()["levels"] == ["L1"]
        assert home()[1] != manager
    with program() as session:
        field = session.add("field", np.zeros(1000))
        assert session.restart_all() == 2
        assert set(field) == {7.0}


def test_what_has_no_room_in_memory_goes_to_the_store_or_is_refused(
    memory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = {"hpc.checkpoint.host-memory": 0.001}
    large = np.zeros(10**9 // 2, np.int8)
    with dask.config.set(small), program(store=tmp_path) as session:
        session.add("field", large[:1000])
        # levels that are had: the store is not needed
        assert session.commit().status()["path"] is None
        session.add("field", large)
        row = session.commit().status()
        assert (row["levels"], row["version"], row["path"]) == (["L3"], 2, str(tmp_path / "run" / "000002"))
        assert "more do not fit" in row["reason"]
        assert "Version 2 of run is not in all memories" in caplog.text
    with dask.config.set(small), CheckpointSession("full", levels="L1") as session:
        session.add("field", large)
        with pytest.raises(CheckpointError, match=r"more do not fit; raise hpc\.checkpoint\.host-memory"):
            session.commit()
        session.add("field", large[:10])
        assert session.commit().version == 1
    with program(store=tmp_path) as session:
        # the newest wins, wherever it is
        assert session.restart() == 2


def test_without_what_makes_keys_versions_go_to_the_store_and_it_is_said_why(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with program(store=tmp_path) as session:
        session.add("field", np.zeros(10))
        row = session.commit().status()
    assert row["levels"] == ["L3"]
    assert "install dask-hpc[checkpoint]" in row["reason"]


def test_both_places_have_the_same_numbers_and_what_is_lost_in_one_is_read_from_the_other(
    memory: Path, tmp_path: Path
) -> None:
    both: dict[str, Any] = {"levels": ("L1", "L3"), "store": tmp_path}
    with program() as session:
        field = session.add("field", np.zeros(50_000))
        for field[:] in (1, 2):
            session.commit()
    with program(**both) as session:
        field = session.add("field", np.zeros(50_000))
        assert session.restart_all() == 2
        field[:] = 3
        row = session.commit(step=3).status()
        assert (row["version"], row["levels"], row["reason"]) == (3, ["L1", "L3"], "")
    assert [each.levels for each in Store(tmp_path).versions("run")] == [("L1", "L3")]
    folder, _ = home()
    for segment in folder.glob("*.segment"):
        content = bytearray(segment.read_bytes())
        content[8] ^= 1
        segment.write_bytes(content)
    with program(**both) as session:
        field = session.add("field", np.zeros(50_000))
        assert session.restart_all() == 3
        assert set(field) == {3.0}
    shutil.rmtree(tmp_path / "run")
    with program() as session:
        session.add("field", np.zeros(50_000))
        with pytest.raises(CheckpointError, match=r"version 3 of 'run' in the memory of hosts cannot be rea"):
            session.restart_all()


def test_one_run_of_a_name_at_a_time_and_none_replaces_what_it_does_not_know(memory: Path) -> None:
    with program() as session:
        session.add("field", np.zeros(10))
        session.commit()
        with pytest.raises(CheckpointError, match="another run of session 'run' has its versions in the mem"):
            program().init()
    with program() as session:
        session.add("field", np.zeros(10))
        with pytest.raises(CheckpointError, match=r"the memory of hosts has version 1 .* call restart\(\)"):
            session.commit()
        session.restart()
        assert session.commit().version == 2


def test_a_manager_answers_those_alone_who_have_the_key_of_the_session(memory: Path) -> None:
    with program() as session:
        session.add("field", np.zeros(10))
        session.commit()
        folder, _ = home()
        address = listening(folder)["address"]
        assert address.startswith("tls://127.0.0.1:")
        assert (folder / "session.key").stat().st_mode & 0o077 == 0

        async def asked(security: Security) -> Any:
            arguments = security.get_connection_args("worker")
            async with await ConnectionPool(connection_args=arguments, timeout=5) as pool:
                return await pool(address).records()

        whole = asyncio.run(asked(keys.security(keys.kept(folder))))["records"]
        assert len(whole) == 1
        with pytest.raises(OSError, match=r"Timed out|certificate|TLS"):
            asyncio.run(asked(keys.security(keys.drawn())))
    # the run that comes next has the same one
    with program() as session:
        assert session.restart() == 1
        assert listening(folder)["address"] == address


def test_a_manager_that_listens_elsewhere_than_before_has_what_it_had(memory: Path) -> None:
    with program() as session:
        field = session.add("field", np.full(10, 4.0))
        session.commit()
    folder, manager = home()
    os.kill(manager or 0, signal.SIGKILL)
    until(lambda: home()[1] is None, "it has ended")
    said = listening(folder)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", said["port"]))
        taken.listen()
        with program() as session:
            field = session.add("field", np.zeros(10))
            assert session.restart_all() == 1
            assert set(field) == {4.0}
            assert listening(folder)["port"] != said["port"]
            assert session.commit().version == 2
            assert len(records(str(folder))) == 1


def test_a_record_that_is_damaged_is_said_and_never_taken_for_a_fresh_start(memory: Path) -> None:
    with program() as session:
        session.add("field", np.zeros(10))
        session.commit()
    (path,) = map(Path, records(str(home()[0])))
    text = path.read_text()
    path.write_text(text.replace("field", "fielt", 1))
    with program() as session:
        session.add("field", np.zeros(10))
        with pytest.raises(CheckpointError, match=rf"not what was written \({path}: .* remove that file"):
            session.restart_all()
    path.write_text(text)
    with program() as session:
        assert session.restart() == 1


def test_of_two_records_of_a_number_the_later_one_counts(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with program() as session:
        session.add("field", np.full(10, 5.0))
        session.commit()
    folder, _ = home()
    record = parse(read_records(str(folder))[0])
    for id, created_s in (
        ("f" * 32, record.manifest.created_s - 9),
        ("0" * 32, record.manifest.created_s - 8),
    ):
        packs = dict.fromkeys(record.manifest.packs, "a" * 32)
        manifest = replace(record.manifest, created_s=created_s, packs=packs)
        write_record(str(folder), id, dump(replace(record, id=id, manifest=manifest)))
    with program() as session:
        field = session.add("field", np.zeros(10))
        assert session.restart_all() == 1
        assert set(field) == {5.0}
    assert "is not gone back to" not in caplog.text


def test_a_manager_that_is_late_costs_no_version(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both: dict[str, Any] = {"levels": ("L1", "L3"), "store": tmp_path}
    with program() as session:
        field = session.add("field", np.zeros(10))
        for field[:] in (1, 2, 3):
            session.commit()
    folder, manager = home()
    os.kill(manager or 0, signal.SIGKILL)
    until(lambda: home()[1] is None, "it has ended")
    monkeypatch.setattr(managers, "_STARTS_S", 0.3)
    monkeypatch.setattr(fetching, "_CONNECT_S", 0.3)
    with (folder / f"{MANAGER}.lock").open() as lock:
        # one that has begun, and does not listen yet
        fcntl.flock(lock, fcntl.LOCK_EX)
        with program(**both) as session:
            field = session.add("field", np.zeros(10))
            with pytest.raises(
                CheckpointError, match=r"version 3 of 'run' is in the memory of hosts, which can"
            ):
                session.restart_all()
    monkeypatch.undo()
    monkeypatch.setenv("DASK_HPC__NODE__MEMORY_FOLDER", str(memory))
    with program(**both) as session:
        field = session.add("field", np.zeros(10))
        assert session.restart_all() == 3
        assert set(field) == {3.0}


def test_what_one_session_holds_another_one_cannot_have(memory: Path) -> None:
    large = np.zeros(int(0.0006 * MEMORY_LIMIT), np.int8)
    with dask.config.set({"hpc.checkpoint.host-memory": 0.001}), program() as session:
        session.add("field", large)
        session.commit()
        with CheckpointSession("other", levels="L1") as other:
            other.add("field", large)
            with pytest.raises(CheckpointError, match="more do not fit"):
                other.commit()


def test_a_version_that_survives_a_host_stays_until_a_newer_one_does() -> None:
    assert "passed-over" in those_that_hold()


def test_a_version_that_was_left_does_not_stay_for_its_parities() -> None:
    assert "left" in those_that_hold()


def test_a_version_whose_record_one_host_alone_keeps_is_none() -> None:
    assert "kept-once" in those_that_hold()


def test_what_a_run_has_left_unfinished_is_dropped_by_the_next(memory: Path) -> None:
    with program() as session:
        session.add("field", np.zeros(10))
        session.commit()
    folder, _ = home()
    (orphan := folder / f"{'a' * 32}.segment").write_bytes(bytes(8192))
    os.kill(home()[1] or 0, signal.SIGKILL)
    with program() as session:
        assert session.restart() == 1
        assert not orphan.exists()
        assert held_bytes(str(folder)) > 0


def test_folders_of_managers_that_were_killed_are_collected(memory: Path) -> None:
    with program() as session:
        session.add("field", np.zeros(10))
        session.commit()
        folder, manager = home()
        collect(0)
        assert folder.exists()
    collect(0)
    assert folder.exists()  # it lingers
    os.kill(manager or 0, signal.SIGKILL)
    until(lambda: home()[1] is None, "it has ended")
    collect(0)
    assert not folder.exists()


def test_levels_that_cannot_be_are_refused(memory: Path) -> None:
    for wrong in ("L4", (), ("L2",), ("L2", "L3"), 5):
        with pytest.raises(ValueError, match=r"levels is .*allowed: some of L1, L2, L3"):
            program(levels=wrong)
    with pytest.raises(ValueError, match="no store is named"):
        program(levels=("L1", "L3"))
    with pytest.raises(CheckpointError, match="the 2 processes have no way to speak to each other"):
        program(rank=0, size=2).init()
    with pytest.warns(UserWarning, match="in the memory of hosts alone: hpc.checkpoint.store is not set"):
        CheckpointSession("run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "hosts", "cases"),
    [("partner", "a,b,c", 3), ("xor", "a,b,c,d", 4), ("reed-solomon", "a,b,c,d", 6)],
)
def test_as_many_hosts_as_promised_are_lost_with_all_processes(scheme: str, hosts: str, cases: int) -> None:
    assert tried("losses", scheme, hosts) == [str(cases)]


@pytest.mark.slow
def test_killed_before_any_call_to_a_manager_there_are_whole_versions_only() -> None:
    assert int(*tried("points")) >= 6


@pytest.mark.slow
def test_all_processes_killed_between_two_writes_of_any_there_are_whole_versions_only() -> None:
    # every one of them: python tests/tools/session_hosts.py FOLDER writes 1
    assert int(*tried("writes", "4")) >= 8
