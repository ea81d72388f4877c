"""Random workloads, machines, settings and policies, from a seed: for `same_outputs` and tests.

Rules of the file: the same seed gives the same world in every version. What is drawn is everything that the
simulator's engine tells apart: rigid, moldable, malleable and evolving jobs, with and without an application
model, scheduling points, requests, shared input and output, checkpoints, failures listed and random, resizes
that take time, late answers, ticks, both locks, both ways to group events.
"""

from __future__ import annotations

import random
from typing import Any

import yaml

from dask_hpc.sim import Options
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Action, Decision, Expand, Reason, ReasonCode, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot, JobView

BECAUSE = Reason(ReasonCode.USER_REQUEST, "drawn from the seed")

#: Policies by the name of a case.
POLICIES: dict[str, dict[str, Any]] = {
    **{
        name: {"policy": name}
        for name in (
            "fcfs", "easy", "conservative", "prma-fpsma", "prma-egs", "pwma-fpsma", "pwma-egs",
            "equipartition", "performance-aware", "fcfs-malleable", "mebf", "io-aware", "sfsj",
        )
    },
    "easy-single": {"policy": "easy", "params": {"events": "single"}},
    "conservative-single": {"policy": "conservative", "params": {"events": "single"}},
    "easy-shortest": {"policy": "easy", "params": {"order": "shortest", "pick": "best-fit"}},
    "fixed": {"policy": "fixed", "params": {"target_nodes": 5}},
    "dask-default": {"policy": "dask-default"},
    "pwma-next": {"policy": "pwma-fpsma", "params": {"step": "next", "min_remaining_s": 20.0}},
    "prma-endless": {"policy": "prma-egs", "params": {"max_expansions": None}},
    "io-fits": {"policy": "io-aware", "params": {"adaptive": True, "unfitting": "skip"}},
    "mebf-eager": {"policy": "mebf", "params": {"gamma": 1.5, "sharing_factor": 0.6}},
    "sfsj-next": {"policy": "sfsj", "params": {"timing": "next-checkpoint", "malleable_victims": False}},
    "sfsj-first": {"policy": "sfsj", "params": {"timing": "proactive-checkpoint"}},
    "sfsj-never": {"policy": "sfsj", "params": {"timing": "never"}},
}  # fmt: skip
#: Cases whose decisions are those of the library, and those of `Unsteady`.
DETERMINED = tuple(POLICIES)
#: Others, of which none is drawn unless it is named: seeds go on meaning the same policies.
POLICIES |= {
    "fair": {"policy": "fair"},
    "fair-eager": {"policy": "fair", "params": {"cooldown_s": 0.0, "patience_s": 5.0, "resize_cost_s": 0.0}},
}
FAIR = ("fair", "fair-eager")
UNSTEADY = ("restless", "wild")


def options_of(seed: int) -> Options:
    """Settings of the run."""
    draw = random.Random(f"options {seed}")
    return Options(
        seed=seed,
        tick_s=draw.choice([None, None, None, 7.0]),
        decision_s=draw.choice([0.0, 0.0, 0.0, 2.5]),
        lock=draw.choice(["job", "job", "system"]),
        node_ids=draw.random() < 0.5,
        snapshots=draw.random() < 0.3,
        file_system_series=draw.random() < 0.5,
    )


def policy_of(seed: int, choice: tuple[str, ...]) -> Any:
    """One of `choice`."""
    draw = random.Random(f"policy {seed}")
    name = draw.choice(choice)
    return Unsteady(seed, name == "wild") if name in UNSTEADY else registry.create(POLICIES[name])


class Unsteady:
    """Starts what fits and resizes at random; a wild one asks for impossible things and steals as well."""

    def __init__(self, seed: int, wild: bool) -> None:
        self.seed = seed
        self.wild = wild
        self.name = "unsteady"
        draw = random.Random(f"unsteady {seed}")
        self.params: dict[str, Any] = {"events": draw.choice(["grouped", "single"])}

    def initial_state(self) -> tuple[int, float]:
        """Calls so far, and the time of the last one."""
        return 0, -1.0

    def decide(self, view: ClusterSnapshot, state: tuple[int, float]) -> tuple[Decision, tuple[int, float]]:
        """Something that depends on the seed, the number of the call, and the picture alone."""
        calls, last_s = state
        draw = random.Random(f"{self.seed} {calls}")
        actions: list[Action] = []
        idle = view.idle_nodes
        # an end to it: each resize is followed by an event, and that by another resize
        for job in view.jobs if view.now_s > last_s and calls < 60 else ():
            if self.wild and draw.random() < 0.25:
                actions.append(self._wild(draw, job, view))
            elif job.state == "running" and job.kind == "malleable" and draw.random() < 0.5:
                target = draw.randint(job.min_nodes, max(job.min_nodes, min(job.max_nodes, job.nodes + idle)))
                if target != job.nodes:
                    idle -= max(0, target - job.nodes)
                    kind = Expand if target > job.nodes else Shrink
                    actions.append(kind(job=job.id, nodes=target, reason=BECAUSE))
        named = {getattr(action, "job", "") for action in actions}
        for job in view.pending:
            need = job.start_nodes or job.min_nodes
            if need <= idle and job.id not in named:
                idle -= need
                actions.append(Start(job=job.id, nodes=need, reason=BECAUSE))
        return Decision(actions=tuple(actions)), (calls + 1, view.now_s)

    def _wild(self, draw: random.Random, job: JobView, view: ClusterSnapshot) -> Action:
        id = draw.choice([job.id, job.id, job.id, job.id, "nobody"])
        size = draw.choice([job.start_nodes or job.min_nodes, job.nodes, draw.randint(1, job.max_nodes + 2)])
        kind = draw.choice([Start, Expand, Shrink, Steal])
        if kind is not Steal:
            return kind(job=id, nodes=max(1, size), reason=BECAUSE)
        return Steal(
            job=id,
            thief=draw.choice(view.jobs).id,
            stolen_nodes=max(1, job.nodes),
            timing=draw.choice(["now", "next-checkpoint", "proactive-checkpoint"]),
            reason=BECAUSE,
        )


# ----------------------------------------------------------------- workloads


def world(seed: int) -> str:
    """A workload with its machine, as YAML."""
    draw = random.Random(f"world {seed}")
    nodes = draw.choice([6, 8, 16, 24])
    machine: dict[str, Any] = {"nodes": nodes, "adaptation": draw.choice(["none", "none", "published"])}
    if draw.random() < 0.15:
        machine["adaptation"] = {"expand_base_s": 1, "shrink_base_s": 2, "shrink_slope_s": 0.5}
    if draw.random() < 0.6:
        machine["file_system_bytes_s"] = 10e9
    if draw.random() < 0.5:
        machine["link_bytes_s"] = 1e9
    if draw.random() < 0.35:
        machine["failures"] = [
            {"at": round(draw.uniform(1, 80), 1), "node": draw.randrange(nodes), "down": draw.randint(1, 60)}
            for _ in range(draw.randint(1, 5))
        ]
    elif draw.random() < 0.2:
        machine |= {"node_mtbf": nodes * 60, "downtime": 20}
    jobs = [_job(draw, nodes, i) for i in range(draw.randint(3, 16))]
    return yaml.safe_dump({"name": f"world-{seed}", "machine": machine, "jobs": jobs}, sort_keys=False)


def failing_world(seed: int) -> str:
    """The same, where processes, hosts and domains fail, jobs commit and data is moved beside computing."""
    draw = random.Random(f"failing {seed}")
    whole = yaml.safe_load(world(seed))
    machine = whole["machine"]
    machine["domains"] = {"size": draw.choice([2, 3, 4])}
    for what in ("process_mtbf", "node_mtbf", "domain_mtbf"):
        if draw.random() < 0.6:
            machine[what] = machine["nodes"] * draw.choice([50, 200])
    machine["downtime"] = draw.choice([1, 20])
    if random.Random(f"hosts {seed}").random() < 0.5:
        machine["hosts"] = {"size": 2}
    if draw.random() < 0.5:
        machine["network_bytes_s"] = 0.5e9
    for job in whole["jobs"]:
        if draw.random() < 0.7:
            job.pop("checkpoint_interval", None)
            job["checkpoints"] = _checkpoints(draw, "stages" in job)
        _beside(draw, job.get("stages", []))
    return yaml.safe_dump(whole, sort_keys=False)


def _checkpoints(draw: random.Random, staged: bool) -> dict[str, Any]:
    levels = []
    for _ in range(draw.randint(1, 3)):
        level: dict[str, Any] = {"survives": draw.choice(["process", "host", "domain", "several"])}
        level |= {
            "each": draw.randint(1, 3),
            "blocking": draw.choice([0, 0.5]),
            "restart": draw.choice([0, 1]),
        }
        if draw.random() < 0.6:
            level |= {"node_bytes": draw.choice([1e9, 5e9]), "path": draw.choice(["file-system", "link"])}
        levels.append(level)
    return {"every": draw.choice([4, 7.5, "points"] if staged else [4, 7.5]), "levels": levels}


def _beside(draw: random.Random, stages: list[dict[str, Any]]) -> None:
    for stage in stages:
        if ("read" in stage or "write" in stage) and draw.random() < 0.5:
            stage["beside"] = draw.choice(["file-system", "link"])
        _beside(draw, stage.get("stages", []))


def _job(draw: random.Random, nodes: int, number: int) -> dict[str, Any]:
    kind = draw.choice(["rigid", "moldable", "malleable", "malleable", "malleable", "evolving"])
    # sizes that every drawn constraint allows
    low, start, high = draw.choice([(1, 1, 4), (1, 4, 16), (4, 4, 16), (1, 2, 3), (2, 4, nodes), (1, 3, 5)])
    low, start, high = min(low, nodes), min(start, nodes), min(high, nodes)
    job: dict[str, Any] = {
        "name": f"{kind[:3]}{number}",
        "submit": draw.choice([0, 0, draw.randint(0, 60), round(draw.uniform(0, 60), 2)]),
    }
    if kind == "rigid":
        job["nodes"] = start
    else:
        job |= {"min_nodes": low, "max_nodes": high}
        if kind == "moldable":
            job["rigid"] = True
        elif draw.random() < 0.6:
            job["nodes"] = start
        if kind == "evolving":
            job["evolving"] = True
    if {low, start, high} <= {1, 4, 16} and draw.random() < 0.5:
        job["constraint"] = draw.choice(["pof2", "square"])
    if draw.random() < 0.3:
        job["priority"] = draw.randint(0, 2)
    runtime_s = draw.choice([0, 10, 20, round(draw.uniform(1, 80), 3)])
    if draw.random() < 0.7:
        job["walltime"] = max(1, runtime_s + draw.choice([0, 0, 5, -3]))
    if draw.random() < 0.2:
        job["recorded"] = max(1, runtime_s + draw.choice([0, 4]))
    if draw.random() < 0.3:
        job["io_intensity"] = round(draw.random(), 2)
    if draw.random() < 0.3:
        job["data_bytes"] = 4e9
    job["speedup"] = draw.choice(["linear", "linear", {"amdahl": 0.1}, {"power-law": 0.6}])
    if draw.random() < 0.5 and kind != "evolving":
        job |= {"runtime": runtime_s, "reference_nodes": start}
        if draw.random() < 0.4:
            job["checkpoint_interval"] = draw.choice([2, 5.5])
        return job
    job["stages"] = [*_stages(draw, kind, high, 2), {"compute": draw.choice([4, 12.5])}]
    if draw.random() < 0.6:
        job["resize"] = "points"
        if draw.random() < 0.4:
            job["on_reconfiguration"] = [{"delay": 1}, {"write": 1e9}]
            job["on_expansion"] = [{"read": "5e8 * nodes"}]
    return job


def _stages(draw: random.Random, kind: str, high: int, deep: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(draw.randint(1, 4)):
        choice = draw.randrange(8)
        if choice <= 1:
            found.append({"compute": draw.choice([17, 40.0, "3 * nodes"])})
        elif choice == 2:
            found.append({"delay": draw.choice([0, 3])})
        elif choice == 3:
            found += [{"write": 7.5e9, "purpose": "checkpoint"}, {"point": None}]
        elif choice == 4:
            found.append({"read": draw.choice(["1e9 * nodes", 0]), "participants": 1})
        elif choice == 5 and kind == "evolving":
            found += [{"request": draw.randint(1, high)}, {"point": None}]
        elif choice == 6 and deep:
            found.append({"repeat": draw.randint(0, 3), "stages": _stages(draw, kind, high, deep - 1)})
        else:
            found.append({"point": None})
    return found
