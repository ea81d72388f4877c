"""Which workers a scheduler has now, as it says itself."""

from __future__ import annotations

from typing import Any, cast

from distributed import Client


def workers_of(client: Client) -> dict[str, dict[str, Any]]:
    """What the scheduler says of each worker, by address.

    `Client.scheduler_info` may give none of them: the client asks the same question without workers now and
    then, and gives whichever answer came last.
    """
    return dict(client.sync(cast(Any, client.scheduler).identity, n_workers=-1)["workers"])
