"""What this host is called, so that a worker on it can be told from others."""

from __future__ import annotations

import ipaddress
import socket

import psutil
from distributed.comm import get_address_host


def hosts(scheduler: str) -> list[str]:
    """Names and addresses of this host: those of all interfaces, as its workers may listen on any.

    The addresses that every host calls itself by are left out, unless `scheduler`, an address, has one.
    """
    found = {
        one.address.partition("%")[0]
        for its in psutil.net_if_addrs().values()
        for one in its
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    host = get_address_host(scheduler)
    found = found | {host} if _is_own(host) else {address for address in found if not _is_own(address)}
    return sorted({socket.gethostname(), *found})


def _is_own(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
