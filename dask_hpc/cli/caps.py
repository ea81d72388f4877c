"""``dask hpc power restore``: old values of a host back after those that capped it were killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from dask_hpc.cli.power import power
from dask_hpc.terminal import echo_json, json_option, one_line

#: A process that caps this host has so long to write old values back by itself, in seconds.
_PATIENCE_S = 10.0


@power.command()
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    show_default=True,
    metavar="DIR",
    help="A folder that stands for / of this machine.",
)
@json_option
def restore(root: Path, as_json: bool) -> None:
    """End caps of this machine and write back what its limits were before.

    For whoever was killed before it could: whose worker alone was killed, or whose scheduler, needs
    nothing. A process that caps this machine for you now is told to end. Only limits that the device
    itself has are written, by the settings of this node.
    """
    from dask_hpc.worker.node import node_settings
    from dask_hpc.worker.power.caps.asked import leave_of
    from dask_hpc.worker.power.caps.record import folder_of, taken_back
    from dask_hpc.worker.power.figures import SensorError

    settings = node_settings()
    folder = folder_of(settings.power_cap_folder)
    try:
        ended, restored = _restored(lambda: taken_back(folder, leave_of(settings), root))
    except SensorError as error:
        text = one_line("; ".join(part for part in (error.reason, error.remedy) if part))
        raise click.ClickException(text) from None
    if as_json:
        echo_json({"ended_pid": ended, "restored": restored})
        return
    if ended is not None:
        click.echo(f"process {ended} capped this machine and has ended")
    for id, value in restored.items():
        click.echo(f"{id} is {'released' if value is None else value} again")
    if ended is None and not restored:
        click.echo("nothing of this machine is capped")


def _restored(take_back: Callable[[], dict[str, int | None]]) -> tuple[int | None, dict[str, int | None]]:
    """The process that was told to end, if there was one, and what was written back by this one."""
    from dask_hpc.worker.power.caps.record import Busy

    ended: int | None = None
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ended, take_back()
        except Busy as busy:
            if time.monotonic() > until_s:
                raise
            if ended is None and busy.pid is not None:
                # it holds the lock, so the id is still its own
                with suppress(ProcessLookupError):
                    os.kill(busy.pid, signal.SIGTERM)
                ended = busy.pid
            time.sleep(0.05)
