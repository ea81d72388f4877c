"""Whether what people agree to, and what they are advised to change, is what then happens.

A cluster of eight nodes, threads of this process, runs one or two malleable jobs of sleeping tasks; one to
three others wait. A run of the first kind asks, as *Apply* in the panel does, which sizes another policy
brings about, gives the cluster that policy, and compares once nobody is resized any more: each job that was
named must have the size that was named, and no other may have lost a node. A run of the second kind does the
same with a job that a person takes nodes of, as *Resize job* asks; the policy that decides may give that job
some back. A run of the third kind asks why a job waits, does one of the things that would start it earlier
(declares it anew, resizes the job that is named, changes the policy), and compares its start.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from distributed import Client
from harness import Options, Row, main
from machine import SEED
from what_if import until_learned

import dask_hpc
from dask_hpc_widgets.live.effect import effect

NODES = 8
#: What runs; what is given to the cluster in its place.
PRESENT = ("fcfs", "easy", "prma-fpsma", "fcfs-malleable")
CHOSEN = ("pwma-fpsma", "pwma-egs", "equipartition", "performance-aware", "fair", "sfsj")
#: Lengths of tasks; node-seconds of a job where nobody is to end, and where others wait for its end.
TASK_S, LONG_S, SHORT_S = (0.04, 0.12), (80.0, 120.0), (8.0, 24.0)
#: A start is as it was said when it is off by no more than this part of the time, and so many seconds: some
#: tasks, that nodes are emptied of, and the grain of what is called *at once*.
OFF, OFF_S = 0.25, 0.75
KINDS = ("declare", "resize", "policy")
_PATIENCE_S, _POLL_S, _REST_POLLS = 60.0, 0.05, 12


@dataclass(frozen=True, kw_only=True)
class Said:
    """One run: what was said, what came of it, and whether that is the same."""

    seed: int
    what: str
    said: str
    came: str
    held: bool

    def __str__(self) -> str:
        wrong = "" if self.held else "WRONG "
        return f"{wrong}seed {self.seed}, {self.what}: said {self.said}, came {self.came}"


class Jobs:
    """The jobs of a seed on a cluster."""

    def __init__(self, runtime: Any, client: Client, seed: int, work_s: tuple[float, float]) -> None:
        self._runtime, self._client, self._futures = runtime, client, list[Any]()
        chance = random.Random(seed)
        self.handles = []
        left = NODES
        for i in range(chance.randint(1, 2)):
            nodes = left if i or chance.random() < 0.5 else chance.randint(3, 5)
            left -= nodes
            request = {"nodes": nodes, "min_nodes": chance.randint(1, 2), "max_nodes": NODES}
            self.submit(f"run{'ab'[i]}", request, chance, work_s)
            if not left:
                break
        self.running = list(self.handles)
        for i in range(chance.randint(1, 3)):
            low = chance.randint(1, 4)
            request = {"nodes": low}
            if chance.random() < 0.4:
                request |= {"min_nodes": max(1, low - 1), "max_nodes": NODES}
            # more than is left, or it would not wait
            request["nodes"] = max(request["nodes"], left + 1)
            self.submit(f"wait{'abc'[i]}", request, chance, (2.0, 6.0) if work_s == SHORT_S else work_s)
        until_learned(runtime)

    def submit(self, name: str, request: dict[str, Any], chance: random.Random, work_s: Any) -> Any:
        """One job, whose tasks all sleep as long."""
        task_s = chance.uniform(*TASK_S)
        tasks = max(16, round(chance.uniform(*work_s) / task_s))
        with self._runtime.job(name, **request) as job:
            self._futures.append(self._client.map(time.sleep, [task_s] * tasks, pure=False, key=name))
        self.handles.append(job)
        return job

    def rows(self) -> dict[str, dict[str, Any]]:
        """What the cluster says of these jobs."""
        ids = {job.id for job in self.handles}
        return {one["id"]: one for one in self._runtime.jobs() if one["id"] in ids}

    def at_rest(self) -> dict[str, dict[str, Any]]:
        """The same once nobody is resized any more."""
        quiet, last = 0, None

        def rests() -> bool:
            nonlocal quiet, last
            sizes = {id: (one["nodes"], one["target_nodes"], one["state"]) for id, one in self.rows().items()}
            settled = all(target in (None, nodes) for nodes, target, _ in sizes.values())
            quiet = quiet + 1 if settled and sizes == last else 0
            last = sizes
            return quiet >= _REST_POLLS

        until(rests)
        return self.rows()

    def cancel(self) -> None:
        """End all of them, and wait until they have."""
        for job in self.handles:
            job.cancel()
        self._futures.clear()
        until(lambda: all(one["end_s"] is not None for one in self.rows().values()))


def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the cluster did not come to what it was asked for")
        time.sleep(_POLL_S)


def consent(client: Client, runtime: Any, seed: int) -> Said | None:
    """Ask what another policy does at once, have it, compare; None: nobody would lose a node."""
    chance = random.Random(seed)
    runtime.update(policy="fcfs")
    chosen = chance.choice(CHOSEN)
    jobs = Jobs(runtime, client, seed, LONG_S)
    before = jobs.rows()
    found = effect({"policy": chosen}, runtime.snapshot(), runtime.jobs())
    if not found.takes:
        jobs.cancel()
        return None
    runtime.update(policy=chosen)
    after = jobs.at_rest()
    jobs.cancel()
    named = {loss.job: loss.nodes for loss in found.takes}
    came = {id: one["nodes"] for id, one in after.items()}
    lost = {id for id, one in before.items() if came[id] < one["nodes"]}
    return Said(
        seed=seed,
        what=f"{chosen}: {'; '.join(loss.text for loss in found.takes)}",
        said=", ".join(f"{before[id]['name']} {nodes}" for id, nodes in named.items()),
        came=", ".join(f"{before[id]['name']} {came[id]}" for id in sorted({*named, *lost})),
        held=all(came[id] == nodes for id, nodes in named.items()) and lost <= set(named),
    )


def resized(client: Client, runtime: Any, seed: int) -> Said | None:
    """Ask what it does to take nodes of a job, do it, compare; None: no job has any to spare."""
    chance = random.Random(seed)
    present = runtime.update(policy=chance.choice(PRESENT))["policy"]
    jobs = Jobs(runtime, client, seed, LONG_S)
    before = jobs.rows()
    spare = [one for one in before.values() if one["nodes"] > one["min_nodes"] and one["kind"] == "malleable"]
    if not spare:
        jobs.cancel()
        return None
    job = chance.choice(spare)
    nodes = chance.randint(job["min_nodes"], job["nodes"] - 1)
    found = effect(present, runtime.snapshot(), runtime.jobs(), resize=(job["id"], nodes))
    answer = runtime.find(job["id"]).resize(nodes)
    assert answer["result"] == "done", answer
    after = jobs.at_rest()
    jobs.cancel()
    named = {loss.job: loss.nodes for loss in found.takes}
    came = {id: one["nodes"] for id, one in after.items()}
    lost = {id for id, one in before.items() if came[id] < one["nodes"]}
    kept = all(came[id] in (size, before[id]["nodes"]) for id, size in named.items())
    return Said(
        seed=seed,
        what=f"{present['policy']}: {'; '.join(loss.text for loss in found.takes)}",
        said=", ".join(f"{before[id]['name']} {size}" for id, size in named.items()),
        came=", ".join(f"{before[id]['name']} {came[id]}" for id in sorted({*named, *lost})),
        held=job["id"] in named and kept and lost <= set(named),
    )


def proposal(client: Client, runtime: Any, seed: int) -> Said | None:
    """Ask why the first job waits, do one of the things that are said to help, compare its start."""
    chance = random.Random(seed)
    present = chance.choice(PRESENT)
    runtime.update(policy=present)
    jobs = Jobs(runtime, client, seed, SHORT_S)
    waiting = jobs.handles[chance.randrange(len(jobs.running), len(jobs.handles))]
    found = waiting.why_waiting()
    kind = KINDS[seed % len(KINDS)]
    remedy = next((one for one in found.remedies if kind in one.change), None) if found else None
    if remedy is None:
        jobs.cancel()
        return None
    began_s = time.monotonic()
    change = remedy.change[kind]
    if kind == "declare":
        # not before what is said is known: the tasks of the first are as long
        waiting.cancel()
        waiting = jobs.submit(found.name, dict(change), chance, (2.0, 6.0))
    elif kind == "resize":
        answer = runtime.find(change["job"]).resize(change["nodes"])
        assert answer["result"] == "done", answer
    else:
        runtime.update(**change)
    until(lambda: waiting.status()["start_s"] is not None)
    came_s = time.monotonic() - began_s
    jobs.cancel()
    return Said(
        seed=seed,
        what=f"{present}: {found.name} {remedy.text}",
        said=f"{remedy.start_in_s:.2f} s",
        came=f"{came_s:.2f} s",
        held=abs(came_s - remedy.start_in_s) <= OFF * remedy.start_in_s + OFF_S,
    )


def some(runs: int, seed: int, one: Callable[[int], Said | None]) -> list[Said]:
    """So many runs in which something was said, of seeds from `seed` on."""
    found: list[Said] = []
    while len(found) < runs:
        said = one(seed)
        seed += 1
        if said is not None:
            found.append(said)
    return found


def run(options: Options) -> list[Row]:
    runs, seed = options.given.runs or options.pick(10, 6, 1), options.given.seed
    with (
        dask_hpc.LocalCluster(
            n_workers=NODES, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        cluster.get_client() as client,
    ):
        runtime = dask_hpc.install(client, policy="fcfs", tick="50 ms")
        told = {
            "consent: sizes that came otherwise than was agreed to": some(
                runs, seed, lambda one: consent(client, runtime, one)
            ),
            "consent: a resize after which sizes were others than was agreed to": some(
                runs, seed, lambda one: resized(client, runtime, one)
            ),
            "why waiting: proposals that did otherwise than was said": some(
                runs, seed, lambda one: proposal(client, runtime, one)
            ),
        }
    rows = []
    for name, all in told.items():
        wrong = [one for one in all if not one.held]
        rows.append(
            Row(
                name=name,
                value=len(wrong),
                unit=f"of {len(all)}",
                bar=0,
                note="; ".join(map(str, all)),
            )
        )
    return rows


def arguments(parser: argparse.ArgumentParser) -> None:
    """Those of this benchmark alone."""
    parser.add_argument("--runs", type=int, help="runs of each kind in place of 10")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first jobs")


if __name__ == "__main__":
    main("consent", "Whether what was agreed to and what was advised is what happens", run, arguments)
