"""The command line: ``dask hpc ...``.

One module a topic; each command is thin: it reads options, calls the library, shows the result.
"""

from __future__ import annotations

import click

from dask_hpc.cli.cluster import cancel, decisions, jobs, status
from dask_hpc.cli.config import config
from dask_hpc.cli.convert import convert
from dask_hpc.cli.demo import demo
from dask_hpc.cli.doctor import doctor
from dask_hpc.cli.parity import parity
from dask_hpc.cli.policies import policies
from dask_hpc.cli.replay import replay
from dask_hpc.cli.simulate import compare, simulate
from dask_hpc.cli.study import study
from dask_hpc.cli.update import update
from dask_hpc.terminal import OneLineGroup

__all__ = ["hpc"]


@click.group(
    cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88}
)
def hpc() -> None:
    """Turn a Dask cluster into a managed batch system."""


for _command in (
    demo, policies, simulate, compare, study, convert, parity, replay, doctor, config, status, jobs,
    decisions, update, cancel,
):  # fmt: skip
    hpc.add_command(_command)
