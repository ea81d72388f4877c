"""The JupyterLab of these tests is reached from this machine alone, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import urllib.error
import urllib.request
from pathlib import Path

import jupyter_server
import psutil
import pytest

pytestmark = pytest.mark.browser


@pytest.fixture
def lab():
    if why := jupyter_server.missing():
        pytest.skip(why)
    return jupyter_server.JupyterServer([])


def test_its_kernels_end_with_it_also_when_a_test_fails(lab):
    before = set(psutil.Process().children(recursive=True))
    with contextlib.suppress(ZeroDivisionError), lab:
        lab.start_kernel()
        started = set(psutil.Process().children(recursive=True)) - before
        kernels = [one for one in started if "ipykernel_launcher" in " ".join(one.cmdline())]
        assert kernels
        sockets = [socket for child in started for socket in child.net_connections()]
        listening = {socket.laddr.ip for socket in sockets if socket.status == "LISTEN"}
        folder = Path(kernels[0].environ()["HOME"])
        assert folder.is_dir()
        0 / 0  # noqa: B018
    assert listening == {"127.0.0.1"}
    assert not [child for child in started if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not folder.exists()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(lab.url, timeout=5)


def test_it_has_nothing_of_whoever_runs_the_tests(lab, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", "/nowhere")
    monkeypatch.setenv("DASK_HPC__POLICY", "easy")
    with lab:
        lab.start_kernel()
        (kernel,) = [
            one
            for one in psutil.Process().children(recursive=True)
            if "ipykernel_launcher" in " ".join(one.cmdline())
        ]
        environment = kernel.environ()
    assert environment["HOME"] != os.environ.get("HOME")
    assert environment["JUPYTER_CONFIG_DIR"] != "/nowhere"
    assert "DASK_HPC__POLICY" not in environment


def test_nobody_gets_in_without_the_token(lab):
    with lab, pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{lab.url}api/kernels", timeout=20)
