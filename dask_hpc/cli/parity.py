"""``dask hpc parity``: whether a live cluster does what the simulator says."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from dask_hpc.cli.connection import connected
from dask_hpc.cli.policy_options import make_policy, param_option
from dask_hpc.cli.types import SOURCE, Address, FiniteRange, Seconds
from dask_hpc.cli.workload_options import Setup, option_option, seed_option, share_option, wide_option
from dask_hpc.terminal import echo_json, echo_pairs, echo_table, json_option

if TYPE_CHECKING:
    from distributed import Client

    from dask_hpc.parity.compare import Change
    from dask_hpc.parity.run import Parity

_LOCAL = "local"
#: How long to wait for the workers of another cluster.
_PATIENCE_S = 60.0
#: Longest time between two calls of the policy on a cluster (hpc.tick).
_LONGEST_TICK_S = 3600.0


@click.command()
@click.argument("workload", type=SOURCE)
@click.option("--policy", required=True, metavar="POLICY", help="Name of a policy, or path to a YAML file.")
@param_option
@click.option(
    "--nodes",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Nodes of the machine; without it, what the workload says.",
)
@option_option
@share_option
@seed_option
@wide_option
@click.option(
    "--speed",
    type=FiniteRange(0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="X",
    help="All times of the workload (not those of the policy) are divided by it.",
)
@click.option(
    "--task-length",
    metavar="SECONDS",
    default="100 ms",
    show_default=True,
    type=Seconds(0.01, most_s=_LONGEST_TICK_S),
    help="Longest task that jobs are cut into.",
)
@click.option(
    "--tick",
    metavar="SECONDS",
    type=Seconds(0.01, most_s=_LONGEST_TICK_S),
    help="The policy is asked so often as well, on both sides; without it, once a task length.",
)
@click.option(
    "--lock",
    type=click.Choice(["system", "job"]),
    default="system",
    show_default=True,
    help="Who is not resized while a job is: no other one, or only that one itself.",
)
@click.option(
    "--cluster",
    metavar="WHERE",
    type=Address(),
    default=_LOCAL,
    show_default=True,
    help="local: one in this process; else the address of a scheduler, or its file.",
)
@click.option(
    "--processes",
    is_flag=True,
    help="Local workers are processes, not threads: slower to start, and they do not wait for one another.",
)
@json_option
def parity(
    workload: str, policy: str, params: dict[str, str], nodes: int | None, options: dict[str, str],
    malleable_share: float | None, seed: int, wide: Literal["drop", "clip", "refuse"], speed: float,
    task_length: float, tick: float | None, lock: Literal["job", "system"], cluster: str, processes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Run WORKLOAD live and simulated, and compare.

    Live, each job is declared when it is due and does its work in tasks that sleep. Both runs must resize
    the same jobs from and to the same sizes; in the same order where the arrivals or finishes before are
    five task lengths apart or more; in makespans within 10 %. Exit code 1: they differ.
    """
    if processes and cluster != _LOCAL:
        raise click.UsageError("--processes is about the local cluster; leave it or --cluster out")
    from dask_hpc.parity.run import check
    from dask_hpc.parity.tasks import plan, scaled

    made = make_policy(policy, params)
    setup = Setup(
        source=workload, nodes=nodes, malleable_share=malleable_share, seed=seed, tick_s=tick, decision_s=0.0,
        latency="none", wide=wide, options=options,
    )  # fmt: skip
    loaded, machine = setup.load()
    for note in loaded.notes:
        click.echo(f"Note: {note}", err=True)
    faster = scaled(loaded, speed)
    # before a cluster is started for nothing
    plan(faster, machine.nodes, task_length)
    with _cluster(cluster, machine.nodes, processes) as client:
        found = check(
            client,
            faster,
            made,
            nodes=machine.nodes,
            task_length_s=task_length,
            tick_s=task_length if tick is None else tick,
            lock=lock,
            patience_s=_PATIENCE_S,
            progress=None if as_json else lambda text: click.echo(text, err=True),
        )
    if as_json:
        echo_json({**found.to_json(), "speed": speed, "seed": seed})
    else:
        _show(found)
    if not found.holds:
        raise click.exceptions.Exit(1)


@contextmanager
def _cluster(where: str, nodes: int, processes: bool) -> Iterator[Client]:
    """A client of the cluster that is meant; a local one is started and closed again."""
    if where != _LOCAL:
        path = Path(where)
        is_file = path.is_file()
        with connected(None if is_file else where, path if is_file else None, 10.0) as client:
            yield client
        return
    import dask
    from distributed import Client

    import dask_hpc

    with (
        # many workers in one process would look at its threads a hundred times a second each
        dask.config.set({"distributed.worker.profile.enabled": False}),
        dask_hpc.LocalCluster(
            n_workers=nodes,
            threads_per_worker=1,
            processes=processes,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as local,
        Client(cast(Any, local)) as client,
    ):
        yield client


def _show(found: Parity) -> None:
    comparison = found.comparison
    rows = [_row("only simulated", change, None) for change in comparison.missing]
    rows += [_row("only live", None, change) for change in comparison.extra]
    for swap in comparison.swaps:
        rows.append(_row("other order", swap.simulated[0], swap.live[1]))
        rows.append(_row("", swap.simulated[1], swap.live[0]))
    if rows:
        echo_table(rows, {"what": "DIFFERENCE", "simulated": "SIMULATED", "live": "LIVE"}, "")
        if found.close is not None:
            one, two = found.close
            apart = (two.t_s - one.t_s) / found.task_length_s
            click.echo(
                f"\nBefore the first of these, {one} and {two} ({two.t_s:.2f} s) are {apart:.1f} task "
                "lengths apart: their order is open, and a policy may do other things after the one than the "
                "other."
            )
        click.echo()
    echo_pairs(
        [
            ("workload", f"{found.workload}, {sum(c.action == 'submit' for c in found.simulated)} jobs"),
            ("policy", found.policy["policy"]),
            ("cluster", f"{found.nodes} nodes; tick {found.tick_s:g} s, lock {found.lock}"),
            (
                "tasks",
                f"{found.tasks} of at most {found.task_length_s:g} s; they took {found.overrun:.1%} longer",
            ),
            ("changes", f"{len(found.simulated)} simulated, {len(found.live)} live"),
            ("order counts", f"for {comparison.ordered_pairs} of {comparison.pairs} pairs"),
            ("live is later by", f"{comparison.earliest_s:.2f} to {comparison.latest_s:.2f} s"),
            ("makespan", f"{found.simulated_makespan_s:.2f} s simulated, {found.live_makespan_s:.2f} s live"),
            ("ratio", f"{found.ratio:.3f}"),
            ("verdict", _verdict(found)),
        ]
    )


def _verdict(found: Parity) -> str:
    same = "the same sequence" if found.comparison.same else "the sequences differ"
    close = "within" if found.within_tolerance else "NOT within"
    return f"{'holds' if found.holds else 'DIFFERS'}: {same}, makespans {close} 10 %"


def _row(what: str, simulated: Change | None, live: Change | None) -> dict[str, Any]:
    sides = {"simulated": simulated, "live": live}
    texts = {side: None if c is None else f"{c.t_s:.2f} s {c}" for side, c in sides.items()}
    return {"what": what, **texts}
