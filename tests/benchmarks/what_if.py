"""Whether Simulate is quick on a live cluster, and whether jobs then end in the order that it predicts.

A cluster of four nodes, threads of this process, runs five jobs of sleeping tasks under one policy; jobs
differ in the number and length of their tasks, in size and in kind, some run and some wait. The panel is
asked what another policy would do and gives it to the cluster; then the finishes are awaited. A pair of jobs
is compared when its predicted finishes differ by more than a tenth of the time that the later of the two has
left. What jobs that wait will take is known as it is to a user who tried a few tasks of each before.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass
from typing import Any

from distributed import Client, wait
from harness import Options, Row, main, row
from machine import SEED

import dask_hpc
from dask_hpc_widgets.panel import Panel

ANSWER_BAR_S = 2.0
#: Of the time that the later job of a pair has left: pairs that differ by no more are not compared.
APART = 0.10
NODES, JOBS = 4, 5
#: What runs, and what is chosen.
POLICIES = ("fcfs", "pwma-fpsma", "pwma-egs", "equipartition", "fcfs-malleable", "prma-fpsma")
#: Lengths of tasks, and node-seconds of a job.
TASK_S = (0.04, 0.20)
WORK_S = (1.5, 8.0)
#: Tasks of each kind that were tried before.
TRIED = 3
_PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Sleeps:
    """A job: so many tasks that sleep so long."""

    name: str
    tasks: int
    task_s: float
    request: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Finish:
    """When a job was to end and when it did, seconds after the question."""

    job: str
    predicted_s: float
    actual_s: float
    #: What the prediction comes from, in a word.
    source: str


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question and what came of it."""

    seed: int
    present: str
    chosen: str
    answer_s: float
    running: int
    waiting: int
    finishes: tuple[Finish, ...]

    def pairs(self) -> list[tuple[Finish, Finish]]:
        """Pairs that are far enough apart, the one that is predicted to end first before the other."""
        ordered = sorted(self.finishes, key=lambda one: one.predicted_s)
        return [
            (first, later)
            for first, later in itertools.combinations(ordered, 2)
            if later.predicted_s - first.predicted_s > APART * later.predicted_s
        ]

    def wrong(self) -> list[str]:
        """Pairs that ended in the other order, in words."""
        return [
            f"{first.job} before {later.job}: predicted {first.predicted_s:.2f}, {later.predicted_s:.2f} s; "
            f"came {first.actual_s:.2f}, {later.actual_s:.2f} s"
            for first, later in self.pairs()
            if first.actual_s >= later.actual_s
        ]


def jobs_of(seed: int, slower: float = 1.0) -> tuple[str, str, list[Sleeps]]:
    """The policy that runs, the one that is chosen, and the jobs, whose tasks are so many times as long."""
    chance = random.Random(SEED + seed)
    present, chosen = chance.sample(POLICIES, 2)
    found = []
    for i in range(JOBS):
        task_s = chance.uniform(*TASK_S) * slower
        low, high = sorted(chance.choices(range(1, NODES + 1), k=2))
        kind = chance.choice(("rigid", "malleable", "malleable"))
        request = {"nodes": low} if kind == "rigid" else {"nodes": low, "min_nodes": 1, "max_nodes": high}
        found.append(
            Sleeps(
                # letters alone: the kind of a task is the part of its key before the first digit
                name=f"nap{'abcde'[i]}{''.join(chr(97 + int(digit)) for digit in str(seed))}",
                tasks=max(2, round(chance.uniform(*WORK_S) * slower / task_s)),
                task_s=task_s,
                request=request,
            )
        )
    return present, chosen, found


def ask(client: Client, runtime: Any, seed: int, slower: float = 1.0) -> Asked:
    """Run the jobs of a seed, ask, apply, and wait for all of them."""
    present, chosen, jobs = jobs_of(seed, slower)
    runtime.update(policy=present)
    trials = [client.map(time.sleep, [one.task_s] * TRIED, pure=False, key=one.name) for one in jobs]
    wait(list(itertools.chain(*trials)), timeout=_PATIENCE_S)
    del trials
    handles, futures = [], []
    for one in jobs:
        with runtime.job(one.name, **one.request) as job:
            futures.append(client.map(time.sleep, [one.task_s] * one.tasks, pure=False, key=one.name))
        handles.append(job)
    until_learned(runtime)
    panel = runtime.panel()
    panel.tuning.form.policy.value = chosen
    rows = runtime.jobs()
    began_s = time.perf_counter()
    panel.tuning.simulate.click()
    answer_s = time.perf_counter() - began_s
    found = panel.tuning._found
    assert found is not None, panel.tuning.says.value
    apply(panel)
    result = list(found.runs.values())[-1]
    predicted = {run.id: run.end_s - result.from_s for run in result.runs}
    source = {one.job: one.source for one in found.knowledge}
    finishes = []
    for job in handles:
        ended = job.wait(_PATIENCE_S)
        assert ended["state"] == "completed", ended
        # one that ended between the rows and the question is in no prediction
        if job.id in predicted:
            finishes.append(
                Finish(
                    job=ended["name"],
                    predicted_s=predicted[job.id],
                    actual_s=ended["end_s"] - result.from_s,
                    source=source[job.id],
                )
            )
    panel.close()
    del futures
    states = [one["state"] for one in rows]
    return Asked(
        seed=seed,
        present=present,
        chosen=chosen,
        answer_s=answer_s,
        running=states.count("running"),
        waiting=states.count("pending"),
        finishes=tuple(finishes),
    )


def apply(panel: Panel) -> None:
    """Give the cluster what is chosen, and agree to what jobs lose."""
    panel.tuning.apply.click()
    for _ in range(10):
        if panel.tuning._agree is None:
            break
        panel.tuning.go.click()
    policy = panel.tuning.model.spec()["policy"]
    assert panel.tuning.model.running["policy"] == policy, panel.tuning.says.value


def until_learned(runtime: Any) -> None:
    """Until every job that runs has shown how long its tasks take."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        running = [one for one in runtime.jobs() if one["state"] == "running"]
        if running and all(sum(phase["tasks"] for phase in one["phases"]) >= 3 for one in running):
            return
        time.sleep(0.02)
    raise TimeoutError("no task of a running job has ended")


def cluster() -> Any:
    """Nodes that are threads of this process."""
    return dask_hpc.LocalCluster(
        n_workers=NODES, threads_per_worker=1, processes=False, dashboard_address=":0"
    )


def run(options: Options) -> list[Row]:
    seeds = options.pick(10, 4, 1)
    with cluster() as made, made.get_client() as client:
        runtime = dask_hpc.install(client, policy="fcfs")
        asked = [ask(client, runtime, seed) for seed in range(seeds)]
    rows = [
        row(
            "Simulate with five jobs",
            [one.answer_s for one in asked],
            "s",
            bar=ANSWER_BAR_S,
            note=f"longest {max(one.answer_s for one in asked):.2f} s",
        )
    ]
    for one in asked:
        errors = [abs(end.actual_s - end.predicted_s) / max(end.actual_s, 1e-9) for end in one.finishes]
        ends = ", ".join(
            f"{end.job} {end.predicted_s:.2f} ({end.actual_s:.2f}, {end.source})" for end in one.finishes
        )
        pairs, wrong = one.pairs(), one.wrong()
        rows.append(
            Row(
                name=f"seed {one.seed}, {one.present} to {one.chosen}, {one.running} run, "
                f"{one.waiting} wait: pairs out of order",
                value=len(wrong),
                unit=f"of {len(pairs)}",
                bar=0,
                note=f"predicted (came) {ends}; off by at most {max(errors, default=0):.0%}"
                + "".join(f"; WRONG {text}" for text in wrong),
            )
        )
    return rows


if __name__ == "__main__":
    main(
        "what_if", "How quick Simulate is on a live cluster, and whether jobs end in the predicted order", run
    )
