"""Hosts that cannot be reached for a while: packets go nowhere, and nobody says that nobody listens."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import numpy as np
import pytest
from distributed import wait
from hosts import before, five_hosts, places

import dask_hpc
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.record import dump, parse
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker import saved
from dask_hpc.worker.saved import copies_of, load, read_held

HOSTS = ("alpha", "beta")


@pytest.fixture(scope="module")
def cluster():
    with five_hosts(HOSTS) as client:
        before(lambda: set(places(client)) == set(HOSTS), "both hosts are there")
        yield client


class Away:
    """The way to an address on which nothing gets through until it is `back`: the kernel drops what comes
    for a socket whose queue is full.
    """

    def __init__(self, address: str) -> None:
        told = urlsplit(address)
        self._target = told.hostname, told.port
        self._closing = ExitStack()
        self._socket = self._opened(socket.create_server(("127.0.0.1", 0), backlog=0))
        self.address = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self._full = []
        with suppress(TimeoutError):
            while True:
                self._full.append(self._opened(socket.create_connection(self._socket.getsockname(), 0.3)))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._closing.close()

    def _opened(self, one):
        return self._closing.enter_context(one)

    def back(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                here = self._opened(self._socket.accept()[0])
                there = self._opened(socket.create_connection(self._target))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=_passed_on, args=(one, other), daemon=True).start()


def _passed_on(one, other) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def record_of(name, dask_scheduler):
    (text,) = [dump(one) for one in of(dask_scheduler).commits._memory.records.values() if one.name == name]
    return text


def seen_by_others(client, name, where):
    """The copies of a version, as hosts have them that do not see its files and reach managers elsewhere."""
    record = parse(client.run_on_scheduler(record_of, name))
    return copies_of(record.at({home: Home(where(home.address), "/elsewhere") for home in record.all_homes}))


def written(cluster, name, levels):
    rt = dask_hpc.install(cluster, "fcfs", checkpoint_store=None)
    alpha = places(cluster)["alpha"][2]
    data = cluster.scatter([np.arange(1000.0)], workers=[alpha], hash=False)
    wait(data)
    assert rt.checkpoint(data, name, levels=levels).status()["levels"] == list(levels)
    return rt, data


def said(client):
    return [event for _, event in client.get_events(saved.TOPIC) if "error" in event]


@pytest.mark.parametrize("levels", [("L1",), ("L1", "L2")])
def test_what_a_host_holds_that_is_away_for_some_seconds_is_read_when_it_is_back(cluster, levels):
    rt, data = written(cluster, "away", levels)
    rt.update(checkpoint_silence_s=60.0)
    rt.checkpoint(data, "away", levels=levels)
    beta = places(cluster)["beta"][2]
    before_s, heard = time.monotonic(), len(said(cluster))
    with ExitStack() as stack:
        ways = []

        def where(address):
            ways.append(stack.enter_context(Away(address)))
            return ways[-1].address

        (copy,) = seen_by_others(cluster, "away", where)
        reading = cluster.submit(read_held, copy, True, workers=[beta], pure=False)
        protected = cluster.submit(load, [copy], workers=[beta], pure=False)
        # it has found them away by then
        with pytest.raises(TimeoutError):
            reading.result(timeout=4)
        # other tasks of the worker go on meanwhile
        assert cluster.submit(abs, -1, workers=[beta], pure=False).result(timeout=20) == 1
        for way in ways:
            way.back()
        for each in (reading, protected):
            np.testing.assert_array_equal(each.result(timeout=60), np.arange(1000.0))
    assert len(said(cluster)) == heard, "the scheduler was told that no copy is of use"
    assert time.monotonic() - before_s < 60


def test_what_a_host_alone_holds_that_stays_away_is_given_up_after_the_silence(cluster):
    rt, data = written(cluster, "gone", ("L1",))
    rt.update(checkpoint_silence_s=2.0)
    rt.checkpoint(data, "gone", levels=("L1",))
    beta = places(cluster)["beta"][2]
    with ExitStack() as stack:
        (copy,) = seen_by_others(cluster, "gone", lambda to: stack.enter_context(Away(to)).address)
        reading = cluster.submit(read_held, copy, True, workers=[beta], pure=False)
        with pytest.raises(CheckpointError, match="no connection within 3 s"):
            reading.result(timeout=30)


def test_what_a_host_held_whose_manager_is_gone_is_given_up_at_once(cluster):
    rt, _ = written(cluster, "refused", ("L1",))
    rt.update(checkpoint_silence_s=60.0)
    beta = places(cluster)["beta"][2]
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    (copy,) = seen_by_others(cluster, "refused", lambda address: nobody)
    alone = dataclasses.replace(copy, group=None)
    reading = cluster.submit(read_held, alone, True, workers=[beta], pure=False)
    with pytest.raises(CheckpointError, match="does not answer"):
        reading.result(timeout=30)
