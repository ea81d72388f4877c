"""How the commands show results and errors.

Rules of the file: results go to stdout, as aligned plain text or as one JSON value; errors and
warnings go to stderr, one line each. Exit codes: 1 when something went wrong or did not hold, 2 when
the command line itself is wrong.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any, TextIO

import click

from dask_hpc.errors import DaskHPCError

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead of text.")


#: Columns of a terminal up to which a column of a table is as wide as its widest cell.
_WIDEST = 48
#: What click raises where a command is missing, to show the help; before 8.2 it showed that and left.
NO_COMMAND: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class OneLineGroup(click.Group):
    """A group whose errors are one line, without a traceback, for everything a user can do wrong."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; see the class."""
        # names of files need be no text; as stderr does, show what cannot be written escaped
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with warnings_on_stderr():
            try:
                found = super().invoke(ctx)
                # now, and not at the end of the process, where nobody can be told that it failed
                if sys.stdout is not None:  # it was closed before the process began
                    sys.stdout.flush()
                return found
            except NO_COMMAND:
                raise
            except click.UsageError as error:
                raise usage_error(error, ctx) from None
            except DaskHPCError as error:
                raise click.ClickException(one_line(str(error))) from None
            except OSError as error:
                if error.filename is not None:
                    raise click.ClickException(f"{error.filename}: {error.strerror}") from None
                # a full disk behind the output; a pipe that was closed is click's business
                if error.errno != errno.ENOSPC:
                    raise
                with suppress(OSError):
                    # what could not be written would be tried again at the end
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise click.ClickException(f"the output cannot be written: {error.strerror}") from None


def usage_error(error: click.UsageError, ctx: click.Context) -> click.UsageError:
    """`error` on one line, with where options are shown; without a context, so no usage lines before it."""
    command = error.ctx.command_path if error.ctx else ctx.command_path
    return click.UsageError(f"{one_line(error.format_message())} ({command} -h shows the options)")


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Show warnings as single lines on stderr while the block runs."""
    with warnings.catch_warnings():

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            click.echo(f"Warning: {one_line(str(message))}", err=True)

        warnings.showwarning = show
        warnings.simplefilter("always", UserWarning)
        yield


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back while the block starts worker processes; it comes at the end of the block.

    A terminal interrupts them, too, and they would die with tracebacks instead of being closed: they inherit
    the blocked signal.
    """
    # the tracker unblocks the signal in the thread that starts it, which must not be the cluster's
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def progress_bar(
    label: str, stream: TextIO | None = None, *, eta: bool = True
) -> Iterator[Callable[..., None] | None]:
    """A bar on a terminal; gives what fills it: ``show(done, all)``, and maybe a text that stands behind it.

    Parameters
    ----------
    stream
        stderr when None. Where it is no terminal there is no bar, and None is given.
    eta
        Whether to say how long it may still take.
    """
    stream = stream or sys.stderr
    # where stderr is closed (2>&-) there is none
    if stream is None or not stream.isatty():
        yield None
        return
    with ExitStack() as stack:
        made: list[Any] = []

        def show(done: int, all: int, text: str = "") -> None:
            if not made:
                bar = click.progressbar(
                    length=all,
                    label=label,
                    show_pos=True,
                    show_eta=eta,
                    width=24,
                    item_show_func=lambda told: told,
                    file=stream,
                )
                made.append(stack.enter_context(bar))
            bar = made[0]
            # there may be more to do than when it began
            bar.length, bar.finished, bar.current_item = all, False, text
            bar.make_step(done - bar.pos)
            bar.render_progress()

        yield show


def one_line(text: str) -> str:
    """`text` with every run of white space made one space, and nothing in it that a terminal obeys.

    Names come from users, also from others of the cluster: nothing in them may move the cursor.
    """
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def echo_json(value: Any) -> None:
    """Print `value` as JSON."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def echo_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], empty: str) -> None:
    """Print `rows` below headings, numbers to the right.

    Parameters
    ----------
    columns
        Heading by key of the rows, in order.
    empty
        What is printed when there are no rows.
    """
    if not rows:
        click.echo(empty)
        return
    cells = [[cell(row.get(key)) for key in columns] for row in rows]
    headings = list(columns.values())
    numeric = [
        all(isinstance(row.get(key), (int, float, type(None))) for row in rows)
        and any(row.get(key) is not None for row in rows)
        for key in columns
    ]
    # one long name moves what is right of it in its own row alone
    widths = [
        max(_width(head), *(min(_width(line[i]), _WIDEST) for line in cells))
        for i, head in enumerate(headings)
    ]
    for line in [headings, *cells]:
        click.echo("  ".join(map(_padded, line, widths, numeric)).rstrip())


class Lines:
    """A table whose rows are printed as they come: a column that needs more room has it from then on.

    Parameters
    ----------
    columns
        Heading by key of the rows, in order; they are printed above the first row.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._widths: list[int] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """Print one row, numbers to the right."""
        values = [row.get(key) for key in self._columns]
        self._line(list(map(cell, values)), [isinstance(v, (int, float)) for v in values])

    def _line(self, cells: Sequence[str], right: Sequence[bool]) -> None:
        headings = list(self._columns.values())
        first, before = not self._widths, self._widths or map(len, headings)
        self._widths = [max(pair) for pair in zip(before, map(_width, cells), strict=True)]
        if first:
            # texts of numbers stand below the ends of their headings
            self._line(headings, right)
        click.echo("  ".join(map(_padded, cells, self._widths, right)).rstrip())


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: letters of some scripts take two, accents none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _padded(text: str, width: int, right: bool) -> str:
    room = " " * (width - _width(text))
    return room + text if right else text + room


def echo_pairs(pairs: Iterable[tuple[str, Any]], indent: str = "") -> None:
    """Print names and values, values aligned."""
    listed = [(name, cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in listed), default=0)
    for name, value in listed:
        click.echo(f"{indent}{name.ljust(width)}  {value}".rstrip())


def cell(value: Any) -> str:
    """One value as short text on one line."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2f}" if value == 0 or 0.01 <= abs(value) < 1e12 else f"{value:.3g}"
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value)
    return one_line(str(value))
