"""A producer that is resized at random while it steps, and everything that must hold meanwhile.

A heat simulation runs as an elastic program beside a second job. Its size is changed by requests, by
rounds that take nodes from one of the two jobs for the other, and by nodes that die and come back;
joiners, the producer and its adapt block are silent for too long now and then. After every change the
whole field is compared, bit for bit, with one that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import stress_invariants as invariants
from stress_cluster import Cluster, cluster

import dask_hpc
from dask_hpc.demo.heat import Heat
from dask_hpc.scheduler.rpc import service
from dask_hpc.scheduler.tables.events import WindowMoved
from dask_hpc.trace.records import NodeEvent, Result, encode_line
from dask_hpc_policies.decision import Expand, Reason, ReasonCode, Shrink
from dask_hpc_policies.layout import Layout, even_layout

WORKERS = 6
HEAT = Heat(rows=36, columns=12)
#: A producer that is silent for longer has its window aborted.
TIMEOUT_S = 0.4
#: Nobody waits longer than this for anything.
PATIENCE_S = 30.0
_REASON = Reason(ReasonCode.USER_REQUEST, "at random")
#: What a change is made by, and how often.
_WAYS = {
    "resize": 8,
    "request": 3,
    "shrink for the other": 3,
    "expand from the other": 3,
    "silent joiner": 1,
    "silent producer": 1,
    "silent adapt": 1,
    "node dies": 2,
}


@dataclass
class Report:
    """What happened and what was wrong."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def windows(self) -> int:
        """Windows that were opened and have ended."""
        return self.counts["windows committed"] + self.counts["windows aborted"]


class Resizes:
    """One program and the changes made to it."""

    #: Seconds that a joining node takes, by seed; its init runs in the process of the test.
    join_s: dict[int, float] = {}  # noqa: RUF012

    def __init__(self, made: Cluster, runtime: Any, report: Report) -> None:
        self.made = made
        self.runtime = runtime
        self.report = report
        self.rng = random.Random(report.seed)
        self.engine = service.of(made.scheduler).engine
        self.stop = False
        self.nap_s = 0.0
        self.adapt_s = 0.0
        self.expected = HEAT.undisturbed(0)
        self.compared = 0
        self.open: int | None = None
        self._watch()

    # ---------------------------------------------------------- what must hold

    def fault(self, text: str) -> None:
        """Note a fault once."""
        if text not in self.report.faults:
            self.report.faults.append(text)

    def _watch(self) -> None:
        windows = self.engine.rounds.windows
        handle, end = windows._handle, windows._end

        def told(event: Any) -> None:
            if isinstance(event, WindowMoved) and event.message["window"] not in ("aborted", "over"):
                self._told(event.message)
            handle(event)

        def ended(producer: Any, committed: bool, why: Any) -> None:
            self.open = None
            self.report.counts["windows committed" if committed else "windows aborted"] += 1
            end(producer, committed, why)

        windows._handle, windows._end = told, ended

    def _told(self, message: dict[str, Any]) -> None:
        id, joining, leaving = message["reconfig_id"], message["joining"], message["leaving"]
        if self.open not in (None, id):
            self.fault(f"window {id} opened inside window {self.open}")
        self.open = id
        if joining and leaving and message["staying"]:
            self.fault(f"window {id} grows by {joining} and shrinks by {leaving}")
        if not joining and not leaving:
            self.fault(f"window {id} names nobody")
        if message["window"] != "pending":
            return
        for node in joining:
            ts = self.made.scheduler.tasks.get((f"join-{self.program._name}", id, node))
            where = {ws.name for ws in ts.who_has or ()} if ts is not None else set()
            if node not in where:
                self.fault(
                    f"the producer was told of window {id} before init had run on {node} ({ts}, {where})"
                )

    def check(self, when: str) -> None:
        """Everything that must be true at any moment."""
        self.made.scheduler.validate_state()
        for text in invariants.now(self.engine):
            self.fault(f"{when}: {text}")

    # ------------------------------------------------------------- the program

    async def after(self, program: Any) -> None:
        """Between steps: be silent if told so, and compare the field after every window."""
        self.expected = HEAT.step(self.expected, None, None)
        nap_s, self.nap_s = self.nap_s, 0.0
        await asyncio.sleep(nap_s or 0.002)
        if len(program.producer.windows) > self.compared:
            self.compared = len(program.producer.windows)
            await self.compare(program)

    async def compare(self, program: Any) -> None:
        """The field is that of an undisturbed run, bit for bit."""
        self.report.counts["fields compared"] += 1
        if not self.expected.identical(await program._field()):
            self.fault(
                f"the field differs after step {program.step}, windows {program.producer.windows[-2:]}"
            )

    async def adapt(self, change: Any, layout: Layout) -> Layout:
        """The even layout, after a while if told so."""
        adapt_s, self.adapt_s = self.adapt_s, 0.0
        await asyncio.sleep(adapt_s)
        return even_layout(layout.size, change.nodes)

    async def run(self, changes: int) -> None:
        """Run the program and make `changes` changes to it."""
        async with (
            self.runtime.job("heat", nodes=2, min_nodes=1, max_nodes=WORKERS) as job,
            self.runtime.job("other", nodes=2, min_nodes=1, max_nodes=WORKERS - 1) as other,
        ):
            self.job, self.other = job, other
            self.program = job.program(HEAT.rows, "y")
            self.program.init(_Start(self.report.seed)).elastic(
                HEAT.step,
                lambda program: not self.stop,
                halo=1,
                adapt=self.adapt,
                after=self.after,
                keep=self.rng.choice((1, 4, 20, None)),
            )
            running = asyncio.ensure_future(self.program.run())
            try:
                await self._until(lambda: self.program.step > 2 or running.done(), "the program steps")
                for number in range(changes):
                    way = self.rng.choices(list(_WAYS), list(_WAYS.values()))[0]
                    said = await asyncio.wait_for(self._change(way), PATIENCE_S)
                    self.report.log.append(f"{number} {way}: {said}")
                    self.report.counts["changes"] += 1
                    self.check(f"after {number} {way}")
                    await asyncio.sleep(self.rng.random() * 0.03)
                    if running.done():
                        break
            finally:
                self.stop = True
                await asyncio.wait_for(running, PATIENCE_S)
            await self.compare(self.program)
            self.report.counts["steps"] += self.program.step

    # ------------------------------------------------------------- the changes

    async def _change(self, way: str) -> str:
        heat, other = self._nodes(self.job), self._nodes(self.other)
        if way == "node dies":
            return await self._lose()
        if way == "silent joiner":
            Resizes.join_s[self.report.seed] = TIMEOUT_S * 2
        elif way == "silent producer":
            self.nap_s = TIMEOUT_S * 2
        elif way == "silent adapt":
            self.adapt_s = TIMEOUT_S * 2
        if way == "shrink for the other" and heat > 1:
            return await self._round(self.job, heat - 1, self.other, other + 1)
        if way == "expand from the other" and other > 1:
            return await self._round(self.other, other - 1, self.job, heat + 1)
        try:
            if way == "request":
                size = self.rng.choice([n for n in range(1, WORKERS + 1) if n != heat] or [heat])
                outcome = await self.job.request(size - heat)
            else:
                most = heat + self.engine.state.idle_nodes()
                outcome = await self.job.resize(self.rng.choice([n for n in range(1, most + 1) if n != heat]))
        except (ValueError, IndexError) as error:  # its size has changed meanwhile, or there is no other
            return repr(error)
        finally:
            Resizes.join_s.pop(self.report.seed, None)
            self.adapt_s = 0.0
        return self._outcome(outcome)

    async def _round(self, loser: Any, less: int, winner: Any, more: int) -> str:
        """One decision that takes a node from one job for the other."""
        actions = [
            Shrink(job=loser.id, nodes=less, reason=_REASON),
            Expand(job=winner.id, nodes=more, reason=_REASON),
        ]
        records = self.engine.state.records
        held, before = set(self.engine.state.jobs.find(winner.id).nodes), len(records)
        accepted, refused = self.engine.controller.act(actions, "request")
        outcomes = [await self.engine.rounds.outcomes.wait(id) for _, id in accepted] + refused
        if len(accepted) == 2:
            self.report.counts["rounds that shrink and grow"] += 1
            self._order(list(records)[before:], loser.id, winner.id, held)
        return ", ".join(
            self._outcome(
                {"result": o.result, "action": o.action.TAG, "job": o.action.job, "reason": o.reason.text}
            )
            for o in outcomes
        )

    def _order(self, records: list[Any], loser: str, winner: str, held: set[str]) -> None:
        """No node goes to the winner before the loser's reduction has ended."""
        for record in records:
            if isinstance(record, Result) and record.outcome.action.TAG == "shrink":
                if record.outcome.action.job == loser:
                    return
            elif isinstance(record, NodeEvent) and record.job == winner:
                for node in set(record.nodes) - held:
                    self.fault(f"{winner} got {node} before the reduction of {loser} had ended")
        self.fault(f"the reduction of {loser} has no outcome")

    def _outcome(self, outcome: dict[str, Any]) -> str:
        self.report.counts[f"resizes {outcome['result']}"] += 1
        if not outcome["reason"]:
            self.fault(f"an outcome without a reason: {outcome}")
        return f"{outcome.get('action')} {outcome.get('job')} {outcome['result']} ({outcome['reason']})"

    async def _lose(self) -> str:
        """A node dies, and comes back after a while."""
        if len(self.made.workers) < 4:
            return "too few left"
        name = self.rng.choice(sorted(self.made.workers))
        self.report.counts["nodes lost"] += 1
        member, seen = name in self.program.producer.nodes, len(self.program.producer.windows)
        self.made.lose(name, abrupt=self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.random() * 0.1)
        if self.rng.random() < 0.8:
            for missing in self.made.missing:
                await self.made.start(missing)
        if member:
            # a state has one copy: a second node may die when that has been made anew. A node that was back
            # before anyone looked is the same one to everybody, and no window is opened for it.
            step = self.program.step
            windows = self.program.producer.windows
            await self._until(lambda: len(windows) > seen or name in self.made.workers, "it has noticed")
            await self._until(lambda: self.program.step > step + 2 or self.stop, "it goes on")
        return f"{name}; there are {len(self.made.workers)}"

    def _nodes(self, job: Any) -> int:
        record = self.engine.state.jobs.find(job.id)
        return int(self.engine.state.nodes_up(record))

    async def _until(self, condition: Any, what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}: not within {PATIENCE_S:g} s")
            await asyncio.sleep(0.005)


@dataclass(frozen=True)
class _Start:
    """Init, by the seed of the run: workers live in this process."""

    seed: int

    def __call__(self, part: Any, status: str) -> Any:
        if status == "JOINING":
            time.sleep(Resizes.join_s.get(self.seed, 0.0))
        return HEAT.start(part)


async def _run(seed: int, changes: int) -> Report:
    report = Report(seed)
    began_s = time.monotonic()
    async with cluster(WORKERS, 1, stealing=seed % 2 == 0, saturation=1.1) as made:
        runtime = await dask_hpc.install(
            made.client,
            policy="fcfs",
            tick_s=0.05,
            sweep_s=0.02,
            window_timeout_s=TIMEOUT_S,
            shrink_deadline_s=5.0,
            trace_keep=1_000_000,
        )
        run = Resizes(made, runtime, report)
        try:
            await run.run(changes)
        except Exception as error:
            run.fault(f"the run failed: {error!r}")
        records = (run.engine.tracing.header(), *run.engine.state.records)
        report.faults += invariants.trace([encode_line(record) for record in records])
        report.faults += invariants.feed(run.engine.controller.decisions)
        report.faults += made.faults
    report.duration_s = time.monotonic() - began_s
    return report


def run(seed: int, changes: int = 10) -> Report:
    """One program with `changes` random changes, on an event loop of its own."""
    return asyncio.run(_run(seed, changes))


def run_until(resizes: int, seed: int) -> list[Report]:
    """Programs from `seed` on until so many windows have been opened, or one has a fault."""
    reports: list[Report] = []
    while sum(report.windows for report in reports) < resizes:
        reports.append(run(seed + len(reports)))
        if reports[-1].faults or not reports[-1].windows and len(reports) > resizes:
            break
    return reports
