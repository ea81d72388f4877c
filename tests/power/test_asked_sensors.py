"""Commands and addresses: what they say, that each has an end, and that no secret leaves."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from dask_hpc.clock import stopwatch_s
from dask_hpc.config import Settings
from dask_hpc.errors import ConfigError
from dask_hpc.worker.power.commands import Command, Slurm, parse_watts
from dask_hpc.worker.power.figures import FIRST, Gauge, SensorError, Source
from dask_hpc.worker.power.web import Http, Prometheus, pointed

REDFISH = {"PowerControl": [{"PowerConsumedWatts": 344.0, "a/b~c": 7}]}
VECTOR = {"data": {"resultType": "vector", "result": [{"value": [1, "120.5"]}, {"value": [1, "30"]}]}}


def watts(source: Source) -> float:
    (gauge,) = source.read().values()
    assert isinstance(gauge, Gauge)
    return gauge.watts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("    Instantaneous power reading:                   220 Watts\n    Minimum: 10 Watts\n", 220.0),
        ("power 1.25 kW\n", 1250.0),
        ("temperature 40\n118.5\n", 118.5),
        ("node=3 power=88W", 88.0),
        ("power -88 W", None),
        ("no value", None),
        ("", None),
    ],
)
def test_watts_in_what_a_command_prints(text: str, found: float | None) -> None:
    assert parse_watts(text) == found


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    assert watts(Command(["echo", "$(touch gone) 12 W; touch gone"], 5.0)) == 12.0
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["no-such-command-here"], "there is no command no-such-command-here"),
        (["sh", "-c", "echo the bus is busy >&2; exit 3"], "sh failed with exit code 3: the bus is busy"),
        (["echo", "nothing"], "echo prints no watts: 'nothing'"),
    ],
)
def test_a_command_that_fails_says_why(command: list[str], reason: str) -> None:
    with pytest.raises(SensorError) as said:
        Command(command, 5.0).read()
    assert said.value.reason == reason


def test_a_command_that_never_ends_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    began_s = stopwatch_s()
    with pytest.raises(SensorError, match=r"sh did not end within 0\.3 s and was killed"):
        Command(["sh", "-c", script], 0.3).read()
    assert stopwatch_s() - began_s < 5
    child = int((tmp_path / "pid").read_text())
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert stopwatch_s() - began_s < 10, "what it has started still runs"


def test_slurm_is_asked_for_the_node_and_then_for_the_job(tmp_path: Path) -> None:
    def command(name: str, text: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
        (tmp_path / name).chmod(0o755)

    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_NUM_NODES": "4", "SLURMD_NODENAME": "n1"}
    now_s = [0.0]
    slurm = Slurm(5.0, {**job, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, lambda: now_s[0])
    command("scontrol", "NodeName=n1\n   CurrentWatts=312 AveWatts=300")
    command("sstat", "12.0|4000")
    assert watts(slurm) == 312.0
    command("scontrol", "NodeName=n1\n   CurrentWatts=0 AveWatts=0")
    with pytest.raises(SensorError, match=FIRST):
        slurm.read()
    # it is counted every half a minute: in between, and while it is not asked, it draws what it drew
    for at_s, text, watts_of_node in (
        (10, "12.0|99999", None),
        (15, "12.0|4000", None),
        (30, "12.0|16000", 100.0),
        (45, "12.0|16000", 100.0),
        (60, "12.0|28000", 100.0),
        (75, "12.0|34000\n12.1|9000", 250.0),
        (90, "12.1|9500", 250.0),
        (105, "12.1|15500", 100.0),
        (405, "12.1|15500", 100.0),
    ):
        command("sstat", text)
        now_s[0] = at_s
        if watts_of_node is None:
            with pytest.raises(SensorError, match=FIRST):
                slurm.read()
        else:
            assert watts(slurm) == pytest.approx(watts_of_node), at_s
    now_s[0] = 406
    with pytest.raises(SensorError, match="stands still since 300 s"):
        slurm.read()
    now_s[0] = 421
    command("sstat", "12.0|0")
    with pytest.raises(SensorError, match="it says 0 or n/s") as said:
        slurm.read()
    assert "AcctGatherEnergyType" in said.value.remedy
    with pytest.raises(SensorError, match="in no job of Slurm"):
        Slurm(5.0, {"PATH": str(tmp_path)}).read()


class Board(BaseHTTPRequestHandler):
    """Answers by the path; keeps the headers it got."""

    got: list[str | None]
    ends: threading.Event

    def do_GET(self) -> None:
        self.got.append(self.headers["Authorization"])
        path = self.path.partition("?")[0]
        if path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/power")
            self.end_headers()
        elif path == "/drips":
            self.send_response(200)
            self.end_headers()
            while not self.ends.wait(0.02):
                try:
                    self.wfile.write(b" ")
                except OSError:
                    return
        elif path == "/hangs":
            self.ends.wait(60)
        elif path in ANSWERS:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ANSWERS[path])
        else:
            self.send_error(401 if path == "/secret" else 404)

    def log_message(self, *_: Any) -> None:
        pass


ANSWERS = {
    "/power": json.dumps(REDFISH).encode(),
    "/api/v1/query": json.dumps(VECTOR).encode(),
    "/none/api/v1/query": b'{"data": {"resultType": "vector", "result": []}}',
    "/scalar/api/v1/query": b'{"data": {"resultType": "scalar", "result": [1, "55"]}}',
    "/odd/api/v1/query": b'{"data": {"resultType": "vector", "result": 5}}',
    "/huge": b'{"watts": 1' + b"0" * 400 + b"}",
    "/nan/api/v1/query": b'{"data": {"resultType": "scalar", "result": [1, "NaN"]}}',
    "/text": b"<html>",
}


@contextmanager
def served() -> Iterator[tuple[str, type[Board]]]:
    made = type("Made", (Board,), {"got": [], "ends": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), made)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", made
    finally:
        made.ends.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_place_in_a_document() -> None:
    assert pointed(REDFISH, "/PowerControl/0/PowerConsumedWatts") == 344.0
    assert pointed(REDFISH, "/PowerControl/0/a~1b~0c") == 7
    assert pointed(5, "") == 5
    for pointer in ("/PowerControl/1/PowerConsumedWatts", "/PowerControl/x", "/PowerControl/0/no/deeper"):
        with pytest.raises(SensorError, match="is not there"):
            pointed(REDFISH, pointer)


def test_boards_and_prometheus_answer_or_it_is_said_why_not() -> None:
    with served() as (url, _):
        pointer = "/PowerControl/0/PowerConsumedWatts"
        assert watts(Http(f"{url}/power", pointer, 5.0)) == 344.0
        assert watts(Prometheus(url, "sum(watts)", 5.0)) == 150.5
        assert watts(Prometheus(f"{url}/scalar/", "watts", 5.0)) == 55.0
        for source, reason in (
            (Http(f"{url}/text", pointer, 5.0), "gives nothing: no JSON"),
            (Http(f"{url}/absent", pointer, 5.0), "answers 404"),
            (Http(f"{url}/power", "/PowerControl", 5.0), "is no number of watts"),
            (Prometheus(f"{url}/none", "watts", 5.0), "the query watts gives no series"),
            (Prometheus(f"{url}/odd", "watts", 5.0), "the query watts gives no series"),
            (Http(f"{url}/huge", "/watts", 5.0), "is no number of watts"),
            (Prometheus(f"{url}/nan", "watts", 5.0), "it is not measured"),
            (Http("http://127.0.0.1:9/x", pointer, 5.0), "gives nothing"),
        ):
            with pytest.raises(SensorError) as said:
                source.read()
            assert reason in said.value.reason


@pytest.mark.parametrize("path", ["/hangs", "/drips"])
def test_an_address_that_never_answers_has_an_end(path: str) -> None:
    with served() as (url, _):
        began_s = stopwatch_s()
        with pytest.raises(SensorError, match=r"did not answer within 0\.3 s"):
            Http(url + path, "/x", 0.3).read()
        assert stopwatch_s() - began_s < 5


def test_secrets_come_from_netrc_go_to_that_host_alone_and_stand_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login admin password hunter2\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    with served() as (url, board):
        watts(Http(f"{url}/power", "/PowerControl/0/PowerConsumedWatts", 5.0))
        assert board.got == ["Basic " + base64.b64encode(b"admin:hunter2").decode()]
        # not even the same server under another name gets it
        for where in ("/away", "/secret"):
            with pytest.raises(SensorError) as said:
                Http(url + where, "/PowerControl", 5.0).read()
            assert "hunter2" not in said.value.reason + said.value.remedy
        assert len(board.got) == 3
        path.write_text("machine\n")
        with pytest.raises(SensorError, match="cannot be read: line"):
            Http(f"{url}/power", "/PowerControl", 5.0).read()


def test_secrets_of_other_hosts_and_of_any_host_are_sent_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "netrc"
    path.write_text("default login admin password hunter2\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    with served() as (url, board):
        watts(Http(f"{url}/power", "/PowerControl/0/PowerConsumedWatts", 5.0))
        assert board.got == [None]
        path.write_text("machine 127.0.0.1 login admin password hunter2\n")
        # nobody listens there: it would fail through it
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        watts(Http(f"{url}/power", "/PowerControl/0/PowerConsumedWatts", 5.0))


def test_an_address_that_cannot_be_is_said() -> None:
    with pytest.raises(SensorError, match=r"hpc\.power\.url is no address"):
        Http("http://bmc:port/x", "/x", 1.0).read()
    with pytest.raises(SensorError, match=r"http://127\.0\.0\.1:9/x is no address") as said:
        Http("http://127.0.0.1:9/x?key=hunter2 b", "/x", 1.0).read()
    assert "hunter2" not in said.value.reason


def test_a_command_that_is_killed_takes_along_what_it_has_started(tmp_path: Path) -> None:
    script = tmp_path / "leaves"
    # it ends at once; what it has started keeps its output open
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\n")
    script.chmod(0o755)
    with pytest.raises(SensorError, match="did not end within"):
        Command([str(script)], 0.5).read()
    child = int((tmp_path / "child").read_text())
    ends_s = stopwatch_s() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert stopwatch_s() < ends_s, "what it has started still runs"


def test_an_address_with_a_password_is_refused_without_telling_it() -> None:
    with pytest.raises(ConfigError) as said:
        Settings(power_url="https://admin:hunter2@bmc/redfish")
    assert "hunter2" not in str(said.value)
    assert "https://***@bmc/redfish" in str(said.value)
    assert Settings(power_url="https://bmc/redfish?a=b@c").power_url == "https://bmc/redfish?a=b@c"
