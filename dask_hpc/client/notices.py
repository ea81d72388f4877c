"""Notices: what the scheduler has to tell a client unasked, in its log."""

from __future__ import annotations

import logging
from typing import Any

from distributed import Client

from dask_hpc.wire import notice_topic

logger = logging.getLogger("dask_hpc")


def listen(client: Client) -> None:
    """Have what the scheduler tells this client appear in its log."""
    client.subscribe_topic(notice_topic(client.id), _show)


def _show(event: Any) -> None:
    _, message = event
    logger.warning(
        "Job %s has been held for %.0f s: %s. Remedy: %s.",
        message["job"],
        message["held_s"],
        message["reason"],
        message["remedy"],
    )
