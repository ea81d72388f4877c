"""Commands under headings: what ``dask hpc -h`` lists, and how a capability adds to it."""

from __future__ import annotations

from typing import Any

import click

from dask_hpc import capabilities
from dask_hpc.terminal import NO_COMMAND, OneLineGroup, usage_error, warnings_on_stderr

#: Where commands stand that were added without a heading.
OTHER = "Other"


class HeadedGroup(OneLineGroup):
    """A flat group whose help lists its commands under headings, in order of registration."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        #: Names of commands by heading.
        self.headings: dict[str, list[str]] = {}

    def register(self, heading: str, *commands: click.Command) -> None:
        """Add commands under a heading.

        Raises
        ------
        ValueError
            When there is a command of that name.
        """
        for command in commands:
            name = command.name or ""
            if self.commands.get(name, command) is not command:
                raise ValueError(f"dask hpc has a command {name!r}; choose another name")
            if name not in self.commands:
                self.add_command(command)
                self.headings.setdefault(heading, []).append(name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what stands before the command; what is wrong with that is one line, too."""
        try:
            return super().parse_args(ctx, args)
        except NO_COMMAND:
            raise
        except click.UsageError as error:
            raise usage_error(error, ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name; capabilities are loaded for one that is not ours."""
        if cmd_name not in self.commands:
            _load()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands."""
        _load()
        return super().list_commands(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings."""
        names = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        headed = {name for under in self.headings.values() for name in under}
        groups = {**self.headings, OTHER: [name for name in names if name not in headed]}
        room = formatter.width - 6 - max(map(len, names), default=0)
        for heading, under in groups.items():
            rows = [(name, self.commands[name].get_short_help_str(room)) for name in under if name in names]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def _load() -> None:
    with warnings_on_stderr():
        capabilities.load()
