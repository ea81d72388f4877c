"""Caps of hosts that give leave, while the measured draw is above the upper bound (lever ``cap``).

Rules of the file: it asks, and believes nothing that was not answered; how much is the rule's
(`dask_hpc_policies.power.capping`). A cap is asked for again and again: a host that hears nothing for longer
than it allows ends it by itself, so a scheduler that is killed leaves none behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.power.draw import Host
from dask_hpc.scheduler.tables.state import State
from dask_hpc.trace.records import Other
from dask_hpc.wire import CAP
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.power.capping import CappedHost, caps

#: A cap that differs by less, as a share, is the same one.
_SAME = 0.02
#: It is asked for again after this share of the time after which it would end.
_AGAIN = 1 / 3
#: Who refuses, or does not answer, is asked again after so long; an answer takes at most so long.
_REFUSED_S, _PATIENCE_S = 60.0, 30.0


@dataclass(slots=True)
class _Host:
    """What is known of a host."""

    #: The worker of it that is asked.
    address: str
    #: What was asked for last, and its answer.
    watts: float | None = None
    said: Mapping[str, Any] = field(default_factory=dict)
    #: When it is asked again although nothing has changed.
    due_s: float = 0.0
    #: Whether an answer is awaited.
    awaited: bool = False

    @property
    def state(self) -> str:
        return str(self.said.get("state", ""))

    @property
    def cap_w(self) -> float | None:
        """Its cap, if it has one."""
        return self.watts if self.state == "written" else None


class HostCaps:
    """Asks hosts for caps.

    Parameters
    ----------
    tell
        Notes among the decisions what has become of a cap: a job (none), a code, a text.
    """

    def __init__(self, state: State, tell: Callable[[str, ReasonCode, str], Any]) -> None:
        self._state, self._tell = state, tell
        self._hosts: dict[str, _Host] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def look(self, upper_w: float, draw_w: float, measured: Mapping[str, Host]) -> None:
        """Ask for what holds the draw below a bound.

        Parameters
        ----------
        upper_w, draw_w
            What all nodes may draw, and what they draw.
        measured
            Hosts whose draw is measured, by name.
        """
        now_s = self._state.now_s()
        gone = [name for name, host in self._hosts.items() if name not in measured and host.due_s <= now_s]
        for name in gone:
            # it measures nothing any more: its cap ends by itself
            del self._hosts[name]
        if draw_w <= upper_w and not any(host.watts is not None for host in self._hosts.values()):
            return
        for name, its in measured.items():
            host = self._hosts.get(name)
            if host is None or host.address not in its.addresses:
                host = self._hosts[name] = _Host(its.addresses[0])
            if not host.awaited and host.due_s <= now_s and "least_w" not in host.said:
                self._ask(name, host, None, look=True)
        known = {
            name: host for name, host in self._hosts.items() if name in measured and "least_w" in host.said
        }
        wanted = caps(
            upper_w,
            draw_w,
            [
                CappedHost(
                    name, measured[name].capped_w, host.said["least_w"], host.said["most_w"], host.cap_w
                )
                for name, host in known.items()
            ],
        )
        for name, host in known.items():
            watts = wanted.get(name)
            if not host.awaited and (_differ(host.watts, watts) or (watts and host.due_s <= now_s)):
                self._ask(name, host, watts)

    def end(self) -> None:
        """Cap nobody any more."""
        hosts, self._hosts = self._hosts, {}
        for name, host in hosts.items():
            if host.watts is not None:
                self._ask(name, host, None)

    def told(self) -> list[dict[str, Any]]:
        """What was asked of each host, and what it says."""
        return [
            {"host": name, "watts": host.watts, **host.said}
            for name, host in self._hosts.items()
            if host.said
        ]

    def _ask(self, name: str, host: _Host, watts: float | None, *, look: bool = False) -> None:
        host.awaited, host.watts = True, watts
        asking = asyncio.get_running_loop().create_task(self._asked(name, host, watts, look))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _asked(self, name: str, host: _Host, watts: float | None, look: bool) -> None:
        before = host.state
        try:
            said = await remote.ask(
                self._state.scheduler, host.address, CAP, _PATIENCE_S, watts=watts, look=look
            )
        except Exception as error:  # a worker that has gone, or fails: its cap ends by itself
            said = {"state": "refused", "reason": f"{host.address} does not answer: {error!r}", "remedy": ""}
        host.awaited = False
        # what it can be capped at is known from before
        kept = {key: host.said[key] for key in ("least_w", "most_w") if key in host.said}
        host.said = {**({} if said["state"] == "refused" else kept), **said}
        later_s = _AGAIN * said.get("silence_s", _REFUSED_S / _AGAIN)
        host.due_s = self._state.now_s() + later_s
        if said["state"] == "refused":
            host.watts = None
        never = said["state"] == "released" and before != "written"
        if said["state"] != before and not never and (said["state"] == "refused" or not look):
            self._note(name, watts, said)

    def _note(self, name: str, watts: float | None, said: Mapping[str, Any]) -> None:
        """Say what has become of a cap."""
        state = said["state"]
        data = {"t_s": self._state.now_s(), "host": name, "watts": watts, "state": state}
        self._state.record(Other(kind="cap", data=data))
        text = {
            "written": f"{name} is capped at {watts or 0:.0f} W",
            "dry-run": f"{name} would be capped at {watts or 0:.0f} W; nothing is written there before "
            "hpc.power.cap.write is set",
            "released": f"{name} is capped no more",
        }.get(state)
        if text is None:
            text = f"{name} is not capped: {said['reason']}" + "; " * bool(said["remedy"]) + said["remedy"]
        self._tell("", ReasonCode.CORRIDOR, text)


def _differ(one: float | None, other: float | None) -> bool:
    """Whether two caps are not the same."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > _SAME * one
