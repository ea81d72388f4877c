"""One run: data is protected, something fails, and what was promised is held against what is there."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future

from dask_hpc.chaos import work
from dask_hpc.chaos.kin import family
from dask_hpc.chaos.plan import Plan
from dask_hpc.client.known import workers_of

#: What is not there by then, counted from the last that came, is lost.
_PATIENCE_S = 90.0
#: Number of the first result of those that hang on what is lost first; no other has it.
_KIN = 1000
#: How long a worker stands still, and a host: the scheduler of `clusters.own` gives it up before.
_STILL_S, _CUT_OFF_S = 2.0, 12.0
#: How long a manager hangs, and after how long it is not waited for, and asked again, in such a run.
_HANGS_S, _SILENCE_S, _AGAIN_S = 8.0, 2.0, 2.0
#: What is told of a result that does not come.
_STEPS = 12
#: A worker that is to end while it writes does so at one of its first calls to the file system.
_CALLS = 2


@dataclass
class Outcome:
    """What came of one run."""

    plan: Plan
    #: Protected results with other values than they had, that are gone, and that were computed again.
    wrong: int = 0
    lost: int = 0
    recomputed: int = 0
    #: Results that were read back, and workers that were killed.
    restored: int = 0
    killed: int = 0
    #: What was wrong, in words.
    faults: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.wrong or self.lost or self.recomputed or self.faults)

    def row(self) -> dict[str, Any]:
        """It as plain data."""
        return {
            "seed": self.plan.seed,
            "faults": f"{'+'.join(self.plan.faults)} in {self.plan.moment}"
            + (f", {self.plan.kin} first" if self.plan.kin else ""),
            "wrong": self.wrong,
            "lost": self.lost,
            "recomputed": self.recomputed,
            "restored": self.restored,
            "killed": self.killed,
            "why": "; ".join(self.faults),
        }


def run(client: Client, rt: Any, plan: Plan, folder: Path) -> Outcome:
    """Carry out a plan on a cluster whose workers come back; `folder` is seen by all of it and is empty."""
    if "hang" not in plan.faults:
        return _run(client, rt, plan, folder)
    impatient = {"checkpoint_silence_s": _SILENCE_S, "checkpoint_ask_again_s": _AGAIN_S}
    now = rt.status()["settings"]
    rt.update(**impatient)
    try:
        return _run(client, rt, plan, folder)
    finally:
        rt.update(**{name: now[name] for name in impatient})


def _run(client: Client, rt: Any, plan: Plan, folder: Path) -> Outcome:
    outcome, chance = Outcome(plan), plan.chance()
    notes, store = str(folder / "notes"), str(folder / "store")
    Path(notes).touch()
    before = _restored(rt)
    pairs = [(number, work.values(number, plan.elements)) for number in range(plan.scattered)]
    expected: dict[Any, Any] = {}
    inputs = client.scatter([array for _, array in pairs], hash=False)
    rt.checkpoint(inputs, "inputs", store=store, levels=plan.levels)
    results = [
        client.submit(work.computed, number, plan.elements, notes, pure=False)
        for number in range(plan.computed)
    ]
    made = [
        client.submit(work.derived, number, inputs[number % len(inputs)], notes, pure=False)
        for number in range(plan.derived)
    ]
    expected |= {future.key: array for future, (_, array) in zip(inputs, pairs, strict=True)}
    expected |= {future.key: work.values(n, plan.elements) for n, future in enumerate(results)}
    expected |= {future.key: pairs[n % len(pairs)][1] + n for n, future in enumerate(made)}
    everything = [*inputs, *results, *made]
    if plan.moment == "compute":
        time.sleep(plan.after_s)
        outcome.killed += _strike(client, plan, chance)
    if plan.kin:
        kin = family(client, plan.kin, _KIN, plan.elements, notes, chance)
        source = work.values(_KIN, plan.elements)
        everything += kin.children
        expected |= {future.key: source + _KIN + n for n, future in enumerate(kin.children)}
    rt.checkpoint(everything[len(inputs) :], "results", store=store, levels=plan.levels)
    ran = _runs(notes)
    if {"store", "agent"} & set(plan.faults) or plan.moment == "commit":
        doomed = _arm(client, plan, chance)
        again = rt.checkpoint(everything, "results", store=store, levels=plan.levels, wait=False)
        if plan.moment == "commit":
            time.sleep(plan.after_s)
            outcome.killed += _strike(client, plan, chance)
            if plan.kin:
                outcome.killed += _kill(client, kin.first(client))
        again.wait(_PATIENCE_S)
        outcome.killed += _kill(client, doomed)
        if "store" in plan.faults:
            _damage(Path(again.path), chance)
    if plan.kin:
        outcome.killed += _kill(client, kin.first(client))
    outcome.killed += _strike(client, plan, chance)
    if plan.kin:
        outcome.killed += _kill(client, kin.then(client))
    if plan.moment == "restore":
        time.sleep(plan.after_s)
        outcome.killed += _strike(client, plan, chance)
    _check(client, everything, expected, outcome)
    twice = _runs(notes) - ran
    outcome.recomputed = twice.total()
    if twice:
        outcome.faults.append(f"computed again: {', '.join(sorted(twice))}")
    outcome.restored = _restored(rt) - before
    return outcome


def _check(client: Client, futures: Iterable[Future], expected: Any, outcome: Outcome) -> None:
    # it begins anew with every result that comes: a slow machine has lost nothing
    patience_s = _PATIENCE_S
    for future in futures:
        try:
            found = future.result(timeout=patience_s)
        except Exception as error:  # whatever it is, the result is not there
            patience_s = 1.0
            outcome.lost += 1
            outcome.faults.append(f"{future.key} is lost: {type(error).__name__}: {error}")
            if isinstance(error, TimeoutError):
                outcome.faults.append(_story(client, future.key))
            continue
        if not np.array_equal(found, expected[future.key]):
            outcome.wrong += 1
            outcome.faults.append(f"{future.key} has other values")


def _story(client: Client, key: Any) -> str:
    """What scheduler and workers have done with a result that does not come, the last of it."""
    try:
        told = sorted(client.story(key, on_error="ignore"), key=lambda row: row[-1])
    except Exception as error:  # nothing else may be lost by that
        return f"nobody says what was done with it: {type(error).__name__}: {error}"
    # where, the key, two words of what has happened, more, the stimulus, when
    steps = [f"{row[0]}: {' '.join(str(word) for word in row[2:-2][:2])}" for row in told]
    return f"what was done with it: {', '.join(steps[-_STEPS:]) or 'nothing'}"


def _strike(client: Client, plan: Plan, chance: Any) -> int:
    """Have happen what is to happen to workers; gives how many were killed."""
    hosts: dict[str, str] = client.run(work.host, on_error="ignore")
    doomed: set[str] = set()
    for fault in plan.faults if hosts else ():
        if fault == "delay":
            _tell(client, work.stand_still, [chance.choice(sorted(hosts))], _STILL_S, True, False)
        elif fault == "partition":
            host = chance.choice(sorted(set(hosts.values())))
            _tell(client, work.stand_still, _some(hosts, host), _CUT_OFF_S, True, True)
        elif fault == "host":
            host = chance.choice(sorted(set(hosts.values())))
            # one that has just come back does not know where its manager is
            _tell(client, work.end_manager, _some(hosts, host), True)
            doomed |= set(_some(hosts, host))
        elif fault == "manager":
            victim = chance.choice(sorted(hosts))
            _tell(client, work.end_manager, [victim], False)
            doomed.add(victim)
        elif fault == "hang":
            victim = chance.choice(sorted(hosts))
            _tell(client, work.stand_still, [victim], _HANGS_S, False, True)
            doomed.add(victim)
        elif fault in ("worker", "store"):
            doomed.add(chance.choice(sorted(hosts)))
    return _kill(client, doomed)


def _kill(client: Client, doomed: set[str]) -> int:
    """End workers that are not gone yet; gives how many have gone, once the scheduler misses them.

    One that was to end while it writes, and had too little to write, ends here: left alone it would do so in
    the middle of the next run, with data that nobody has protected yet.

    Raises
    ------
    RuntimeError
        When one lives on.
    """
    there = workers_of(client).keys()
    _tell(client, work.die, sorted(doomed & there))
    deadline_s = time.monotonic() + _PATIENCE_S
    while doomed & workers_of(client).keys():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"workers that were to be killed live on: {', '.join(sorted(doomed))}")
        time.sleep(0.005)
    return len(doomed)


def _arm(client: Client, plan: Plan, chance: Any) -> set[str]:
    """Have a worker end in the middle of its part of the next version, if one is to; gives its address."""
    if "agent" not in plan.faults:
        return set()
    victim = chance.choice(sorted(client.run(work.host, on_error="ignore")))
    client.run(work.die_while_writing, chance.randrange(_CALLS), workers=[victim])
    return {victim}


def _some(hosts: Mapping[str, str], host: str) -> list[str]:
    """Workers of a host."""
    return sorted(address for address in hosts if hosts[address] == host)


def _tell(client: Client, function: Any, workers: list[str], *args: Any) -> None:
    # nobody answers: they are gone, or stand still
    if workers:
        client.run(function, *args, workers=workers, wait=False, on_error="ignore")


def _damage(version: Path, chance: Any) -> None:
    """Flip a bit of every file of values of a version."""
    for path in sorted(version.rglob("*")):
        size = path.stat().st_size
        if path.is_file() and path.suffix != ".json" and size:
            path.chmod(0o600)
            with path.open("r+b") as file:
                at = chance.randrange(size)
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ (1 << chance.randrange(8))]))


def _runs(notes: str) -> Counter[str]:
    return Counter(Path(notes).read_text(encoding="utf-8").split())


def _restored(rt: Any) -> int:
    return int(rt.status().get("checkpoints", {}).get("restored_results", 0))
