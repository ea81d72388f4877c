"""A running cluster is asked and changed from outside, and what cannot be reached is one line."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import pytest
import xarray as xr
from command_line import refused, run
from distributed import Client, Event
from saved import save, save_values

import dask_hpc
from dask_hpc.checkpoint.store import Store
from dask_hpc.doctor.cluster import check_runtime

ASK = {
    "status": [],
    "jobs": [],
    "decisions": [],
    "io": [],
    "flows": [],
    "cancel": ["some-job"],
    "why": ["some-job"],
    "update": ["tick=2s"],
}


@pytest.mark.parametrize(
    ("command", "address"),
    [
        ("status", "tcp://127.0.0.1:1"),
        ("jobs", "foo://127.0.0.1:1"),
        ("decisions", "tls://127.0.0.1:1"),
        ("io", "tcp://127.0.0.1:1"),
        ("cancel", "nowhere"),
        ("flows", "tcp://login1:port"),
        ("why", "tcp://"),
    ],
)
def test_a_wrong_address_is_one_line(command: str, address: str) -> None:
    result = run(command, *ASK.get(command, []), "--address", address, "--timeout", "500 ms")
    refused(result, 1, f"no scheduler answers at {address}")
    assert "invalid literal" not in result.stderr, "what Python says of a port that is none"


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "tcp://login1:65536", "tcp://login1:port"])
def test_what_is_no_port_is_said_without_trying_it(address: str) -> None:
    result = run("jobs", "--address", address, "--timeout", "500 ms")
    refused(result, 1, f"no scheduler answers at {address}: what follows its colon is no port, such as 8786")


@pytest.fixture
def mute(request: pytest.FixtureRequest) -> Iterator[str]:
    """Address of a port that accepts connections and never says anything, or only what the test asks for."""
    says: bytes = getattr(request, "param", b"")
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    kept.append(server.accept()[0])
                    kept[-1].sendall(says)
            except OSError:
                for connection in kept:
                    connection.close()

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_server_that_says_nothing_is_one_line(mute: str) -> None:
    refused(run("status", "--address", mute, "--timeout", "500 ms"), 1, f"no scheduler answers at {mute}")


@pytest.mark.parametrize("mute", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(64)], indirect=True)
def test_a_server_that_is_none_of_dask_is_one_line(mute: str) -> None:
    said = f"no scheduler answers at {mute}: what answers there is no server of Dask"
    refused(run("status", "--address", mute, "--timeout", "5 s"), 1, said)


def test_a_file_that_names_no_scheduler_is_one_line(tmp_path: Path) -> None:
    for content in ("", "[]", "{}", "\xff"):
        (tmp_path / "scheduler.json").write_text(content, encoding="latin-1")
        refused(
            run("jobs", "--scheduler-file", str(tmp_path / "scheduler.json")), 1, "is not a scheduler file"
        )


def test_a_worker_is_no_scheduler_and_a_cluster_without_the_runtime_has_nothing_to_tell(s: Any) -> None:
    address = s["workers"][0]
    refused(run("status", "--address", address), 1, f"no scheduler answers at {address}: it is a Worker")
    for command, arguments in ASK.items():
        refused(run(command, *arguments, "--address", s["address"]), 1, "dask_hpc.install")


def test_flows_are_listed(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client)
    where = ["--address", s["address"]]
    assert run("flows", *where).stdout == "no flow is open: rt.couple declares one\n"
    flow = runtime.couple("heat", {"T": (("y",), (8,), "float64")}, queue=3)
    flow.analyse(len, name="peak")
    (row,) = json.loads(run("flows", *where, "--json").stdout)
    assert {name: row[name] for name in ("name", "state", "queue", "in_flight", "sources", "steps")} == {
        "name": "heat", "state": "waiting", "queue": 3, "in_flight": 0, "sources": 0, "steps": 0,
    }  # fmt: skip
    heading, *lines = run("flows", *where).stdout.splitlines()
    assert heading.split()[:3] == ["NAME", "STATE", "SOURCES"]
    assert lines[0].split()[:2] == ["heat", "waiting"]
    assert "peak (auto)" in lines[0]
    flow.close()
    assert runtime.flows() == []


def test_settings_and_policy_change_from_outside(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    where = ["--address", s["address"]]
    said = run("update", "tick=2s", "pool.max-nodes=16", "spill.directory=none", *where).stdout
    assert said.split("\n")[1:] == [
        "tick             2 s",
        "pool.max-nodes   16",
        "spill.directory  none",
        "",
    ]
    assert (runtime.status()["settings"]["tick_s"], runtime.status()["settings"]["pool_max_nodes"]) == (
        2.0,
        16,
    )
    asked = ("update", "lock=system", "--policy", "easy", "--param", "reservation-depth=3", *where)
    status = json.loads(run(*asked, "--json").stdout)
    assert status["policy"]["params"]["reservation_depth"] == 3
    assert status["settings"]["lock"] == "system"
    run("update", "--param", "reservation-depth=2", *where)
    assert runtime.status()["policy"]["params"]["reservation_depth"] == 2
    before = runtime.status()
    refused(
        run("update", "tick=5s", "--param", "depth=2", *where), 1, "unknown parameter 'depth'", "hpc.depth"
    )
    refused(
        run("update", "tick=5s", "kill-delay=1s", *where), 1, "hpc.kill-delay is 25 s and cannot become 1 s"
    )
    refused(run("update", *where), 2, "nothing is to be changed")
    refused(run("update", "tick", *where), 2, "'tick' is not SETTING=VALUE")
    refused(run("update", "policy=easy", *where), 2, "--policy")
    for part in ("settings", "policy"):
        assert runtime.status()[part] == before[part]


def test_a_version_is_restored_as_a_data_set_of_the_cluster(
    client: Client, s: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as in a shell, where there is no other client
    monkeypatch.setattr("distributed.client._get_global_client", lambda: None)
    field = xr.Dataset({"t": (("y", "x"), da.arange(20, chunks=20).reshape(4, 5).rechunk((2, 3)))})
    for scale in (1, 2, 3):
        save(field * scale, tmp_path)
    raw = bytearray((damaged := tmp_path / "field" / "000003" / "t" / "c" / "0" / "0").read_bytes())
    raw[4096] ^= 1
    damaged.write_bytes(raw)
    asked = ("checkpoint", "restore", "field", "--store", str(tmp_path), "--address", s["address"])
    refused(run(*asked), 1, "is not what was written", "restore another version")
    assert client.list_datasets() == ()
    row = json.loads(run(*asked, "--version", "2", "--json").stdout)
    (nbytes,) = (one.bytes for one in Store(tmp_path).versions("field") if one.version == 2)
    assert row == {
        "name": "field", "version": 2, "path": str(tmp_path / "field" / "000002"), "bytes": nbytes,
        "dataset": "field", "variables": ["t"], "blocks": 4,
    }  # fmt: skip
    xr.testing.assert_identical(client.get_dataset("field").compute(), (field * 2).compute())
    refused(run(*asked, "--version", "1"), 2, "a data set 'field'", "--as", "unpublish_dataset")
    xr.testing.assert_identical(client.get_dataset("field").compute(), (field * 2).compute())
    told = run(*asked, "--version", "1", "--as", "first").stdout
    assert "version 1 of field" in told
    assert "4 blocks, variables t; client.get_dataset('first')" in told
    xr.testing.assert_identical(client.get_dataset("first").compute(), field.compute())
    refused(run(*asked[:2], "a/b", *asked[3:]), 2, "is no name for a checkpoint")
    save_values(Store(tmp_path), [{"a": 1}])
    refused(run(*asked[:2], "values", *asked[3:]), 1, "if you trust who wrote it", "with --allow-pickle")
    for name in ("field", "first"):
        client.unpublish_dataset(name)


def slow_step(number: int, stop: Event) -> int:
    stop.wait(60)
    return number


def test_a_running_cluster_is_asked_from_outside(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client, policy="pwma-fpsma")
    where = ["--address", s["address"]]
    stop = Event("stop-test-cli", client=client)
    with runtime.job("heat", min_nodes=1, max_nodes=2) as job:
        futures = client.map(slow_step, range(4), stop=stop)
    try:
        # its tasks arrive on a stream of their own, perhaps after its start
        assert poll(lambda: (job.status()["state"], job.status()["unfinished_tasks"]) == ("running", 4)), (
            job.status()
        )

        (listed,) = [row for row in json.loads(run("jobs", *where, "--json").stdout) if row["name"] == "heat"]
        assert (listed["id"], listed["state"], listed["unfinished_tasks"]) == (job.id, "running", 4)
        line = next(line for line in run("jobs", *where).stdout.splitlines() if "heat" in line)
        assert line.split()[0] == job.id
        assert "running" in line

        status = json.loads(run("status", *where, "--json").stdout)
        assert status["policy"]["policy"] == "pwma-fpsma"
        text = run("status", *where).stdout
        assert text.splitlines()[0].split()[:2] == ["policy", "pwma-fpsma"]
        assert all(node["id"] in text for node in status["nodes"])

        decided = json.loads(run("decisions", *where, "--job", job.id, "--json").stdout)
        assert "start" in [row["action"] for row in decided]
        assert all(row["reason"] for row in decided)
        assert "start" in run("decisions", *where, "--limit", "20").stdout

        late = runtime.job("late", nodes=2).activate()
        said = run("why", "late", *where).stdout.splitlines()
        assert said[0].startswith("late needs 2 nodes; ")
        assert "heat" in said[0]
        found = json.loads(run("why", late.id, *where, "--json").stdout)
        assert (found["job"], [one["job"] for one in found["holders"]]) == (late.id, [job.id])
        assert {"declare": {"min_nodes": 1, "max_nodes": 2}} in [one["change"] for one in found["remedies"]]
        late.close()
        assert run("why", job.id, *where).stdout == f"{job.id} does not wait: it is running\n"
        assert json.loads(run("why", job.id, *where, "--json").stdout) is None

        refused(run("cancel", "no-such-job", *where), 1, "no-such-job")
        assert run("cancel", job.id, *where).stdout == f"{job.id} is cancelled\n"
        assert job.status()["state"] == "cancelled"
        assert [future.status for future in futures if future.status == "finished"] == []
        # once more is the same, and changes nothing
        ended_s = job.status()["end_s"]
        assert run("cancel", job.id, *where).stdout == f"{job.id} is cancelled\n"
        assert job.status()["end_s"] == ended_s

        found = json.loads(run("doctor", *where, "--json").stdout)["findings"]
        (switched,) = [finding for finding in found if finding["name"] == "runtime"]
        assert switched["text"] == "switched on, policy pwma-fpsma"
        assert "dashboard panels" in [finding["name"] for finding in found]
    finally:
        stop.set()
        runtime.uninstall()


def test_doctor_says_of_a_runtime_of_another_version_that_it_is_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask_hpc.install(client)
    # the package has a function of the module's name
    monkeypatch.setattr(sys.modules["dask_hpc.client.runtime"], "__version__", "0.0.1")
    (found,) = check_runtime(client)
    assert (found.name, found.verdict) == ("runtime", "warn")
    assert f"the client has dask_hpc 0.0.1, the scheduler {dask_hpc.__version__}" in found.text
    assert "switched" not in found.text
    assert "one version" in found.remedy


def test_a_setting_that_is_given_twice_is_refused(client: Client, s: Any) -> None:
    address = s["address"]
    result = run("update", "tick=2s", "lock=system", "tick=3s", "--address", address)
    assert result.exit_code == 2
    assert "tick is given twice, '2 s' and '3 s'" in result.stderr


def test_status_has_no_line_without_a_value(client: Client, s: Any) -> None:
    dask_hpc.install(client)
    result = run("status", "--address", s["address"])
    assert result.exit_code == 0
    assert "panels problem" not in result.stdout


def write_ones(folder: Path, target: str) -> None:
    import zarr

    zarr.create_array(dask_hpc.metered(folder, target), name="ones", shape=8, chunks=4, dtype="f8")[:] = 1


def test_what_goes_through_metered_stores_is_shown_by_target_and_job(
    client: Client, s: Any, tmp_path: Path
) -> None:
    runtime = dask_hpc.install(client)
    where = ["--address", s["address"]]
    try:
        assert (
            run("io", *where).stdout
            == "nothing was measured: see dask_hpc.metered, and measure_io of a job\n"
        )
        with runtime.job("writes", nodes=1) as job:
            client.submit(write_ones, tmp_path, "my scratch").result()
        # workers tell it with their heartbeats
        assert poll(lambda: json.loads(run("io", *where, "--json").stdout)["jobs"])
        found = json.loads(run("io", *where, "--json").stdout)
        assert [row["id"] for row in found["jobs"]] == [job.id]
        assert {"tokens", "writers", "bandwidth_bytes_s", "busy_s", "kind"} <= set(found["targets"][0])
        assert {"intensity", "io_s", "task_s", "quality", "law"} <= set(found["jobs"][0])
        assert found["targets"][0]["write_bytes"] == found["jobs"][0]["write_bytes"] > 0
        targets, jobs = run("io", *where).stdout.split("\n\n")
        assert targets.splitlines()[0].split()[:2] == ["TARGET", "KIND"]
        assert targets.splitlines()[1].startswith("my scratch")
        assert jobs.splitlines()[1].split()[0] == job.id
    finally:
        runtime.uninstall()


def test_decisions_of_nothing_say_so(client: Client, s: Any) -> None:
    runtime = dask_hpc.install(client)
    try:
        assert run("jobs", "--address", s["address"]).stdout == "no job has been declared\n"
        assert run("decisions", "--address", s["address"]).stdout == "no decision has been taken\n"
    finally:
        runtime.uninstall()


def poll(condition: Callable[[], bool], deadline_s: float = 20.0) -> bool:
    """Whether `condition` becomes true in time."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
