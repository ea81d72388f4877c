"""The doctor: every verdict can be produced, and each bad one comes with a remedy."""

from __future__ import annotations

import errno
import os
import re
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client
from helpers import Gate
from packaging.specifiers import SpecifierSet

import dask_hpc
from dask_hpc import capabilities
from dask_hpc.doctor import checks, examine, examine_cluster, register, register_cluster
from dask_hpc.doctor import machine as doctor
from dask_hpc.doctor import store as store_checks
from dask_hpc.doctor.checks import Finding
from dask_hpc.doctor.cluster import compare, panels
from dask_hpc.doctor.store import Looked, check_checkpoints, check_store


def test_all_checks_of_this_machine_answer() -> None:
    found = examine()
    assert len(found) == len(checks._checks) + 1
    assert len({finding.name for finding in found}) == len(found)
    assert {finding.verdict for finding in found} <= {"ok", "warn", "fail"}
    verdicts = {finding.name: finding.verdict for finding in found}
    assert verdicts["python"] == verdicts["dask"] == verdicts["scheduler internals"] == "ok"


def test_a_check_is_one_registration_and_keeps_no_other_from_telling(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_checks", list(checks._checks))
    monkeypatch.setattr(checks, "_cluster_checks", list(checks._cluster_checks))

    def check_watts() -> Finding:
        raise OSError("no sensor")

    def check_power(client: Client) -> list[Finding]:
        return [Finding("power", "ok", f"{len(client.scheduler_info()['workers'])} workers")]

    def check_more(client: Client) -> list[Finding]:
        raise ZeroDivisionError

    register(check_watts)
    register_cluster(check_more, check_power)
    assert examine()[-1] == Finding("watts", "warn", "the check failed: OSError: no sensor")
    found = {finding.name: finding for finding in examine_cluster(client)}
    assert found["scheduler"].verdict == "ok"
    assert found["more"].text == "the check failed: ZeroDivisionError: "
    assert found["power"].text == "2 workers"
    register_cluster(lambda client: check_watts())
    with pytest.raises(OSError, match="no sensor"):
        examine_cluster(client)


def test_a_capability_that_does_not_load_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint(name, "x", capabilities.GROUP) for name in ("power", "absent")])
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points.select(group=group))
    monkeypatch.setattr(capabilities, "load", lambda: ("power", "absent"))
    assert doctor.check_capabilities() == Finding("capabilities", "ok", "power, absent")
    monkeypatch.setattr(capabilities, "load", lambda: ("power",))
    found = doctor.check_capabilities()
    assert found.verdict == "warn"
    assert found.text == "cannot be loaded: absent"
    assert found.remedy


def test_a_setting_that_is_wrong_is_a_row_with_value_range_and_key() -> None:
    assert doctor.check_settings() == [Finding("settings", "ok", "all known and allowed")]
    wrong = {"hpc.tick": "banana", "hpc.pool.max-nodse": 4, "hpc.lock": "system", "hpc.slurm": 3}
    with dask.config.set(wrong):
        found = {one.name: one for one in doctor.check_settings({"DASK_HPC__TICK": "banana"})}
    assert {one.verdict for one in found.values()} == {"fail"}
    assert set(found) == {"setting tick", "setting pool.max-nodse", "setting slurm"}
    assert "hpc.tick is 'banana'; allowed: a duration from 10 ms to 1 h" in found["setting tick"].text
    assert found["setting tick"].remedy == "correct or remove it in DASK_HPC__TICK"
    assert "did you mean hpc.pool.max-nodes?" in found["setting pool.max-nodse"].text
    assert "dask.config.set" in found["setting slurm"].remedy


def test_parameters_of_the_policy_among_the_settings_are_looked_at() -> None:
    with dask.config.set({"hpc.policy": "pwma-fpsma", "hpc.policy-params": {"step": "all"}}):
        (found,) = doctor.check_settings()
    assert found.verdict == "fail"
    assert "hpc.policy-params is {'step': 'all'}" in found.text
    assert "one of max, next" in found.text


def test_python() -> None:
    assert doctor.check_python((3, 11, 0)).verdict == "ok"
    old = doctor.check_python((3, 10, 9))
    assert old.verdict == "fail"
    assert "3.10.9" in old.text
    assert "3.11" in old.remedy


@pytest.mark.parametrize(
    ("dask_version", "distributed_version", "verdict", "part"),
    [
        ("2026.8.0", "2026.8.0", "ok", "2026.8.0"),
        ("2026.7.1", "2026.8.0", "fail", "of one release"),
        ("2025.1.0", "2025.1.0", "fail", "tested with >=2026.7.1,<2026.9"),
        ("2026.9.0", "2026.9.0", "fail", "tested with"),
    ],
)
def test_dask_releases(dask_version: str, distributed_version: str, verdict: str, part: str) -> None:
    finding = doctor.check_dask(dask_version, distributed_version)
    assert (finding.verdict, part in finding.text) == (verdict, True)
    assert bool(finding.remedy) == (verdict == "fail")


def test_tested_releases_are_those_of_the_package(repository: Path) -> None:
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    (pin,) = (text for text in project["dependencies"] if text.startswith("distributed"))
    assert SpecifierSet(pin.removeprefix("distributed")) == doctor.TESTED_DASK


def test_internals() -> None:
    assert doctor.check_internals(list).verdict == "ok"
    broken = doctor.check_internals(lambda: ["no Scheduler.bulk_schedule", "no queue"])
    assert broken.verdict == "fail"
    assert "no Scheduler.bulk_schedule; no queue" in broken.text


def test_optional_module() -> None:
    assert doctor.check_module("bokeh", "dashboard", "dashboard", "bokeh").verdict == "ok"
    absent = doctor.check_module("no_such_module_here", "plots", "plots", "'dask-hpc[plot]'")
    assert (absent.verdict, absent.remedy) == ("warn", "pip install 'dask-hpc[plot]'")


def test_dashboard_link() -> None:
    plain = "{scheme}://{host}:{port}/status"
    hub = {"JUPYTERHUB_SERVICE_PREFIX": "/user/me/"}
    assert doctor.check_dashboard_link({}, plain).verdict == "ok"
    assert doctor.check_dashboard_link(hub, "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status").verdict == "ok"
    dead = doctor.check_dashboard_link(hub, plain)
    assert dead.verdict == "warn"
    assert "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status for dask_hpc's clusters" in dead.text
    assert "DASK_DISTRIBUTED__DASHBOARD__LINK" in dead.remedy
    assert "is dead" in doctor.check_dashboard_link(hub, "http://elsewhere:{port}").text


def slurm_commands(folder: Path, names: list[str], nodes: str) -> None:
    """Put commands into `folder` that tell a version, and run the shell text `nodes` when asked for nodes."""
    for name in names:
        script = f'#!/bin/sh\n[ "$1" = --version ] && echo slurm 24.05.1 && exit\n{nodes}\n'
        (folder / name).write_text(script)
        os.chmod(folder / name, 0o755)


ALL_COMMANDS = ["sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"]
NODES = """\
echo 'cpu|cpu*|3'
echo 'cpu|cpu*|1'
echo 'gpu|gpu|1'"""


@pytest.mark.parametrize("commands", [ALL_COMMANDS, ["sbatch"], []])
def test_slurm(tmp_path: Path, commands: list[str]) -> None:
    slurm_commands(tmp_path, commands, NODES)
    finding = doctor.check_slurm(str(tmp_path))
    expected = {
        6: ("ok", "slurm 24.05.1; partitions cpu (default, 4 nodes), gpu (1 node)"),
        1: ("warn", "not on PATH: squeue"),
        0: ("ok", "only LocalCluster"),
    }
    verdict, part = expected[len(commands)]
    assert (finding.verdict, part in finding.text) == (verdict, True)


@pytest.mark.parametrize(
    ("nodes", "part"),
    [
        ("echo cannot reach it >&2; exit 1", "slurm 24.05.1; does not answer: cannot reach it"),
        ("exit 4", "slurm 24.05.1; does not answer: exit code 4"),
        ("echo welcome", "slurm 24.05.1; sinfo, line 1: expected 3 fields"),
    ],
)
def test_a_slurm_that_does_not_answer_is_told(tmp_path: Path, nodes: str, part: str) -> None:
    slurm_commands(tmp_path, ALL_COMMANDS, nodes)
    finding = doctor.check_slurm(str(tmp_path))
    assert (finding.verdict, part in finding.text) == ("warn", True)
    assert "SLURM_CONF" in finding.remedy


def test_a_slurm_command_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 3\n")
    os.chmod(tmp_path / "sbatch", 0o755)
    finding = doctor.check_slurm(str(tmp_path))
    assert (finding.verdict, "--version failed: exit code 3" in finding.text) == ("warn", True)


def test_a_slurm_command_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SLURM_TIMEOUT_S", 0.3)
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    os.chmod(tmp_path / "sbatch", 0o755)
    finding = doctor.check_slurm(str(tmp_path))
    assert (finding.verdict, "it did not end within 0.3 s" in finding.text) == ("warn", True)


def test_shared_memory(tmp_path: Path) -> None:
    assert doctor.check_shared_memory(tmp_path, small_bytes=1).verdict == "ok"
    small = doctor.check_shared_memory(tmp_path, small_bytes=2**60)
    assert (small.verdict, "shm-size" in small.remedy) == ("warn", True)
    assert doctor.check_shared_memory(tmp_path / "absent").verdict == "warn"


def versions(version: str | None) -> dict[str, dict[str, str | None]]:
    return {"packages": {"dask-hpc": version}}


def test_versions_across_a_cluster() -> None:
    one = versions("0.1.0")
    assert compare("dask-hpc", one, one, {"tcp://w:1": one}).verdict == "ok"
    absent = compare("dask-hpc", one, one, {"tcp://w:1": versions(None), "tcp://w:2": versions("0.0.9")})
    assert absent.verdict == "fail"
    assert absent.text == "absent on worker tcp://w:1 and 1 more, 0.1.0 here"
    assert compare("dask-hpc", one, versions("0.2.0"), {}).text == "0.2.0 on the scheduler, 0.1.0 here"
    assert compare("dask-hpc", versions(None), versions(None), {}).verdict == "warn"


def test_versions_of_a_real_cluster(client: Client) -> None:
    found = client.get_versions(packages=["dask-hpc"])
    assert len(found["workers"]) == 2
    for package in ("distributed", "python"):
        assert compare(package, found["client"], found["scheduler"], found["workers"]).verdict == "ok"


def test_where_checkpoints_go_is_tried_everywhere_and_nothing_is_left_there(
    client: Client, tmp_path: Path
) -> None:
    assert check_checkpoints(client) == []
    runtime = dask_hpc.install(client)
    try:
        (unset,) = check_checkpoints(client)
        assert (unset.verdict, "versions are in the memory of hosts" in unset.text) == ("ok", True)
        store = tmp_path / "store"
        runtime.update(checkpoint_store=str(store))
        (absent,) = check_checkpoints(client)
        assert absent.verdict == "warn"
        assert absent.text == f"the scheduler and 2 workers: there is no folder {store}"
        assert not store.exists()
        store.mkdir()
        (found,) = check_checkpoints(client)
        assert (found.verdict, found.remedy) == ("ok", "")
        assert list(store.iterdir()) == []
        assert f"{store} can be written to by the scheduler and all workers, " in found.text
        assert "iB free" in found.text
        runtime.update(checkpoint_store=str(tmp_path / "file"))
        (tmp_path / "file").touch()
        (wrong,) = check_checkpoints(client)
        assert (wrong.verdict, "hpc.checkpoint.store" in wrong.remedy) == ("warn", True)
    finally:
        runtime.uninstall()


def test_a_store_that_hangs_keeps_neither_the_cluster_nor_who_looks(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    runtime = dask_hpc.install(client, checkpoint_store=str(tmp_path), checkpoint_silence="300 ms")
    try:
        monkeypatch.setattr(store_checks, "_look", lambda folder: gate.wait(Looked()))
        (found,) = check_checkpoints(client)
        assert found.verdict == "warn"
        assert found.text.startswith(f"the scheduler and 2 workers: the store {tmp_path} has not answered")
        assert gate.arrived == 3
        with dask.config.set({"hpc.checkpoint.silence": "300 ms"}):
            (here,) = check_store(str(tmp_path))
        assert (here.verdict, "has not answered for 0.3 s" in here.text) == ("warn", True)
    finally:
        gate.open()
        runtime.uninstall()


def test_a_store_that_fails_while_it_is_looked_at_is_a_finding_beside_all_others(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: str) -> bool:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("dask_hpc.checkpoint.direct.taken_by", full)
    runtime = dask_hpc.install(client, checkpoint_store=str(tmp_path))
    try:
        found = {finding.name: finding for finding in examine_cluster(client)}
    finally:
        runtime.uninstall()
    assert found["scheduler"].verdict == "ok"
    said = f"the store {tmp_path} cannot be looked at: Disk quota exceeded"
    assert found["checkpoints"].text.endswith(said)


def test_a_worker_that_goes_while_it_is_asked_is_a_finding(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = client.run

    def gone(function: Any, *args: Any, **how: Any) -> Any:
        return {"tcp://b:1": OSError("it has gone")} if "on_error" in how else run(function, *args, **how)

    runtime = dask_hpc.install(client, checkpoint_store=str(tmp_path))
    monkeypatch.setattr(client, "run", gone)
    try:
        found = {finding.name: finding for finding in examine_cluster(client)}
    finally:
        monkeypatch.undo()
        runtime.uninstall()
    assert found["checkpoints"].verdict != "ok"
    assert "worker tcp://b:1" in found["checkpoints"].text
    assert "it has gone" in found["checkpoints"].text


def test_where_checkpoints_of_this_machine_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (unset,) = check_store()
    assert unset.verdict == "ok"
    assert re.search("no store is set .*: versions are in the memory of hosts, and lost with", unset.text)
    with dask.config.set({"hpc.checkpoint.store": str(tmp_path)}):
        (found,) = check_store()
        assert (found.verdict, found.remedy) == ("ok", "")
        assert "can be written to by this machine" in found.text
    assert list(tmp_path.iterdir()) == []
    (absent,) = check_store(str(tmp_path / "absent"))
    assert (absent.verdict, "there is no folder" in absent.text) == ("warn", True)
    with dask.config.set({"hpc.tick": "banana"}):
        assert check_store() == [], "that has a row of its own"
    monkeypatch.setattr(store_checks, "SMALL_STORE_BYTES", 2**62)
    (full,) = check_store(str(tmp_path))
    assert (full.verdict, "dask hpc checkpoint gc" in full.remedy) == ("warn", True)


def test_a_store_that_knows_no_direct_writing_says_who_finds_so() -> None:
    def text(**looked: Looked) -> str:
        return store_checks._found("checkpoints", "/store", looked, "all").text

    direct, buffered = Looked("", 2**40, True), Looked("", 2**50, False)
    assert text(a=direct, b=direct) == "/store can be written to by all, 1.00 TiB free"
    assert text(a=buffered).endswith("; through the page cache, as its file system knows no direct writing")
    assert "; through the page cache by b and 1 worker, as" in text(a=direct, b=buffered, c=buffered)


@pytest.mark.parametrize(
    ("paths", "problem", "verdict", "words"),
    [
        (["/individual-hpc-jobs"], "", "ok", "/individual-hpc-jobs"),
        ([], "", "ok", "no dashboard"),
        ([], "the menu is not as expected", "warn", "the menu is not as expected"),
    ],
)
def test_the_panels_of_the_dashboard_are_told_of(paths, problem, verdict, words):
    found = panels({"panels": paths, "panels_problem": problem})
    assert found.verdict == verdict
    assert words in found.text
    assert bool(found.remedy) == (verdict != "ok")
