"""``dask hpc checkpoint``: the versions in a store, without a cluster; and one of them back on one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_hpc.cli.connection import connected, connection_options
from dask_hpc.cli.replacing import can_ask
from dask_hpc.cli.stores import any_store, asked, named_store, store_option
from dask_hpc.cli.types import PATH
from dask_hpc.terminal import echo_json, echo_table, json_option, one_line, progress_bar
from dask_hpc_policies.wording import counted

if TYPE_CHECKING:
    from distributed import Future

    from dask_hpc.checkpoint.store import Store
    from dask_hpc.checkpoint.versions import Version

_COLUMNS = {
    "name": "NAME",
    "version": "VERSION",
    "complete": "COMPLETE",
    "bytes": "BYTES",
    "created": "CREATED",
    "levels": "LEVELS",
    "path": "PATH",
}
_TOTALS = {
    "name": "NAME",
    "versions": "VERSIONS",
    "newest": "NEWEST",
    "bytes": "BYTES",
    "created": "CREATED",
    "damaged": "DAMAGED",
    "unfinished": "UNFINISHED",
    "unfinished_bytes": "OF THEM BYTES",
}
#: A name of a data set that cannot be had.
_PUBLISHED = (
    "the cluster has a data set {0!r}; give another name with --as, or unpublish it: "
    "client.unpublish_dataset({0!r})"
)


key_option = click.option(
    "--key-file",
    type=PATH,
    metavar="FILE",
    help="With the key of an encrypted version; without it, the setting hpc.checkpoint.key-file.",
)


@click.group()
def checkpoint() -> None:
    """List, check, copy, load and remove what was saved.

    Each command has --json.
    """


@checkpoint.command()
@click.argument("name", required=False)
@store_option
@json_option
def ls(name: str | None, store: Store, as_json: bool) -> None:
    """List the versions, oldest first, then those that were not finished.

    complete is false for what is being written or was left unfinished, and for a version whose manifest is
    damaged.
    """
    ask = asked(store.folder)
    found = ask(store.versions, _checked(name))
    if name is not None and not found:
        ask(store.find, name)  # says which names there are
    rows = [
        {
            "name": version.name,
            "version": version.version,
            "complete": version.complete,
            "path": version.path,
            "bytes": version.bytes,
            "created_s": version.created_s,
            "levels": list(version.levels),
        }
        for version in found
    ]
    if as_json:
        echo_json(rows)
        return
    told = [
        {**row, "created": _when(row["created_s"]), "levels": ",".join(row["levels"])}  # type: ignore[arg-type]
        for row in rows
    ]
    echo_table(told, _COLUMNS, f"no checkpoint in {store.folder}")


@checkpoint.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(1), metavar="N", help="The newest without it.")
@key_option
@store_option
@json_option
def verify(name: str, version: int | None, key_file: str | None, store: Store, as_json: bool) -> None:
    """Read a version to its last byte and compare all checksums.

    With the key of an encrypted version, it is decrypted, too. The exit code is 1 when something is not as it
    was written.
    """
    from dask_hpc.checkpoint.verify import verify as check

    ask = asked(store.folder)
    chosen = ask(store.find, _named(name), version)
    key = ask(_key, chosen, key_file)
    with progress_bar("verify") as show:
        problems = ask(check, chosen, show, key=key)
    row = {
        "name": chosen.name,
        "version": chosen.version,
        "path": chosen.path,
        "ok": not problems,
        "problems": [{"path": problem.path, "text": problem.text} for problem in problems],
    }
    if as_json:
        echo_json(row)
    else:
        echo_table(row["problems"], {"path": "FILE", "text": "PROBLEM"}, f"{chosen.path} is what was written")  # type: ignore[arg-type]
    if problems:
        raise SystemExit(1)


@checkpoint.command()
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="So many whole versions of each name stay.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option(
    "--store",
    type=PATH,
    callback=any_store,
    metavar="DIR",
    help="Folder of all checkpoints; without it, hpc.checkpoint.store; with neither, memory alone.",
)
@json_option
def gc(keep: int, dry_run: bool, yes: bool, store: Store | None, as_json: bool) -> None:
    """Remove old versions, and what was left an hour ago or before: unfinished, or by killed schedulers.

    Also what managers that were killed left in the memory of this host, hpc.checkpoint.linger ago or before;
    that alone when there is no store. What other users have stays.
    """
    from dask_hpc.worker.host_process import LEFT_S, collect
    from dask_hpc.worker.node import node_settings

    left_s = max(LEFT_S, node_settings().checkpoint_linger_s)
    left = [str(path) for path in collect(left_s, dry_run=True)]
    paths = [] if store is None else asked(store.folder)(store.collect, keep, dry_run=True)
    if not dry_run and (paths or left):
        if not yes:
            both = [] if store is None else [f"{len(paths)} versions"]
            if left:
                both.append(f"what {counted(len(left), 'manager')} left in memory")
            what = " and ".join(both)
            if as_json or not can_ask():
                raise click.UsageError(f"{what} would be removed; --yes removes them")
            where = "" if store is None else f" (store: {store.folder})"
            click.confirm(f"Remove {what}{where}?", abort=True, err=True)
        paths = [] if store is None else asked(store.folder)(store.collect, keep)
        left = [str(path) for path in collect(left_s)]
    if store is None:
        click.echo("Note: no store (--store DIR, hpc.checkpoint.store): memory alone is looked at", err=True)
    paths = [*paths, *left]
    if as_json:
        echo_json({"removed": [] if dry_run else paths, "would_remove": paths if dry_run else []})
        return
    heading = "WOULD BE REMOVED" if dry_run else "REMOVED"
    echo_table([{"path": path} for path in paths], {"path": heading}, "nothing to remove")


@checkpoint.command()
@click.argument("name")
@click.argument("path", type=PATH)
@click.option("--version", type=click.IntRange(1), metavar="N", help="The newest without it.")
@key_option
@store_option
@json_option
def export(
    name: str, path: str, version: int | None, key_file: str | None, store: Store, as_json: bool
) -> None:
    """Copy a version to PATH, where nothing may be yet.

    The copy is checked. It is a Zarr group that belongs to you: xarray.open_zarr opens labelled data and
    arrays with regular chunks, dask_hpc.open_checkpoint all kinds. With the key of an encrypted version the
    copy is not encrypted.
    """
    from dask_hpc.checkpoint.export import export as copy

    ask = asked(store.folder)
    chosen = ask(store.newest, _named(name), version)
    key = ask(_key, chosen, key_file)
    with progress_bar("export") as show:
        # here: who interrupts it is left no part of a copy, and a disk may take its time to have all of it
        copy(chosen, path, show, key=key)
    row = {
        "name": chosen.name,
        "version": chosen.version,
        "path": str(Path(path).absolute()),
        "bytes": chosen.bytes,
    }
    if as_json:
        echo_json(row)
        return
    click.echo(f"version {chosen.version} of {chosen.name} is in {path} ({chosen.bytes} bytes)")


@checkpoint.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(1), metavar="N", help="The newest without it.")
@click.option("--as", "dataset", metavar="NAME", help="Name of the data set; without it, the same NAME.")
@click.option("--allow-pickle", is_flag=True, help="Unpickle what is no array, which can run any code.")
@key_option
@click.option(
    "--store",
    type=PATH,
    callback=named_store,
    metavar="DIR",
    help="Folder of all checkpoints, for workers, too; without it, what dask_hpc.restore would take.",
)
@connection_options
@json_option
def restore(
    name: str,
    version: int | None,
    dataset: str | None,
    allow_pickle: bool,
    key_file: str | None,
    store: Store | None,
    address: str | None,
    scheduler_file: Path | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Load a version on the workers of a running cluster, and publish it there.

    Any client has it by client.get_dataset(NAME), until one says client.unpublish_dataset(NAME).
    """
    from distributed import as_completed, futures_of

    from dask_hpc.client.checkpoints import restored
    from dask_hpc.errors import CheckpointError

    _named(name)
    dataset = name if dataset is None else dataset
    if not dataset:
        raise click.UsageError("--as is empty; allowed: a name")
    with connected(address, scheduler_file, timeout_s) as client:
        if dataset in client.list_datasets():
            raise click.UsageError(_PUBLISHED.format(dataset))
        if not client.ncores():
            click.echo("Note: the cluster has no workers yet, and one is waited for", err=True)
        folder = None if store is None else store.folder
        try:
            found = client.sync(restored, client, name, folder, version, allow_pickle, key_file)
        except CheckpointError as error:
            raise type(error)(_in_options(str(error))) from None
        except ValueError as error:
            # it is no fault of the connection
            raise click.UsageError(f"{error}" if folder else f"{error} (here: --store DIR)") from None
        futures = list({future.key: future for future in futures_of(found.made)}.values())
        with progress_bar("restore") as show:
            # nobody else's client is there
            for done, future in enumerate(as_completed(futures, loop=client.loop), 1):
                if future.status != "finished":
                    raise click.ClickException(_unread(future))
                if show is not None:
                    show(done, len(futures))
        try:
            client.publish_dataset(found.made, name=dataset)
        except KeyError:
            raise click.UsageError(_PUBLISHED.format(dataset)) from None
    row = {
        "name": name,
        "version": found.version,
        "path": found.path,
        "bytes": found.bytes,
        "dataset": dataset,
        "variables": [str(each) for each in getattr(found.made, "data_vars", ())],
        "blocks": len(futures),
    }
    if as_json:
        echo_json(row)
        return
    variables = f", variables {', '.join(row['variables'])}" if row["variables"] else ""
    click.echo(
        f"version {found.version} of {name} ({found.bytes} bytes) is on the workers: "
        f"{counted(len(futures), 'block')}{variables}; client.get_dataset({dataset!r}) gives it"
    )


@checkpoint.command()
@store_option
@json_option
def status(store: Store, as_json: bool) -> None:
    """Sum up each name: whole versions, their bytes, damaged ones, what was left unfinished."""
    rows, problem = asked(store.folder)(_summed, store)
    if as_json:
        echo_json({"store": str(store.folder), "problem": problem, "names": rows})
        return
    told = [{**row, "created": _when(row["created_s"])} for row in rows]
    echo_table(told, _TOTALS, f"no checkpoint in {store.folder}")
    if problem:
        click.echo(f"Warning: {problem}", err=True)


def _summed(store: Store) -> tuple[list[dict[str, Any]], str | None]:
    """A row for each name, and why nothing can be written to the store."""
    rows = []
    for name in store.names():
        versions = store.versions(name)
        whole = [version for version in versions if version.complete]
        others = [version for version in versions if not version.complete]
        drafts = [version for version in others if Path(version.path).name.startswith(".")]
        if versions:
            rows.append(
                {
                    "name": name,
                    "versions": len(whole),
                    "newest": whole[-1].version if whole else None,
                    "bytes": sum(version.bytes for version in whole),
                    "created_s": whole[-1].created_s if whole else None,
                    "damaged": len(others) - len(drafts),
                    "unfinished": len(drafts),
                    "unfinished_bytes": sum(version.bytes for version in drafts),
                }
            )
    return rows, store.problem()


def _key(version: Version, key_file: str | None) -> bytes | None:
    """The key of an encrypted version; None: it is not encrypted, or nobody has named a key."""
    from dask_hpc.checkpoint.sealing import read_key
    from dask_hpc.config import find
    from dask_hpc.errors import CheckpointError

    try:
        sealed = version.manifest().is_sealed
    except CheckpointError:
        return None  # it is damaged, and that will be said
    key_file = key_file or find("checkpoint.key-file").configured()
    if sealed and key_file is None:
        click.echo("Note: it is encrypted, and stays so; its checksums alone are compared", err=True)
    return read_key(key_file) if sealed and key_file is not None else None


def _unread(future: Future) -> str:
    """Why a block is not there."""
    if future.status == "error":
        return one_line(_in_options(str(future.exception())))
    return f"{future.key!r} was {future.status} before it was read; nothing is published"


def _in_options(text: str) -> str:
    """What an error says of arguments of Python, said of the options of a command."""
    return text.replace("allow_pickle=True", "--allow-pickle").replace("key_file=...", "--key-file FILE")


def _named(name: str) -> str:
    from dask_hpc.checkpoint.names import checked_name

    try:
        return checked_name(name)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _checked(name: str | None) -> str | None:
    return None if name is None else _named(name)


def _when(created_s: float | None) -> Any:
    from dask_hpc.clock import local_time

    return None if created_s is None else local_time(created_s)
