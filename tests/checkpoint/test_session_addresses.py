"""Where managers of a session listen: who is on one host, and at which address others reach it."""

from __future__ import annotations

import socket
import threading
from collections import namedtuple
from typing import Any

import psutil
import pytest

from dask_hpc.session import host as hosts
from dask_hpc.session import memory as memories
from dask_hpc.session.memory import Memory
from dask_hpc.session.ranks import Ranks

Address = namedtuple("Address", "family address")
Stats = namedtuple("Stats", "isup")


class Machine:
    """Stands in for a host with its interfaces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.interfaces = {"lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]}
        self.down: set[str] = set()
        #: As Dask finds it.
        self.found = "127.0.0.1"
        monkeypatch.setattr(hosts, "get_ip", lambda: self.found)
        monkeypatch.setattr(psutil, "net_if_addrs", self._addresses)
        monkeypatch.setattr(psutil, "net_if_stats", self._stats)
        monkeypatch.setattr(socket, "gethostname", lambda: "node")

    def _addresses(self) -> dict[str, Any]:
        return {name: [Address(*each) for each in its] for name, its in self.interfaces.items()}

    def _stats(self) -> dict[str, Any]:
        return {name: Stats(name not in self.down) for name in self.interfaces}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_others_reach_a_host_at_the_address_that_dask_finds(machine: Machine) -> None:
    machine.interfaces["eth0"] = [(socket.AF_INET, "10.1.2.3")]
    machine.found = "192.168.0.4"
    assert hosts.reached_at() == "192.168.0.4"


@pytest.mark.parametrize("found", ["127.0.0.1", "127.0.1.1"])
def test_others_reach_a_host_without_a_way_out_whose_name_is_that_of_its_loopback(
    machine: Machine, found: str
) -> None:
    machine.found = found
    machine.interfaces["virbr0"] = [(socket.AF_INET, "192.168.122.1")]
    machine.down.add("virbr0")
    machine.interfaces["ib0"] = [(socket.AF_INET6, "fe80::1%ib0"), (socket.AF_INET, "10.1.2.3")]
    assert hosts.reached_at() == "10.1.2.3"
    machine.interfaces["ib0"] = [(socket.AF_INET6, "fe80::1%ib0"), (socket.AF_INET6, "fd00::7")]
    assert hosts.reached_at() == "fd00::7"
    # there is no other
    machine.interfaces.pop("ib0")
    assert hosts.reached_at() == found


class Taken(Exception):
    """The host of a process was asked for."""


@pytest.mark.parametrize(("second", "nearby"), [("10.0.0.1", True), ("10.0.0.2", False)])
def test_managers_listen_on_the_loopback_for_processes_of_one_host_alone_not_of_one_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, second: str, nearby: bool
) -> None:
    here, told = threading.local(), [False, False]
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": [Address(socket.AF_INET, here.address)]})
    meeting, said = threading.Barrier(2), [None, None]

    def host(name: str, word: str, settings: Any, nearby: bool) -> Any:
        told[here.rank] = nearby
        raise Taken

    monkeypatch.setattr(memories, "Host", host)

    def process(rank: int, address: str) -> None:
        here.rank, here.address = rank, address

        def exchange(mine: Any) -> list[Any]:
            said[rank] = mine
            meeting.wait(10)
            found = list(said)
            meeting.wait(10)
            return found

        with pytest.raises(Taken):
            Memory("run", Ranks(rank, 2, exchange), False).open()

    every = [threading.Thread(target=process, args=each) for each in enumerate(["10.0.0.1", second])]
    for one in every:
        one.start()
    for one in every:
        one.join(10)
    assert told == [nearby, nearby]
