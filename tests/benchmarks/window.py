"""How long an elastic program stands still when it is resized, and what its driver costs a step.

A heat equation on a grid of fixed size steps while a second thread asks for one node more or less at a
time. "Begin to commit" is the window itself: from the step boundary at which it opens until the state
lies on the new nodes. "Request to outcome" holds besides what happens beside the steps: joiners are
made ready, the next step boundary is waited for, the nodes that have left are drained.

Beside the windows stand the times that Chadha (2019, evaluation of reconfiguration) gives for single
steps of the same sequence on another machine and for another code: an orientation, no bar.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from distributed import Client, Future, wait
from harness import Options, Row, local_cluster, main, row

import dask_hpc
from dask_hpc.demo.heat import Heat
from dask_hpc.program.blocks import advance, create, cut
from dask_hpc_policies.layout import even_layout

#: The grid: 4 MiB of float64, the same at every number of nodes.
HEAT = Heat(rows=1024, columns=512)
MIB = HEAT.rows * HEAT.columns * 8 / 2**20
#: Least and largest time of one step of the sequence in the source, seconds.
SOURCE_S = {"expand": (0.11, 1.29), "shrink": (0.05, 2.25)}
TIMEOUT_S = 120.0


def run(options: Options) -> list[Row]:
    workers = options.pick(16, 16, 3)
    sizes = options.pick((1, 4, 16), (1, 4, 16), (1, 3))
    # side by side, so that both see the same machine
    with local_cluster(workers) as plain, _managed(workers) as ours:
        runtime = dask_hpc.install(ours, policy="fcfs")
        return [
            *_window_rows(runtime, workers, options.pick(5, 3, 1)),
            *_step_rows(runtime, plain, sizes, options.pick(3, 2, 1), options.pick(30, 20, 5)),
        ]


@contextmanager
def _managed(workers: int) -> Iterator[Client]:
    with (
        dask_hpc.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        cluster.get_client() as client,
    ):
        client.wait_for_workers(workers, timeout=TIMEOUT_S)
        yield client


# ---------------------------------------------------------------------- windows


def _window_rows(runtime: dask_hpc.Runtime, workers: int, repetitions: int) -> list[Row]:
    path = [*range(2, workers + 1), *range(workers - 1, 0, -1)]
    # the first time up and down warms up: workers import what the blocks need
    windows, asked_s = _resized(runtime, workers, path * (repetitions + 1))
    latencies: dict[tuple[int, int], list[float]] = defaultdict(list)
    outcomes: dict[tuple[int, int], list[float]] = defaultdict(list)
    moved: dict[tuple[int, int], int] = {}
    for window, total_s in list(zip(windows, asked_s, strict=True))[len(path) :]:
        step = window["before"], window["after"]
        latencies[step].append(window["latency_s"] * 1e3)
        outcomes[step].append(total_s * 1e3)
        moved[step] = window["indices_moved"]
    rows = []
    for text, samples in (("begin to commit", latencies), ("request to outcome", outcomes)):
        for kind, source_s in SOURCE_S.items():
            steps = [step for step in samples if (step[0] < step[1]) == (kind == "expand")]
            medians = [statistics.median(samples[step]) for step in steps]
            source = "source {:.0f} to {:.0f} ms, ".format(*(1e3 * s for s in source_s))
            rows.append(
                replace(
                    row(f"{kind}, all steps: {text}", medians, "ms"),
                    low=min(medians),
                    high=max(medians),
                    note=f"{source if samples is latencies else ''}least and largest median of a step",
                )
            )
            for step in steps:
                move = f"{MIB:g} MiB field, {moved[step] / HEAT.rows:.0%} moved, "
                rows.append(
                    replace(
                        row(f"{kind} {step[0]} to {step[1]} nodes: {text}", samples[step], "ms"),
                        low=min(samples[step]),
                        high=max(samples[step]),
                        note=f"{move if samples is latencies else ''}least and largest",
                    )
                )
    return rows


def _resized(
    runtime: dask_hpc.Runtime, workers: int, path: list[int]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Windows of a program that is resized along `path`, and seconds from each request to its outcome."""
    took_s: list[float] = []
    errors: list[BaseException] = []
    over = threading.Event()

    def ask(job: dask_hpc.Job) -> None:
        try:
            for nodes in path:
                began_s = time.perf_counter()
                outcome = job.resize(nodes)
                took_s.append(time.perf_counter() - began_s)
                assert outcome["result"] == "done", outcome
        except BaseException as error:
            errors.append(error)
        finally:
            over.set()

    with runtime.job("heat", nodes=1, min_nodes=1, max_nodes=workers) as job:
        asking = threading.Thread(target=ask, args=(job,))
        program = job.program(HEAT.rows, "y").init(HEAT.start)
        program.elastic(HEAT.step, 1, halo=1, after=lambda program: asking.start())
        program.elastic(HEAT.step, lambda program: not over.is_set(), halo=1)
        program.run(timeout=TIMEOUT_S)
        asking.join()
    job.wait(timeout=TIMEOUT_S)
    if errors:
        raise errors[0]
    windows = program.producer.windows
    assert [window["after"] for window in windows] == path, windows
    return windows, took_s


# ------------------------------------------------------------------------ steps


def _step_rows(
    runtime: dask_hpc.Runtime,
    plain: Client,
    sizes: tuple[int, ...],
    repetitions: int,
    steps: int,
) -> list[Row]:
    HEAT.undisturbed(5)
    began_s = time.perf_counter()
    HEAT.undisturbed(steps)
    alone_ms = (time.perf_counter() - began_s) * 1e3 / steps
    note = f"{MIB:g} MiB field; the arithmetic in one piece takes {alone_ms:.2f} ms"
    rows = []
    for nodes in sizes:
        managed, stock = [], []
        for repetition in range(repetitions + 1):
            with plain.as_current():
                stock_ms = _plain_ms(plain, nodes, steps)
            pair = _program_ms(runtime, nodes, steps), stock_ms
            if repetition:
                managed.append(pair[0])
                stock.append(pair[1])
        name = f"step on {nodes} node{'s' if nodes > 1 else ''}"
        rows.append(row(name, managed, "ms", stock=statistics.median(stock), note=note))
    return rows


def _program_ms(runtime: dask_hpc.Runtime, nodes: int, steps: int) -> float:
    """Milliseconds a step of the program."""
    with runtime.job("heat", nodes=nodes) as job:
        program = job.program(HEAT.rows, "y").init(HEAT.start).elastic(HEAT.step, steps, halo=1)
        program.run(timeout=TIMEOUT_S)
    job.wait(timeout=TIMEOUT_S)
    return float(program.timings[-1]["duration_s"]) * 1e3 / steps


def _plain_ms(client: Client, nodes: int, steps: int) -> float:
    """Milliseconds a step of the same tasks on the same number of workers, submitted without dask_hpc."""
    addresses = sorted(client.sync(client.scheduler.identity, n_workers=-1)["workers"])[:nodes]
    parts = even_layout(HEAT.rows, addresses).parts
    name = f"plain-{time.monotonic_ns()}"

    def submit(node: str, key: str, function: Any, *args: Any) -> Future:
        return client.submit(function, *args, key=f"{name}-{key}", workers=[node], pure=False)

    blocks = [submit(p.node, f"init-{i}", create, HEAT.start, "y", p, "NEW") for i, p in enumerate(parts)]
    wait(blocks, timeout=TIMEOUT_S)
    began_s = time.perf_counter()
    for step in range(steps):
        # as the program does: one step is computed while the next one is being submitted
        first = [submit(p.node, f"f{step}-{i}", cut, b, "y", 0, 1) for i, (p, b) in _but(0, parts, blocks)]
        last = [
            submit(p.node, f"l{step}-{i}", cut, b, "y", p.size - 1, p.size)
            for i, (p, b) in _but(nodes - 1, parts, blocks)
        ]
        before, after = [None, *last], [*first, None]
        following = [
            submit(p.node, f"s{step}-{i}", advance, HEAT.step, "y", p, 1, blocks[i], before[i], after[i])
            for i, p in enumerate(parts)
        ]
        wait(blocks, timeout=TIMEOUT_S)
        blocks = following
    wait(blocks, timeout=TIMEOUT_S)
    return (time.perf_counter() - began_s) * 1e3 / steps


def _but(without: int, parts: Any, blocks: list[Future]) -> list[tuple[int, tuple[Any, Future]]]:
    """Numbers, parts and blocks of all but one."""
    pairs = enumerate(zip(parts, blocks, strict=True))
    return [(i, pair) for i, pair in pairs if i != without]


if __name__ == "__main__":
    main("window", "Resize latency of an elastic program, and the time of its steps", run)
