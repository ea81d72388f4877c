"""The power corridor's study: watts outside it over time, by policy, 20 orders of the jobs.

``builtin:corridor``, after John (2024, section 9.2.4), which counts departures of one order: 6 with
backfilling, 2 when running jobs alone are resized, 0 when jobs are held too. The 0 is not reached without
knowing the schedule: when only pi jobs are left, which on all nodes draw 2,380 W, the last corridor, from
2,500 W on, cannot be kept, and nothing in the order of arrival keeps heat jobs back for it. With the schedule
known it is.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

import harness
from harness import Row, main

from dask_hpc.sim import Options, simulate
from dask_hpc.sim.workloads.sources import load
from dask_hpc_policies.registry import BUILTIN

#: What is compared, by name: the policy, its parameters.
RUNS: dict[str, tuple[str, dict[str, str]]] = {
    "easy": ("easy", {}),
    "hold=no": ("power-aware", {"hold": "no"}),
    "power-aware": ("power-aware", {}),
    "lookahead": ("power-aware", {"lookahead": "yes"}),
}
#: Watt-seconds outside as a share of hold=no's and of easy's; makespan over easy's; avoidable seconds a run.
BARS = {"hold=no": 10.0, "easy": 5.0}
LONGER, AVOIDABLE_S = 1.35, 10.0


def run(options: harness.Options) -> list[Row]:
    """All rows."""
    seeds = range(options.pick(20, 8, 2))
    found = {
        name: [_run({"policy": policy, "params": params}, seed) for seed in seeds]
        for name, (policy, params) in RUNS.items()
    }
    rows = [
        Row(
            name=f"{name}: outside a run",
            value=_mean(runs, "violation_ws") / 1000,
            unit="kW s",
            note=f"{_mean(runs, 'outside_s'):.0f} s; {_left(runs)} departures in {len(runs)} runs; "
            f"makespan {fmean(one['makespan_s'] for one in runs) / 60:.1f} min",
        )
        for name, runs in found.items()
    ]
    held, ahead, easy = found["power-aware"], found["lookahead"], found["easy"]
    for name, bar in BARS.items():
        share = 100 * _mean(held, "violation_ws") / _mean(found[name], "violation_ws")
        rows.append(Row(name=f"power-aware: outside, of {name}'s", value=share, unit="%", bar=bar))
    fewer = min(_left(found["hold=no"]), _left(easy)) - 1
    rows.append(Row(name="power-aware: departures", value=_left(held), unit="departures", bar=fewer))
    rows.append(Row(name="lookahead: departures", value=_left(ahead), unit="departures", bar=0.0))
    longer = fmean(a["makespan_s"] for a in ahead) / fmean(e["makespan_s"] for e in easy)
    rows.append(Row(name="lookahead: makespan over easy's, ratio", value=longer, unit="", bar=LONGER))
    worst = max(one["corridor_avoidable_s"] for runs in (held, ahead) for one in runs)
    rows.append(Row(name="power-aware: avoidable, worst run", value=worst, unit="s", bar=AVOIDABLE_S))
    return [*rows, *_enforced(seeds)]


def _enforced(seeds: range) -> list[Row]:
    """The corridor over every other policy of the library."""
    rows = []
    for name in BUILTIN:
        if name == "power-aware":
            continue
        runs = [_run(name, seed, "enforce") for seed in seeds]
        note = f"{_mean(runs, 'violation_ws') / 1000:.1f} kW s outside a run"
        worst = max(one["corridor_avoidable_s"] for one in runs)
        title = f"{name}, enforced: avoidable, worst run"
        rows.append(Row(name=title, value=worst, unit="s", bar=AVOIDABLE_S, note=note))
    return rows


def _run(policy: Any, seed: int, mode: str | None = None) -> dict[str, Any]:
    extra = {} if mode is None else {"corridor": {"mode": mode}}
    return simulate(load("builtin:corridor", seed=seed), policy, options=Options(extra=extra)).metrics(False)


def _mean(runs: list[dict[str, Any]], name: str) -> float:
    return fmean(one[f"corridor_{name}"] for one in runs)


def _left(runs: list[dict[str, Any]]) -> float:
    return float(sum(one["corridor_departures"] for one in runs))


if __name__ == "__main__":
    main("corridor", "Power corridor: the study of the source, simulated", run)
