"""Reaching a running cluster from the command line.

Security (TLS) comes from Dask's configuration (``distributed.comm.tls``), as for every Dask client.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dask_hpc.cli.types import FILE, Address, Seconds
from dask_hpc.coupling.scheduler_file import address_in
from dask_hpc.errors import DaskHPCError
from dask_hpc.terminal import cell, one_line

if TYPE_CHECKING:
    from distributed import Client


_OPTIONS = (
    click.option(
        "--address",
        metavar="ADDRESS",
        type=Address(),
        help="Address of the scheduler, such as tcp://login1:8786.",
    ),
    click.option(
        "--scheduler-file",
        type=FILE,
        help="File in which the scheduler has written its address.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        default="10 s",
        show_default=True,
        type=Seconds(0.001),
        help="How long to wait for the scheduler.",
    ),
)

_NO_PORT = "what follows its colon is no port, such as 8786"


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which cluster is meant."""
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), command)


@contextmanager
def connected(address: str | None, scheduler_file: Path | None, timeout_s: float) -> Iterator[Client]:
    """A client of the running cluster; never starts one.

    Raises
    ------
    click.ClickException
        When no cluster is named or it does not answer.
    """
    import dask.config
    from distributed import Client

    if address and scheduler_file:
        raise click.UsageError("give --address or --scheduler-file, not both")
    address = address or (None if scheduler_file else dask.config.get("scheduler-address", None))
    if not address and scheduler_file is None:
        raise click.UsageError("no cluster is named: give --address or --scheduler-file")
    # what the log would say is in the one line that we print
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    address = address or _address_in(cast("Path", scheduler_file))
    # a client that fails to connect complains again when it is collected, so ask before making one
    kind = asyncio.run(_identify(address, timeout_s))
    if kind != "Scheduler":
        raise click.ClickException(f"no scheduler answers at {address}: it is a {cell(kind)}")
    try:
        with Client(address=address, timeout=timeout_s, set_as_default=False, name="dask-hpc-cli") as client:
            yield client
    except DaskHPCError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        # the scheduler went away, or refused what was asked for
        raise click.ClickException(f"{address}: {one_line(str(error)) or type(error).__name__}") from None


def _address_in(scheduler_file: Path) -> str:
    try:
        return address_in(scheduler_file)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


async def _identify(address: str, timeout_s: float) -> str:
    """What kind of server answers at `address`."""
    from distributed.comm import connect
    from distributed.core import send_recv
    from distributed.security import Security

    async def ask() -> str:
        port = address.rpartition(":")[2]
        if port.isdecimal() and int(port) >= 2**16:  # Dask would try it again until the time is over
            raise ValueError(_NO_PORT)
        arguments = Security().get_connection_args("client")
        comm = await connect(address, timeout=timeout_s, **arguments)
        try:
            return str((await send_recv(comm, op="identity", reply=True))["type"])
        finally:
            comm.abort()

    try:
        # a port that accepts and then says nothing must not hold us for ever
        return await asyncio.wait_for(ask(), timeout_s)
    except TimeoutError:
        detail = f"no answer within {timeout_s:g} s"
    except (OSError, ValueError, TypeError, KeyError) as error:
        # a wrong scheme, port or host, nobody there, TLS wanted, another kind of server
        detail = one_line(str(error)) or type(error).__name__
        if detail.startswith("invalid literal"):
            detail = _NO_PORT
    except Exception:
        # the first bytes of anything else, such as a web page, are taken for sizes
        detail = "what answers there is no server of Dask; the port of a scheduler is 8786 as a rule"
    raise click.ClickException(f"no scheduler answers at {address}: {detail}")
