"""The JupyterLab of these tests is reached from this machine alone, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
import urllib.request
from pathlib import Path

import lab_server
import psutil
import pytest

pytestmark = pytest.mark.browser


@pytest.fixture
def lab():
    if why := lab_server.missing():
        pytest.skip(why)
    return lab_server.JupyterServer([])


def kernel_of(lab):
    """The process of its one kernel."""
    found = []
    for process in lab.processes():
        # others come and go
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if "ipykernel_launcher" in " ".join(process.cmdline()) else []
    (kernel,) = found
    return kernel


def test_it_has_nothing_of_whoever_runs_it_and_ends_with_its_kernels_also_when_a_test_fails(lab, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", "/nowhere")
    monkeypatch.setenv("DASK_HPC__POLICY", "easy")
    with contextlib.suppress(ZeroDivisionError), lab:
        lab.start_kernel()
        started = lab.processes()
        kernel = kernel_of(lab)
        sockets = [socket for one in (started[0], kernel) for socket in one.net_connections()]
        listening = {socket.laddr.ip for socket in sockets if socket.status == "LISTEN"}
        environment = kernel.environ()
        folder = Path(environment["HOME"])
        assert folder.is_dir()
        0 / 0  # noqa: B018
    assert environment["HOME"] != os.environ.get("HOME")
    assert environment["JUPYTER_CONFIG_DIR"] != "/nowhere"
    assert "DASK_HPC__POLICY" not in environment
    assert listening == {"127.0.0.1"}
    assert not [child for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not folder.exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(lab.url, timeout=5)


def test_the_kernel_that_is_to_wait_is_not_ended_before_its_id_is_told(monkeypatch):
    lab = lab_server.JupyterServer([])
    kernels, ended, asked = [], [], threading.Event()

    def call(path, method="GET", body=None):
        if method == "POST":
            kernels.append({"id": "spare"})
            # it is there, and who asks now is told of it
            asked.wait(0.3)
            return kernels[-1]
        if method == "DELETE":
            ended.append(path)
        asked.set()
        return kernels

    monkeypatch.setattr(lab, "_call", call)
    lab.reserve()
    lab.shut_kernels()
    assert lab._spare == "spare"
    assert ended == []


def test_nobody_gets_in_without_the_token(server):
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{server.url}api/kernels", timeout=20)
