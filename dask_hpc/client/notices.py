"""Notices: what the scheduler has to tell a client unasked: in its log, or where somebody shows them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from distributed import Client

from dask_hpc.channel import Channel
from dask_hpc.wire import notice_topic

logger = logging.getLogger("dask_hpc")

#: Given the id of a job that waits and a sentence about it, in the loop of the client.
Shown = Callable[[str, str], None]

#: Who shows the notices of a client, by its id.
_shown: dict[str, list[Shown]] = {}


def listen(channel: Channel) -> None:
    """Have what the scheduler tells this client appear in its log, as long as nobody shows it.

    What the scheduler asks of it is whether jobs are closed whose closing message may be lost.
    """
    client = channel.client
    client.subscribe_topic(notice_topic(client.id), functools.partial(_tell, client.id, channel.opened))


def show(client: Client, shown: Shown) -> Callable[[], None]:
    """Have `shown` called in place of the log; what is given back ends that."""
    # the client is not kept: who shows its notices may outlive it
    id, there = client.id, _shown.setdefault(client.id, [])
    there.append(shown)

    def end() -> None:
        if shown in there:
            there.remove(shown)
        if not there:
            _shown.pop(id, None)

    return end


def _tell(client: str, opened: Iterable[Any], event: tuple[float, Mapping[str, Any]]) -> None:
    _, message = event
    if (open_ := message.get("open")) is not None:
        for handle in list(opened):
            handle.say_closed(open_)
        return
    job, text = message["job"], message["text"]
    there = _shown.get(client, ()) if job else ()
    # a line of a log is red in a notebook, and stands in whatever cell runs
    logger.log(logging.INFO if there else logging.WARNING, "%s", text)
    for shown in list(there):
        shown(job, text)
