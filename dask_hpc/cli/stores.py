"""The store of a command, and waiting for it: one whose mount hangs is waited for no longer than is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dask_hpc.cli.types import PATH

if TYPE_CHECKING:
    from dask_hpc.checkpoint.store import Store
    from dask_hpc.checkpoint.store_threads import Asked


def asked(folder: str | Path) -> Asked:
    """What calls functions that read or write the store in a folder."""
    from dask_hpc.checkpoint.store_threads import Asked
    from dask_hpc.config import find

    return Asked(folder, find("checkpoint.silence").configured())


def any_store(_context: click.Context, _option: click.Parameter, folder: str | None) -> Store | None:
    """The store that is named or configured; None: neither."""
    from dask_hpc.checkpoint.store import Store
    from dask_hpc.config import find

    folder = folder or find("checkpoint.store").configured()
    if not folder:
        return None
    try:
        is_there = asked(folder)(Path(folder).is_dir)
    except OSError as error:
        raise click.ClickException(
            f"the store {folder} cannot be read: {error.strerror or error}; look at its permissions and at "
            "its mount, or give another one: --store DIR, hpc.checkpoint.store"
        ) from None
    if not is_there:
        raise click.UsageError(
            f"the store {folder} is not a folder; give --store DIR, or set hpc.checkpoint.store"
        )
    return Store(folder)


def named_store(context: click.Context, option: click.Parameter, folder: str | None) -> Store | None:
    """The store that is named; None: none is."""
    return any_store(context, option, folder) if folder else None


def _store(context: click.Context, option: click.Parameter, folder: str | None) -> Store:
    store = any_store(context, option, folder)
    if store is None:
        raise click.UsageError("no store: give --store DIR, or set hpc.checkpoint.store")
    return store


store_option = click.option(
    "--store",
    type=PATH,
    callback=_store,
    metavar="DIR",
    help="Folder of all checkpoints; without it, the setting hpc.checkpoint.store.",
)
