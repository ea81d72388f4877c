"""The pipeline of one coupled run: its simulation, helper cores and staging nodes, and the steps in flight.

Rules of the file: plain data that `copy.deepcopy` copies; it knows no calendar, and is told the time. Each of
its *lanes* does one step after another. Steps enter by the rule of a live flow (`coupling.turns`): one for
which the queue has no room waits in the simulation's hands, or is left out. A new split begins with the first
step that no analysis has begun: what has begun ends first, and what the simulation keeps on nodes that change
hands is moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dask_hpc.sim.engine.phases import ANALYSING, PHASES, READER, SIMULATION, STEP, Samples, taking
from dask_hpc.sim.engine.steps import Step, measured, reported, told_of
from dask_hpc.sim.model.coupled import Coupled
from dask_hpc.sim.model.machine import AdaptationCost
from dask_hpc_policies.coupling.turns import Turns
from dask_hpc_policies.decision import Place
from dask_hpc_policies.placement.application import Where
from dask_hpc_policies.placement.figures import Value
from dask_hpc_policies.placement.learner import Learner
from dask_hpc_policies.placement.view import (
    AnalysisView,
    FlowView,
    PlatformView,
    Split,
)
from dask_hpc_policies.rules.placing import misfit, split_of
from dask_hpc_policies.wording import counted


class Pipeline:
    """One coupled run.

    Parameters
    ----------
    spec
        What it is.
    seed
        Draws the noise.
    moving
        What a change of the simulation's nodes costs; its memory is moved over the links.
    job
        The job that it is a stage of, which has all nodes of its platform.
    """

    def __init__(self, spec: Coupled, now_s: float, seed: int, moving: AdaptationCost, job: str) -> None:
        self.spec = spec
        #: The job that it is a stage of, how many nodes that has, and whether it is being resized.
        self._job, self._job_nodes, self.resizing = job, spec.application.platform.nodes, False
        self._seed, self._moving, self._from_s = seed, moving, now_s
        self.split = spec.split
        self.turns = Turns(spec.queue, spec.when_full, 1)
        #: Steps that the simulation has begun and handed over, and those that have come to an end, in order.
        self.begun = self.handed = 0
        self.done: list[Step] = []
        #: How many of these were told, and when the last of them was handed over.
        self._told = 0
        self._last_s: float | None = None
        #: The step that each lane is busy with, until when, and what is measured of it then; those that wait
        #: for a lane; turns of the steps in flight.
        self._busy: dict[str, tuple[float, Step, Samples]] = {}
        self._waiting: dict[str, deque[Step]] = {lane: deque() for lane in (*ANALYSING, READER)}
        self._turn_of: dict[int, int] = {}
        #: A step that waits for room, and the end of a change of the split.
        self._held: Step | None = None
        self._changing_until_s: float | None = None
        #: What a policy has said of the next split, and when.
        self.staged: list[Place] = []
        self.staged_s = 0.0
        self.splits: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.peak_in_flight = 0
        simulation = spec.application.simulation
        self._learners = {
            STEP: Learner.said(
                one_core_s=simulation.one_core_s,
                serial_fraction=simulation.serial_fraction,
                memory_bytes=simulation.memory_bytes,
            )
        }
        self._learners |= {
            one.name: Learner.said(
                one_core_s=one.one_core_s,
                serial_fraction=one.serial_fraction,
                memory_bytes=one.memory_bytes,
                input_bytes=one.sent_bytes,
            )
            for one in spec.application.analyses
        }

    # ------------------------------------------------------------------- what is seen

    def view(self) -> FlowView:
        """What a policy sees of it."""
        spec, split = self.spec, self.split
        platform = spec.application.platform
        return FlowView(
            mode=spec.mode,
            steps=self.handed,
            nodes=split.nodes,
            helper_cores=split.helper_cores,
            # others have use for nodes that a simulation which stays where it is cannot take
            staging_nodes=None if platform.simulation_nodes is None else split.staging(platform.nodes),
            simulation=self._learners[STEP].of_simulation(),
            platform=PlatformView(
                nodes=platform.nodes,
                cores=platform.cores,
                memory_bytes=platform.memory_bytes,
                staging_memory_bytes=platform.staging_memory_bytes,
                bandwidth_bytes_s=platform.bandwidth_bytes_s,
                nodes_fixed=platform.simulation_nodes is not None,
                cores_fixed=platform.helper_cores is not None,
                least_helper_cores=platform.least_helper_cores,
                pipelined=platform.pipelined,
            ),
            analyses=tuple(
                [
                    self._learners[one.name].of_analysis(
                        AnalysisView(name=one.name, declared=one.where, where=self._where(one.name))
                    )
                    for one in spec.application.analyses
                ]
            ),
            measured=measured(self.done),
            changing=bool(self.staged) or self._changing_until_s is not None,
            job=None if platform.simulation_nodes is None else self._job,
            job_nodes=self._job_nodes,
        )

    def _where(self, name: str) -> Where:
        if not self.begun:
            return "auto"
        return "in-situ" if name in self.split.in_situ else "in-transit"

    @property
    def over(self) -> bool:
        """Whether all steps have come to an end."""
        return len(self.done) == self.spec.steps

    def next_s(self) -> float | None:
        """When something ends next."""
        ends_s = [end_s for end_s, _, _ in self._busy.values()]
        if self._changing_until_s is not None:
            ends_s.append(self._changing_until_s)
        return min(ends_s, default=None)

    # ---------------------------------------------------------------------- what happens

    def ended(self, now_s: float) -> bool:
        """End what is over now; whether a step was handed over or is done, so that a policy is asked."""
        told = False
        if self._changing_until_s is not None and self._changing_until_s <= now_s:
            self._changing_until_s = None
        for lane in [name for name, (end_s, _, _) in self._busy.items() if end_s <= now_s]:
            _, step, samples = self._busy.pop(lane)
            for name, sample in samples:
                self._learners[name] = self._learners[name].after(sample)
            if lane == SIMULATION:
                self._held = step
                told |= self._hand_over(now_s)
            elif lane == READER:
                told |= self._finish(step, now_s)
            else:
                told |= self._passed(step, now_s)
        return told

    def go(self, now_s: float) -> None:
        """Begin what can be begun now, in another split if one was asked for and nothing is under way."""
        if self.staged and self._drained():
            self._change(now_s)
        if self._changing_until_s is not None:
            return
        for lane in (*ANALYSING, READER):
            queue = self._waiting[lane]
            blocked = lane == "in_situ" and self.spec.mode == "synchronous" and SIMULATION in self._busy
            if queue and lane not in self._busy and not blocked and (queue[0].begun or not self.staged):
                self._begin(lane, queue.popleft(), now_s)
        in_turn = self.spec.mode == "synchronous" and ("in_situ" in self._busy or self._waiting["in_situ"])
        busy = not self.between_steps or self._held is not None or in_turn
        if not busy and not self.staged and self.begun < self.spec.steps:
            if not self.splits:
                self._note(0, now_s, "")
            self._begin(SIMULATION, Step(self.begun, now_s, self.split), now_s)
            self.begun += 1

    @property
    def between_steps(self) -> bool:
        """Whether the simulation computes no step now, nor its job is being resized, which then may be."""
        return SIMULATION not in self._busy and not self.resizing

    def resized(self, nodes: int, now_s: float) -> None:
        """Its job has so many nodes from now on: those that it has got or given up are the simulation's.

        At least one stays the simulation's; what has begun ends with the nodes that it has begun with.
        """
        self.resizing = False
        platform = self.spec.application.platform
        if nodes == self._job_nodes:
            return
        own = max(1, self.split.nodes + nodes - self._job_nodes)
        others, self._job_nodes = nodes - own, nodes
        fixed = None if platform.simulation_nodes is None else own
        platform = replace(platform, nodes=nodes, simulation_nodes=fixed)
        self.spec = replace(self.spec, application=replace(self.spec.application, platform=platform))
        if self.staged:
            self.refused.append(f"its job has {counted(nodes)} now, which the split was not for")
            self.staged = []
        staging = self.split.staging_nodes
        split = replace(
            self.split, nodes=own, staging_nodes=None if staging is None else min(staging, others)
        )
        self._take(split, now_s, f"its job has {counted(nodes)}")

    def _drained(self) -> bool:
        """Whether nothing that has begun is still to run on any node."""
        waiting = [step for lane in ANALYSING for step in self._waiting[lane] if step.begun]
        return not waiting and not self._busy.keys() - {READER}

    def _begin(self, lane: str, step: Step, now_s: float) -> None:
        seconds, samples = taking(self.spec, self._seed, lane, step.number, step.split)
        step.begun |= lane in ANALYSING
        if lane in PHASES:
            step.phases[lane] = seconds
        if lane in ANALYSING:
            where: Where = "in-situ" if lane == "in_situ" else "in-transit"
            step.values += [
                Value(where, now_s, now_s + seconds, one.core_s or 0.0, one.memory_bytes or 0.0)
                for _, one in samples
            ]
        self._busy[lane] = (now_s + seconds, step, samples)

    def _change(self, now_s: float) -> None:
        """Take the split that was asked for; what the simulation keeps moves first."""
        places, self.staged = self.staged, []
        view, before = self.view(), self.split
        split = split_of(view, places)
        if (why := misfit(view, split)) is not None:
            self.refused.append(why.text)
            return
        self._take(split, now_s, places[-1].reason.text)
        if self.begun and split.nodes != before.nodes:
            application = self.spec.application
            seconds = self._moving.seconds(
                before.nodes,
                split.nodes,
                application.simulation.memory_bytes,
                application.platform.bandwidth_bytes_s,
            )
            self._changing_until_s = now_s + seconds if seconds else None

    def _take(self, split: Split, now_s: float, why: str) -> None:
        """Have steps that no analysis has begun, and those that come, in that split."""
        self.split = split
        waiting = [step for lane in ANALYSING for step in self._waiting[lane]]
        unbegun = {step.number: step for step in waiting if not step.begun}
        for lane in ANALYSING:
            self._waiting[lane] = deque([step for step in self._waiting[lane] if step.begun])
        for number in sorted(unbegun):
            self._assign(unbegun[number])
        coming = self.begun if self._held is None else self._held.number
        self._note(min([coming, *unbegun]), now_s, why)

    def _assign(self, step: Step) -> None:
        """The analyses of a step run in the present split."""
        step.split = self.split
        lanes = [lane for lane in ANALYSING if getattr(self.split, lane)]
        step.left = len(lanes)
        for lane in lanes:
            self._waiting[lane].append(step)

    def _note(self, step: int, now_s: float, why: str) -> None:
        split = self.split
        self.splits.append(
            {
                "step": step,
                "t_s": now_s,
                "in_situ": list(split.in_situ),
                "in_transit": list(split.in_transit),
                "nodes": split.nodes,
                "helper_cores": split.helper_cores,
                "staging_nodes": split.staging(self.spec.application.platform.nodes),
                "reason": why,
            }
        )

    def _hand_over(self, now_s: float) -> bool:
        step = self._held
        if step is None or (verdict := self.turns.ask(0, step.number, self._begun_turns())) is None:
            return False
        self._held, step.handed_s = None, now_s
        self.handed += 1
        if verdict.ousted is not None:
            self._oust(verdict.ousted, now_s)
        if verdict.turn is None:
            step.dropped = True
            self._end(step, now_s)
            return True
        self.turns.whole(0, verdict.turn)
        self._turn_of[step.number] = verdict.turn
        self.peak_in_flight = max(self.peak_in_flight, len(self.turns.flight))
        self._assign(step)
        return self._passed(step, now_s, 0) or True

    def _begun_turns(self) -> set[int]:
        """Turns of which an analysis has begun."""
        steps = [step for lane in ANALYSING for step in self._waiting[lane]]
        steps += [step for _, step, _ in self._busy.values()]
        return {self._turn_of[step.number] for step in steps if step.begun and step.number in self._turn_of}

    def _passed(self, step: Step, now_s: float, lanes: int = 1) -> bool:
        """A step has come through so many lanes; whether it is done."""
        step.left -= lanes
        if step.left or step.dropped:
            return False
        if self.spec.reader is not None:
            self.turns.computed(self._turn_of[step.number])
            self._waiting[READER].append(step)
            return False
        return self._finish(step, now_s)

    def _finish(self, step: Step, now_s: float) -> bool:
        if not step.dropped:
            self.turns.done(self._turn_of.pop(step.number))
            self._end(step, now_s)
            if self._held is not None:
                self._hand_over(now_s)
        return True

    def _oust(self, turn: int, now_s: float) -> None:
        """A step makes room for a later one: what was begun of it ends, and nobody hears of it."""
        number = next(number for number, own in self._turn_of.items() if own == turn)
        del self._turn_of[number]
        places = [*self._waiting.values(), [step for _, step, _ in self._busy.values()]]
        found = next(step for queue in places for step in queue if step.number == number)
        found.dropped = True
        self._end(found, now_s)
        for queue in self._waiting.values():
            if found in queue:
                queue.remove(found)

    def _end(self, step: Step, now_s: float) -> None:
        step.end_s = now_s
        self.done.append(step)

    def told(self) -> Iterator[dict[str, Any]]:
        """What the steps that have ended since the last call have taken, as live flows tell it."""
        for step in self.done[self._told :]:
            if not step.dropped and step.handed_s is not None:
                yield told_of(self.spec.flow, step, self._last_s)
                self._last_s = step.handed_s
        self._told = len(self.done)

    # ------------------------------------------------------------------------------ the end

    def report(self) -> dict[str, Any]:
        """What became of it, as plain data."""
        done = sorted(self.done, key=lambda step: step.number)
        return {
            "flow": self.spec.flow,
            "mode": self.spec.mode,
            "run_s": max([step.end_s or 0.0 for step in done], default=self._from_s) - self._from_s,
            "dropped": sum(step.dropped for step in done),
            "peak_in_flight": self.peak_in_flight,
            "splits": self.splits,
            "refused": self.refused,
            "steps": [reported(step) for step in done],
        }
