"""Caps of a host: leave and a dry run first, the device's limits, and old values back however things end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sensor_trees import Powercap, contents, fake_nvml, frequencies, limits

from dask_hpc.cli import hpc
from dask_hpc.config import Settings, settings
from dask_hpc.worker.power.caps.asked import Caps
from dask_hpc.worker.power.caps.devices import Control, Cpufreq
from dask_hpc.worker.power.caps.record import Busy, Record, folder_of

#: How a host of two packages is capped where its owner allows it.
LEAVE = {"by": "powercap", "write": True, "silence": "30 s"}


def eventually(done: Callable[[], Any], what: str, timeout_s: float = 30.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < until_s, what
        time.sleep(0.01)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two packages, of which the second one's limits are off, and frequencies."""
    root = tmp_path / "root"
    made = Powercap(root)
    limits(made.zone("intel-rapl:0", "package-0"))
    limits(made.zone("intel-rapl:1", "package-1"), enabled=0, constraint_0_power_limit_uw=150_000_000)
    frequencies(root, (800_000, 3_000_000, 2_600_000))
    return root


def made(tree: Path, folder: Path, **cap: Any) -> Caps:
    return Caps(given_settings(folder, **cap), tree)


def given_settings(folder: Path, **cap: Any) -> Settings:
    model = {"idle": 100, "busy": 300}
    return settings({"power": {"cap": {"folder": str(folder), **LEAVE, **cap}, "model": model}})


def capped(caps: Caps, watts: float | None) -> dict[str, Any]:
    return asyncio.run(caps.cap(watts))


def long_terms(tree: Path) -> list[int]:
    zones = sorted((tree / "sys/class/powercap").iterdir())
    return [int((zone / "constraint_0_power_limit_uw").read_text()) for zone in zones]


def test_without_leave_nothing_is_looked_at_and_a_dry_run_writes_nothing(tree, tmp_path):
    before = contents(tmp_path)
    assert capped(Caps(Settings(), tree), 200.0) == {
        "state": "refused",
        "reason": "this node gives no leave for caps",
        "remedy": "set hpc.power.cap.by in its configuration",
    }
    found = capped(made(tree, tmp_path / "old", write=False), 200.0)
    assert found["state"] == "dry-run"
    assert (found["least_w"], found["most_w"]) == (100, 330)
    values = {Path(id).parent.name + "/" + Path(id).name: pair for id, pair in found["values"].items()}
    assert values == {
        "intel-rapl:0/constraint_0_power_limit_uw": [200_000_000, 100_000_000],
        "intel-rapl:1/constraint_0_power_limit_uw": [150_000_000, 100_000_000],
        "intel-rapl:1/enabled": [0, 1],
    }
    found = capped(made(tree, tmp_path / "old", by="cpufreq", write=False), 200.0)
    assert list(found["values"].values()) == [[2_600_000, 1_700_000]]
    assert contents(tmp_path) == before


def test_a_cap_is_within_limits_and_its_end_brings_the_old_values(tree, tmp_path, monkeypatch):
    # what lies where the worker was started is no part of what writes
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "json.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path / "here")
    before, caps = contents(tree), made(tree, tmp_path / "old")
    assert capped(caps, 240.0)["state"] == "written"
    assert long_terms(tree) == [120_000_000, 120_000_000]
    # neither below what the device takes, nor above what it was at
    capped(caps, 10.0)
    assert long_terms(tree) == [50_000_000, 50_000_000]
    capped(caps, 5_000.0)
    assert long_terms(tree) == [180_000_000, 150_000_000]
    assert capped(caps, None) == {"state": "released"}
    assert contents(tree) == before
    assert not list(tmp_path.rglob("old-values.json"))
    # nor outside of what its owner allows
    caps = made(tree, tmp_path / "old", least=150, most=200)
    capped(caps, 10.0)
    assert long_terms(tree) == [75_000_000, 75_000_000]
    caps.stop()
    assert contents(tree) == before


def test_silence_ends_a_cap(tree, tmp_path):
    before, caps = contents(tree), made(tree, tmp_path / "old", silence="3 s")
    assert capped(caps, 240.0)["state"] == "written"
    assert contents(tree) != before
    eventually(lambda: contents(tree) == before, "the old values are back")
    # who asks again at that moment is refused, and later gets one like the first
    eventually(lambda: capped(caps, 240.0)["state"] == "written", "it is capped again")
    assert long_terms(tree) == [120_000_000, 120_000_000]
    caps.stop()


_WORKER = """
import asyncio, sys
from pathlib import Path
from dask_hpc.config import settings
from dask_hpc.worker.power.caps.asked import Caps

async def main():
    config = {"by": sys.argv[3], "write": True, "folder": sys.argv[2]}
    caps = Caps(settings({"power": {"cap": config}}), Path(sys.argv[1]))
    print((await caps.cap(260.0))["state"], caps._keeper.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def begun(tree: Path, folder: Path, by: str = "powercap") -> tuple[subprocess.Popen[str], int]:
    """A process that caps as a worker does, and the one that it has write."""
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", _WORKER, str(tree), str(folder), by]
    env = {**os.environ, "PYTHONPATH": path}
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert worker.stdout is not None
    state, pid = worker.stdout.readline().split()
    assert state == "written"
    return worker, int(pid)


def killed(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def restored(tree: Path, folder: Path, monkeypatch: Any) -> Any:
    monkeypatch.setenv("DASK_HPC__POWER__CAP__FOLDER", str(folder))
    return CliRunner().invoke(hpc, ["power", "restore", "--root", str(tree), "--json"])


def test_of_a_killed_worker_the_writer_brings_the_old_values_back(tree, tmp_path):
    before = contents(tree)
    worker, _ = begun(tree, tmp_path / "old")
    assert long_terms(tree) == [130_000_000, 130_000_000]
    killed(worker.pid)
    worker.communicate()
    eventually(lambda: contents(tree) == before, "the old values are back")
    assert not list(tmp_path.rglob("old-values.json"))


def test_of_both_killed_restore_does_and_so_does_the_next_cap(tree, tmp_path, monkeypatch):
    before, old = contents(tree), tmp_path / "old"
    for turn in range(2):
        worker, writer = begun(tree, old)
        killed(writer, worker.pid)
        worker.communicate()
        eventually(lambda: _ended(writer), "nothing of it runs any more")  # noqa: B023
        assert long_terms(tree) == [130_000_000, 130_000_000]
        if turn == 0:
            caps = Caps(given_settings(old), tree)
            assert capped(caps, 200.0)["state"] == "written"
            caps.stop()
            assert contents(tree) == before
    found = json.loads(restored(tree, old, monkeypatch).stdout)
    assert found["ended_pid"] is None
    assert sorted(found["restored"].values()) == [0, 1, 150_000_000, 200_000_000]
    assert contents(tree) == before
    assert json.loads(restored(tree, old, monkeypatch).stdout) == {"ended_pid": None, "restored": {}}


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        # the answer that nobody has waited for, and its end after it
        ("echo '{\"values\": {}}'; kill -9 $$", "the process that writes caps was killed"),
        ("kill -9 $$", "the process that writes caps was killed"),
        ('echo \'{"ended": true, "reason": "a limit is gone", "remedy": ""}\'; exit 1', "a limit is gone"),
        ("echo '{\"values\": {}}'; echo '{\"ended\": true}'", None),
    ],
)
def test_whether_the_old_values_are_back_is_said_by_the_last_word_alone(tree, tmp_path, last, reason):
    caps = made(tree, tmp_path)
    caps._keeper = subprocess.Popen(["sh", "-c", last], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    failed = caps.stop()
    assert (None if failed is None else failed.reason) == reason


def test_restore_ends_a_cap_that_is_held(tree, tmp_path, monkeypatch):
    before = contents(tree)
    worker, writer = begun(tree, tmp_path / "old")
    try:
        with pytest.raises(Busy, match=f"process {writer} caps this host already"):
            Record(folder_of(str(tmp_path / "old")))
        refused = capped(made(tree, tmp_path / "old"), 100.0)
        assert refused["state"] == "refused"
        assert refused["reason"] == f"process {writer} caps this host already"
        assert json.loads(restored(tree, tmp_path / "old", monkeypatch).stdout)["ended_pid"] == writer
        assert contents(tree) == before
    finally:
        killed(worker.pid)
        worker.communicate()


def test_accelerators_are_capped_by_the_module_that_is_there(tree, tmp_path, monkeypatch):
    state = fake_nvml(tmp_path, monkeypatch, 250_000, 300_000)
    assert capped(made(tree, tmp_path / "old", by="nvml", write=False), 340.0)["values"] == {
        "GPU-0": [250_000, 170_000],
        "GPU-1": [300_000, 170_000],
    }
    assert json.loads(state.read_text()) == [250_000, 300_000]
    worker, _ = begun(tree, tmp_path / "old", "nvml")
    assert json.loads(state.read_text()) == [130_000, 130_000]
    killed(worker.pid)
    worker.communicate()
    eventually(lambda: json.loads(state.read_text()) == [250_000, 300_000], "the old values are back")
    monkeypatch.setenv("FAKE_NVML_REFUSES", "yes")
    found = capped(made(tree, tmp_path / "old", by="nvml"), 340.0)
    assert found["reason"] == "NVML says: Insufficient Permissions"
    assert not list(tmp_path.rglob("old-values.json"))


def test_a_command_caps_and_another_one_ends_it(tree, tmp_path):
    said = tmp_path / "said"
    tee = ["/bin/sh", "-c", f"echo $0 >> {said}"]
    words = {"by": "command", "command": [*tee, "to-{watts}"], "release": [*tee, "released"]}
    caps = made(tree, tmp_path / "old", **words, least=100, most=400)
    assert capped(caps, 1_000.0)["values"] == {"command": [None, 400]}
    capped(caps, 250.4)
    capped(caps, 250.0)
    caps.stop()
    assert said.read_text().split() == ["to-400", "to-250", "released"]
    caps = made(tree, tmp_path / "old", **words)
    assert capped(caps, 250.0)["reason"] == "hpc.power.cap.least, hpc.power.cap.most not set"
    caps = made(tree, tmp_path / "old", **{**words, "command": ["/bin/false", "{watts}"]}, least=1, most=400)
    assert capped(caps, 250.0)["reason"] == "/bin/false failed with exit code 1: it said nothing"
    assert said.read_text().split()[-1] == "released"


def test_what_cannot_be_is_one_line_and_changes_nothing(tree, tmp_path, monkeypatch):
    def reason(**cap: Any) -> str:
        found = capped(made(tree, tmp_path / "old", **cap), 200.0)
        assert found["state"] == "refused"
        assert "\n" not in found["reason"]
        return str(found["reason"])

    before = contents(tree)
    assert "no power limit below" in capped(made(tmp_path, tmp_path / "old"), 200.0)["reason"]
    assert "no frequency that can be set" in capped(
        made(tmp_path, tmp_path / "old", by="cpufreq"), 200.0
    )["reason"]  # fmt: skip
    zone = tree / "sys/class/powercap/intel-rapl:0"
    (zone / "constraint_0_min_power_uw").write_text("0\n")
    assert reason() == f"{zone} does not say how little it takes"
    (zone / "constraint_0_power_limit_uw").write_text("nothing\n")
    assert "says 'nothing', which is no number" in reason(least=10)
    (tmp_path / "file").write_text("")
    for path, text in before.items():
        (tree / path).write_text(text)
    assert "file" in capped(made(tree, tmp_path / "file"), 200.0)["reason"]
    old = folder_of(str(tmp_path / "old"))
    old.mkdir(parents=True, exist_ok=True, mode=0o700)
    for text in ("", "[]", '{"by": "powercap"}', '{"by": "powercap", "boot": "", "values": {"/etc/x": -1}}'):
        (old / "old-values.json").write_text(text)
        assert reason() == f"{old / 'old-values.json'} holds no old values"
        found = restored(tree, tmp_path / "old", monkeypatch)
        assert found.exit_code == 1
        assert len(found.output.splitlines()) == 1
    # a record does not say where is written
    boot, victim = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), tmp_path / "victim"
    victim.write_text("mine")
    row = {"by": "powercap", "boot": boot, "values": {str(victim): 5}}
    (old / "old-values.json").write_text(json.dumps(row))
    assert f"there is no {victim} any more" in restored(tree, tmp_path / "old", monkeypatch).output
    assert victim.read_text() == "mine"
    # one of before the machine was started anew is void
    (old / "old-values.json").write_text(json.dumps({**row, "boot": "another"}))
    assert json.loads(restored(tree, tmp_path / "old", monkeypatch).stdout)["restored"] == {}
    assert contents(tree) == before


@given(st.floats(0, 1e6), st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_frequencies_rise_with_watts_within_limits(watts, least, more, spare):
    device, control = Cpufreq(Path("/"), 100, 300), Control("f", least + more, least, least + more)
    value = device.values(watts, [control])["f"]
    assert least <= value <= least + more
    assert value <= device.values(watts + spare, [control])["f"]
    assert dataclasses.replace(control).within(value) == value
