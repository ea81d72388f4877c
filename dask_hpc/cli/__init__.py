"""The command line: ``dask hpc ...``.

One module a topic; each command is thin: it reads options, calls the library, shows the result. A capability
adds its own with `register`.
"""

from __future__ import annotations

import click

from dask_hpc.cli import caps as _caps  # noqa: F401
from dask_hpc.cli import corridor as _corridor  # noqa: F401
from dask_hpc.cli import tariff as _tariff  # noqa: F401
from dask_hpc.cli.chaos import chaos
from dask_hpc.cli.checkpoint import checkpoint
from dask_hpc.cli.cluster import cancel, decisions, io, jobs, status, why
from dask_hpc.cli.config import config
from dask_hpc.cli.convert import convert
from dask_hpc.cli.demo import demo
from dask_hpc.cli.doctor import doctor
from dask_hpc.cli.flows import flows
from dask_hpc.cli.groups import HeadedGroup
from dask_hpc.cli.interval import interval
from dask_hpc.cli.parity import parity
from dask_hpc.cli.place import place
from dask_hpc.cli.policies import policies
from dask_hpc.cli.power import power
from dask_hpc.cli.replay import replay
from dask_hpc.cli.simulate import compare, simulate
from dask_hpc.cli.study import study
from dask_hpc.cli.update import update

__all__ = ["hpc", "register"]


@click.group(
    cls=HeadedGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88}
)
def hpc() -> None:
    """Turn a Dask cluster into a managed batch system."""


def register(heading: str, *commands: click.Command) -> None:
    """Add commands to ``dask hpc`` under a heading of its help, an old or a new one.

    Raises
    ------
    ValueError
        When there is a command of that name.
    """
    hpc.register(heading, *commands)


for _heading, _commands in (
    ("Run", (demo, status, jobs, update, cancel)),
    ("Understand", (policies, decisions, why, io, flows, replay)),
    ("Simulate", (simulate, compare, study, convert, parity)),
    ("Models", (interval, place, power)),
    ("Saved data", (checkpoint, chaos)),
    ("Set up", (config, doctor)),
):
    register(_heading, *_commands)
