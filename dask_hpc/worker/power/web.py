"""Figures from the network: a query of Prometheus (Kepler, node_exporter), or a board's document (Redfish).

Rules of the file: names and passwords come from the user's ``netrc`` alone, are sent to the host that they
are for and to no other, and stand in no message. An answer that does not come has an end, also one that comes
byte by byte.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import netrc
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_hpc.clock import stopwatch_s
from dask_hpc.worker.power.figures import Gauge, Label, Reading, SensorError, summed

#: A longer answer is none of ours.
_MOST_BYTES = 1_000_000
_PIECE = 65_536
_ANSWER = "look at hpc.power.url, and whether this node reaches it; hpc.power.timeout is how long it may take"


class _Stays(urllib.request.HTTPRedirectHandler):
    """Refuses to be sent elsewhere: who asks for a figure has said where it is."""

    def redirect_request(self, *_: Any) -> None:
        """No."""


def document(url: str, timeout_s: float) -> Any:
    """The JSON that an address answers with.

    Raises
    ------
    SensorError
        When it does not answer in time, or with something else.
    """
    try:
        where = urllib.parse.urlsplit(url)
        _ = where.port
    except ValueError as error:
        raise SensorError(f"hpc.power.url is no address: {error}", _ANSWER) from None
    shown = f"{where.scheme}://{where.hostname}" + (f":{where.port}" if where.port else "") + where.path
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    if where.scheme not in ("http", "https") or not where.hostname:
        raise SensorError(f"{shown} is no address", "set hpc.power.url to one that begins with http(s)://")
    handlers: list[Any] = [_Stays]
    if (secret := _secret(where.hostname)) is not None:
        # a proxy would see it
        handlers.append(urllib.request.ProxyHandler({}))
        request.add_unredirected_header("Authorization", "Basic " + secret)
    ends_s = stopwatch_s() + timeout_s
    body = bytearray()
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            while piece := answer.read1(_PIECE):
                body += piece
                if stopwatch_s() > ends_s:
                    raise TimeoutError
                if len(body) > _MOST_BYTES:
                    raise SensorError(f"{shown} answers with more than {_MOST_BYTES} bytes")
        return json.loads(body)
    except urllib.error.HTTPError as error:
        remedy = "give its name and password in ~/.netrc (or the file that NETRC names)"
        refused = error.code in (401, 403)
        raise SensorError(
            f"{shown} answers {error.code} {error.reason}", remedy if refused else _ANSWER
        ) from None
    except TimeoutError:
        raise SensorError(f"{shown} did not answer within {timeout_s:g} s", _ANSWER) from None
    except http.client.InvalidURL:
        # what is said of it has all of the address, and keys may stand behind its ?
        raise SensorError(f"{shown} is no address: it has blanks or the like", _ANSWER) from None
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, TimeoutError):
            raise SensorError(f"{shown} did not answer within {timeout_s:g} s", _ANSWER) from None
        what = "no JSON" if isinstance(error, (json.JSONDecodeError, RecursionError)) else str(cause)
        raise SensorError(f"{shown} gives nothing: {what[:200]}", _ANSWER) from None


def _secret(host: str) -> str | None:
    """What is sent to a host that the user's netrc knows.

    Raises
    ------
    SensorError
        When that file is wrong; nothing of it is told.
    """
    path = Path(os.environ.get("NETRC") or Path("~/.netrc").expanduser())
    try:
        # its entry of any other host is for none that is named here
        found = netrc.netrc(str(path)).hosts.get(host)
    except OSError:
        return None
    except netrc.NetrcParseError as error:
        raise SensorError(
            f"{path} cannot be read: line {error.lineno}", "chmod 600, and mend that line"
        ) from None
    if found is None:
        return None
    return base64.b64encode(f"{found[0]}:{found[2]}".encode()).decode()


def pointed(data: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; raises `SensorError` when it leads nowhere."""
    found = data
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, TypeError, ValueError):
            raise SensorError(
                f"there is no {pointer} in the answer: {key[:60]!r} is not there",
                "set hpc.power.pointer to where the watts are, such as /PowerControl/0/PowerConsumedWatts",
            ) from None
    return found


def _watts(value: Any, what: str) -> float:
    try:
        if isinstance(value, bool):
            raise TypeError
        watts = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SensorError(f"{what} is {str(value)[:60]!r}, which is no number of watts") from None
    if not math.isfinite(watts):
        raise SensorError(f"{what} is {watts}: it is not measured")
    return watts


class Http:
    """Watts at one place of a JSON document.

    Parameters
    ----------
    url, pointer
        Where the document is, and where in it the watts are (RFC 6901).
    timeout_s
        Seconds that an answer may take.
    """

    name = "http"
    label: Label = "measured"

    def __init__(self, url: str, pointer: str, timeout_s: float) -> None:
        self._url, self._pointer, self._timeout_s = url, pointer, timeout_s

    def read(self) -> Reading:
        """What stands there now."""
        value = pointed(document(self._url, self._timeout_s), self._pointer)
        return {"http": Gauge(_watts(value, self._pointer or "the answer"))}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)


class Prometheus:
    """The value of a query, in watts: ``sum(rate(kepler_node_cpu_joules_total{instance="n1"}[30s]))``.

    Parameters
    ----------
    url
        Of the server, without ``/api/v1/query``.
    query
        In PromQL; several series are added up.
    timeout_s
        Seconds that an answer may take.
    """

    name = "prometheus"
    label: Label = "measured"

    def __init__(self, url: str, query: str, timeout_s: float) -> None:
        asked = urllib.parse.urlencode({"query": query})
        self._url = f"{url.rstrip('/')}/api/v1/query?{asked}"
        self._query, self._timeout_s = query, timeout_s

    def read(self) -> Reading:
        """What the query gives now."""
        answer = document(self._url, self._timeout_s)
        result = pointed(answer, "/data/result")
        if pointed(answer, "/data/resultType") == "scalar":
            values = [result]
        else:
            values = [pointed(one, "/value") for one in (result if isinstance(result, list) else ())]
        if not values:
            raise SensorError(
                f"the query {self._query[:100]} gives no series",
                "look at hpc.power.query, and whether the exporter runs on this node",
            )
        return {"prometheus": Gauge(sum(_watts(pointed(value, "/1"), "a series") for value in values))}

    def total(self, spent_j: Mapping[str, float], before: Reading, now: Reading) -> float:
        """All of it."""
        return summed(spent_j)
