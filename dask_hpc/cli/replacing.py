"""Files that a command would replace: asked about on a terminal, refused anywhere else.

Rules of the file: asked before anything is run, one question for all files of a command, and no is the
answer to an empty line. Whoever reads JSON is never asked.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import click

#: Names that a question repeats.
_SHOWN = 3

force_option = click.option("--force", is_flag=True, help="Replace files that exist, without a question.")


def check_replace(paths: Iterable[Path], *, force: bool, as_json: bool) -> None:
    """Ask whether those of `paths` that exist may be replaced, unless `force` says so.

    Raises
    ------
    click.UsageError
        When one exists and nobody can be asked: there is no terminal, or `as_json`.
    click.Abort
        When the answer is no.
    """
    # a link to nothing would be replaced, too
    there = [] if force else [path for path in paths if os.path.lexists(path)]
    if not there:
        return
    shown = ", ".join(map(click.format_filename, there[:_SHOWN]))
    if len(there) > _SHOWN:
        shown += f" and {len(there) - _SHOWN} more"
    if as_json or not can_ask():
        exist, them = ("exists", "it") if len(there) == 1 else ("exist", "them")
        raise click.UsageError(f"{shown} {exist}; --force replaces {them}")
    click.confirm(f"Replace {shown}?", abort=True, err=True)


def check_plot(path: Path, made: Path | None = None) -> None:
    """See whether a figure can be drawn, and written into `path`: as `dask_hpc.sim.results.plots.check_path`.

    Raises
    ------
    click.ClickException
        When matplotlib is missing.
    WorkloadError
        When the file cannot be written.
    """
    try:
        from dask_hpc.sim.results.plots import check_path
    except ImportError as error:
        raise click.ClickException(f"{path}: {error}") from None
    check_path(path, made)


def check_folder(folder: Path | None) -> None:
    """See whether files can be written into a folder, which is made with them: before hours are spent on it.

    Raises
    ------
    click.ClickException
        When nothing can be written there.
    """
    if folder is None:
        return
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not there.is_dir():
        why = os.strerror(errno.ENOTDIR)
    elif not os.access(there, os.W_OK | os.X_OK):
        why = os.strerror(errno.EACCES)
    else:
        return
    raise click.ClickException(f"{folder}: nothing can be written there: {why}")


def can_ask() -> bool:
    """Is there somebody at a terminal?"""
    # a notebook gives its commands a terminal that nobody can type into
    if "JPY_PARENT_PID" in os.environ:
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
