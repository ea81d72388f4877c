"""What options of the command line are: durations, numbers, NAME=VALUE, paths.

Rules of the file: text in, values out; a wrong one is a usage error that names it and says what is allowed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


class GivenPath(click.Path):
    """A `click.Path` that refuses an empty one, as of a variable that is not set: it would be this folder.

    A shell leaves ``~`` as it is in ``--option=~/path``: it is the home here, too.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path, or a usage error."""
        if not value:
            self.fail("'' is no path.", param, ctx)
        path = os.path.expanduser(value)
        if path.startswith("~"):
            self.fail(f"{value!r}: there is no such user here; ./{value} is a file of that name.", param, ctx)
        return self._looked_at(path, param, ctx)

    def _looked_at(self, path: str, param: Any, ctx: Any) -> Any:
        return super().convert(path, param, ctx)


class UnseenPath(GivenPath):
    """One that is not looked at: its mount may hang, and who takes it finds out."""

    def _looked_at(self, path: str, param: Any, ctx: Any) -> Any:
        return path


class SourcePath(GivenPath):
    """One that is there; what has a colon in it, builtin:NAME or an address, is what takes it to judge."""

    def _looked_at(self, path: str, param: Any, ctx: Any) -> Any:
        if ":" in path:
            return path
        try:
            return super()._looked_at(path, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message.rstrip('.')}; what we bring is builtin:NAME.", param, ctx)


#: A file that is there; one that is to be written; a folder that is to be filled; a store.
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NEW_FILE = GivenPath(dir_okay=False, path_type=Path)
FOLDER = GivenPath(file_okay=False, path_type=Path)
PATH = UnseenPath()
#: A workload or a study.
SOURCE = SourcePath(exists=True, dir_okay=False)


@contextmanager
def told_of_options() -> Iterator[None]:
    """Have what is wrong with an option, or with ``builtin:NAME``, a usage error; with a file it is none."""
    from dask_hpc.errors import OptionError

    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error)) from None


class Address(click.ParamType):
    """The address of a scheduler; an empty one would be that of the configuration, or of none."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The address, or a usage error."""
        if not value.strip():
            self.fail(f"{value!r} is no address, such as tcp://login1:8786.", param, ctx)
        return value


class FiniteRange(click.FloatRange):
    """A `click.FloatRange` that also refuses what compares with nothing (nan) and what never ends (inf)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number, or a usage error that names it."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Seconds(click.ParamType):
    """A duration such as ``30 s`` or ``5 min``, in seconds.

    Parameters
    ----------
    least_s, most_s
        Shorter and longer ones are refused.
    words
        Given as they are: what is allowed in place of a duration.
    """

    name = "duration"

    def __init__(self, least_s: float = 0.0, words: Sequence[str] = (), most_s: float = math.inf) -> None:
        self.least_s, self.most_s = least_s, most_s
        self.words = tuple(words)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Seconds, or one of the words, or a usage error that names the value."""
        from dask_hpc_policies.params import ParameterError, parse_duration

        if value in self.words:
            return value
        try:
            seconds = parse_duration(value)
        except ParameterError as error:
            self.fail(str(error), param, ctx)
        if seconds < self.least_s:
            least = f"{1000 * self.least_s:g} ms" if self.least_s < 1 else f"{self.least_s:g} s"
            self.fail(f"{value!r} is too short; allowed: a duration from {least}", param, ctx)
        if seconds > self.most_s:
            self.fail(f"{value!r} is too long; allowed: a duration up to {self.most_s:g} s", param, ctx)
        return seconds


class Assignment(click.ParamType):
    """NAME=VALUE, as a pair; a hyphen in the name is an underscore.

    Parameters
    ----------
    example
        Told when it is none.
    parse
        Makes the value of its text, which may not be empty then.
    """

    name = "assignment"

    def __init__(self, example: str, parse: Callable[[str], Any] | None = None) -> None:
        self.example = example
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The pair, or a usage error that names the value."""
        name, equals, text = value.partition("=")
        if not (name and equals and (text or self.parse is None)):
            self.fail(f"{value!r} is not NAME=VALUE, such as {self.example}", param, ctx)
        return name.replace("-", "_"), text if self.parse is None else self.parse(text)


def assignments(
    *names: str, example: str, help: str, parse: Callable[[str], Any] | None = None
) -> Callable[..., Any]:
    """An option that may be given several times, each time with NAME=VALUE; the command gets a dict."""
    return click.option(
        *names,
        metavar="NAME=VALUE",
        multiple=True,
        type=Assignment(example, parse),
        callback=_by_name,
        help=help,
    )


def _by_name(
    context: click.Context, option: click.Parameter, pairs: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    found = dict(pairs)
    if twice := [name for name in found if sum(name == other for other, _ in pairs) > 1]:
        raise click.BadParameter(f"{twice[0]} is given twice; give one of them", context, option)
    return found


def showing(show: Callable[[], None], help: str) -> Callable[..., Any]:
    """The flag ``--list``: has something shown instead of the command run."""

    def shown(context: click.Context, _option: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            show()
            context.exit()

    return click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=shown, help=help)
