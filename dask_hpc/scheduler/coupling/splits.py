"""Where analyses of flows run: what a policy sees of it, and its places, carried out.

What a policy says of one flow is taken together: the places of one decision come one after another, in one
turn of the loop; at the end of it all are done or none is. Steps that are whole by then stay where they are,
those that come are aimed (`Splits.aim`) right before their data is there: no task moves that has begun, and
no client is asked. Blocks in memory go where they are needed, each once to a node.

The simulation stays on the nodes whose workers have its blocks. Of a program outside all threads of these are
helper cores, of one on the cluster (`inside`) those that it has no block for, and as many more as a policy
takes of it; it gets them back when a plan has fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.coupling.helpers import Helpers
from dask_hpc.scheduler.coupling.planning import Planning
from dask_hpc.scheduler.coupling.staging import Staging
from dask_hpc.scheduler.coupling.workers import Workers
from dask_hpc.scheduler.internals import writes
from dask_hpc.scheduler.tables.events import ActionEnded
from dask_hpc.scheduler.tables.parts import Enactor, Method
from dask_hpc.trace.records import STEP, Other
from dask_hpc_policies.codec import encode
from dask_hpc_policies.coupling.contract import is_due, value_key
from dask_hpc_policies.decision import Outcome, Place, Reason, ReasonCode
from dask_hpc_policies.placement.application import Where
from dask_hpc_policies.placement.learner import Learner
from dask_hpc_policies.placement.replan import application_of, best_split, phases
from dask_hpc_policies.placement.size import best_size
from dask_hpc_policies.placement.view import (
    SECTION,
    AnalysisView,
    FlowView,
    PlatformView,
    Split,
)
from dask_hpc_policies.rules.placing import misfit, refusal, split_of
from dask_hpc_policies.wording import counted

#: Because of steps a policy is asked no more often than so, in seconds: it sees the whole cluster.
_ASK_S = 0.2


class Splits:
    """The splits of the flows of one scheduler."""

    def __init__(self, engine: Engine, workers: Workers, found: Callable[[str], Flow]) -> None:
        self._engine, self._workers, self._found = engine, workers, found
        #: What analyses in situ take beside a program on the cluster.
        self.helpers = Helpers(engine, workers)
        self._staging = Staging(engine, workers)
        #: Flows that have begun, by name.
        self._flows: dict[str, Flow] = {}
        #: What a decision has said, by flow, until all of it is known.
        self._staged: dict[str, list[Place]] = {}
        self._planning = Planning(engine)
        #: Helper cores of flows, and what they depend on.
        self._cores: dict[str, tuple[Any, int]] = {}
        self._asked_s = 0.0
        engine.tracing.last_words.append(self._last_words)

    # ------------------------------------------------------------------- what is seen

    def section(self) -> Mapping[str, Any]:
        """What is known of flows that have begun and not ended."""
        # one whose producers have left has values to come: `left` has to find it
        self._flows = {name: one for name, one in self._flows.items() if not one.failed}
        going = {name: one for name, one in self._flows.items() if not one.over()}
        self._planning.keep(going)
        views = {name: self.view(one) for name, one in going.items()}
        if self._places:
            views = {name: self._planning.planned(name, view) for name, view in views.items()}
        return {SECTION: {name: encode(view) for name, view in views.items()}} if views else {}

    @property
    def _places(self) -> bool:
        """Whether the policy may say where analyses run; one of a user's may, unless it says otherwise."""
        return bool(getattr(self._engine.controller.policy, "places", True))

    def view(self, flow: Flow) -> FlowView:
        """What a policy sees of a flow whose producers are all there."""
        nodes, threads = self._workers.node_threads(set(flow.places))
        job = self._workers.job(flow)
        available = set(self._workers.may_stage())
        staging, cores = self._workers.node_threads(available)
        staging_now, _ = self._workers.node_threads(set(self._workers.staging()))
        helpers, spare = (max(0, threads - n) for n in (flow.kept_threads(threads), flow.own_threads))
        # a program that leaves no thread takes turns with its analyses on all of them
        cores = max(cores, threads, spare + 1) if spare else max(1, threads)
        # one outside has no thread of these; of one on the cluster some may be taken
        free = flow.inside and spare > 0 and cores == threads
        if nodes:  # all workers that take its blocks may be gone: it is learned once it has others
            flow.measured.learn(cores - helpers, nodes)
        return FlowView(
            mode="asynchronous" if helpers or not nodes else "synchronous",
            steps=flow.given,
            nodes=nodes,
            helper_cores=helpers,
            staging_nodes=staging_now,
            simulation=flow.measured.simulation.of_simulation(),
            platform=PlatformView(
                nodes=nodes + staging,
                cores=cores,
                memory_bytes=self._workers.node_bytes(set(flow.places)),
                staging_memory_bytes=self._workers.node_bytes(available),
                bandwidth_bytes_s=flow.measured.bandwidth.mean or self._workers.bandwidth_bytes_s,
                nodes_fixed=True,
                cores_fixed=not free,
                least_helper_cores=spare if free else 0,
                pipelined=True,
            ),
            analyses=tuple([self._analysis(flow, name) for name in flow.analyses]),
            measured=flow.measured.view(),
            changing=flow.name in self._staged,
            job=None if job is None else job.id,
            job_nodes=0 if job is None else nodes,
            lent_nodes=max(0, staging - staging_now),
        )

    def _helper_cores(self, flow: Flow) -> int:
        """Of all nodes of a simulation; they are counted when anything of that has changed."""
        depends = tuple(flow.places), flow.helper_cores, flow.own_threads
        if flow.name not in self._cores or self._cores[flow.name][0] != depends:
            nodes, threads = self._workers.node_threads(set(flow.places))
            self._cores[flow.name] = depends, nodes * max(0, threads - flow.kept_threads(threads))
        return self._cores[flow.name][1]

    def _analysis(self, flow: Flow, name: str) -> AnalysisView:
        said = flow.analyses[name]
        window, every = said["window"], said["every"]
        seen = AnalysisView(name=name, declared=said["where"], where=flow.side(name), every=every)
        known = flow.measured.analyses.get(name, Learner())
        taken = flow.given
        if not taken:
            return known.of_analysis(seen)
        step_bytes = flow.bytes / taken
        # a step goes once, whatever windows it is in
        sent = step_bytes * min(window, every)
        # what it reads and what it makes of that are there at once
        peak_bytes = step_bytes * window + flow.measured.value_bytes.get(name, 0.0)
        return known.after_sizes(peak_bytes, sent).of_analysis(seen)

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        self._planning.unwrap()
        self.helpers.unwrap()

    # ----------------------------------------------------------------- what is done

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """It carries out places."""
        return {Place: self._place}

    def _place(self, action: Place) -> Outcome:
        flow = self._flows.get(action.flow)
        # what this very decision has said of other analyses is no change under way
        view = None if flow is None else replace(self.view(flow), changing=False)
        why = refusal(action, view)
        if why is not None:
            return Outcome(action=action, result="refused", reason=why)
        if action.flow not in self._staged:
            asyncio.get_running_loop().call_soon(self._change, action.flow)
        self._staged.setdefault(action.flow, []).append(action)
        return Outcome(action=action, result="under way", reason=action.reason)

    def _change(self, name: str) -> None:
        """All that a decision says of a flow is known: do it, or nothing of it."""
        places, flow = self._staged.pop(name), self._flows.get(name)
        why: Reason | None = Reason(ReasonCode.UNKNOWN_FLOW, f"there is no flow {name!r} any more")
        result = "aborted"
        if flow is not None:
            view = self.view(flow)
            split = split_of(view, places)
            why = misfit(view, split)
            if why is None:
                flow.sides = flow.sides | {one.analysis: one.where for one in places}
                flow.staging = split.staging_nodes
                self._settle()
                if not view.platform.cores_fixed:
                    # what runs on those that go back ends first: workers give none of them out again
                    flow.helper_cores = split.helper_cores
                    self.share(flow)
                result, why = "done", Reason(ReasonCode.DONE, f"from turn {flow.given} of flow {name} on")
        assert why is not None
        for one in places:
            self._engine.handle(ActionEnded(Outcome(action=one, result=result, reason=why), "request"))

    def _settle(self) -> None:
        """Have as many staging nodes as flows need; values that wait for one that goes run elsewhere."""
        self._staging.settle([one for one in self._flows.values() if not one.failed])
        if self._workers.leaving:
            self._aim_again("hpc-staging")

    def drop(self, flow: Flow) -> None:
        """A flow has ended."""
        if self._flows.get(flow.name) is flow:
            self._trace(flow, final=True)
            del self._flows[flow.name]
            self._cores.pop(flow.name, None)
        if self._workers.lent or self._workers.leaving:
            self._settle()

    def _last_words(self) -> None:
        """The trace ends before flows do."""
        for flow in self._flows.values():
            self._trace(flow, final=True)

    def _trace(self, flow: Flow, final: bool = False) -> None:
        """Have what is known of steps in the trace file, if there is one: for memory they are too many."""
        listeners = self._engine.state.listeners
        for row in flow.steps.take(flow.due, final) if listeners else ():
            for listener in listeners:
                listener(Other(kind=STEP, data={"flow": flow.name, **row}))

    def share(self, flow: Flow) -> None:
        """Have the workers of a program give out its helper cores."""
        _, threads = self._workers.node_threads(flow.places)
        self.helpers.leave(flow.places, flow.kept_threads(threads))

    def aim(self, flow: Flow, turn: int) -> None:
        """All parts of a step are about to be there: its values are to be computed where they are placed."""
        if self._flows.get(flow.name) is not flow:
            self._flows[flow.name] = flow
            # it may need nodes that others do without
            self._staging.settled = not self._workers.lent
        if placed := self._placed(flow, turn):
            by_side = self._workers.by_where(flow)
            for key, side in placed:
                if side in by_side:
                    self._aim(flow, key, side, by_side[side])

    def _aim(self, flow: Flow, key: str, side: Where, addresses: Sequence[str]) -> None:
        scheduler, owner = self._engine.scheduler, self._engine.state.owner
        lane = owner.get(key)
        if flow.inside and side == "in-situ" and lane is not None and lane.kind != "free":
            # it already is where the program put it: a node that leaves waits for it
            there = [address for address in lane.restriction or () if address in scheduler.workers]
            writes.take_helper(scheduler, key, self.helpers.limit(there))
        else:
            helper = flow.inside and set(addresses) <= set(flow.places) and self.helpers.limit(addresses)
            writes.aim(scheduler, owner, key, addresses, helper=helper)

    def _placed(self, flow: Flow, turn: int) -> list[tuple[str, Where]]:
        """Keys of the values of a turn of which it is said where they are computed, and where."""
        return [
            (value_key(flow.id, turn, name), side)
            for name, said in flow.analyses.items()
            if (side := flow.side(name)) != "auto"
            and is_due(turn, said["first"], said["window"], said["every"])
        ]

    def left(self, address: str) -> None:
        """A worker has gone: values that could run there alone run where there still is one.

        Once nobody is left for analyses in transit they have no place any more, until the policy finds one.
        """
        self._workers.left(address)
        self._aim_again(f"hpc-placed-{address}")
        if not self._workers.may_stage():
            for flow in self._flows.values():
                flow.sides = {name: side for name, side in flow.sides.items() if side != "in-transit"}

    def _aim_again(self, stimulus_id: str) -> None:
        """Values that have not begun run on the workers that there are for them now."""
        scheduler, staging = self._engine.scheduler, self._workers.staging()
        for flow in self._flows.values():
            inside = [one for one in flow.places if one in scheduler.workers]
            keys = [pair for turn in flow.flight() for pair in self._placed(flow, turn)]
            for key, side in keys:
                self._aim(flow, key, side, (side == "in-transit" and staging) or inside)
            writes.retry_unplaced(scheduler, [key for key, _ in keys], stimulus_id)

    def whole(self, flow: Flow, turn: int) -> None:
        """All parts of a step are there; a policy may want to look, once a step and not too often."""
        now_s = self._engine.state.now_s()
        if not self._staging.settled:
            self._settle()
        if flow.when_full == "wait" or flow.inside:
            room = turn + 1 < flow.room()
        else:
            # who leaves steps out waits for none: the next one is taken while the queue has room
            room = len(flow.flight()) < flow.queue
        flow.measured.whole(now_s, room)
        flow.steps.whole(turn, now_s, room, self._helper_cores(flow))
        self._trace(flow)
        if now_s - self._asked_s >= _ASK_S and self._places:
            self._asked_s = now_s
            choice = self._workers.may_stage() or flow.own_threads > 1
            auto = choice and any(said["where"] == "auto" for said in flow.analyses.values())
            if auto or self._workers.job(flow) is not None:
                self._engine.controller.request("tick")

    # --------------------------------------------------------------------- clients

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"flow_plan": self.flow_plan}

    async def flow_plan(self, flow: str) -> dict[str, Any]:
        """The split as it is and the best one by what was measured, with the times of their steps.

        ``program`` is the number of nodes that a program on the cluster is better resized to; None: there is
        none, or it has that.

        Raises
        ------
        CouplingError
            When there is no such flow, or its producers have not come.
        """
        found = self._found(flow)
        if found.turns is None and not found.given:
            raise CouplingError(f"flow {found.name!r} has no steps yet: its producers have not come")
        view = self.view(found)
        row = await self._plan_row(view)
        sizes = self._workers.sizes(found)
        size = await asyncio.to_thread(best_size, view, sizes) if row["best"] is not None else None
        if size is None or size[0] == view.nodes:
            return row
        nodes, step_s = size
        text = f"with the program on {counted(nodes)}, not {view.nodes}, it is to take {step_s:.3g} s"
        return row | {"program": {"nodes": nodes, "step_s": step_s}, "reason": f"{row['reason']}; {text}"}

    async def _plan_row(self, view: FlowView) -> dict[str, Any]:
        row: dict[str, Any] = {
            "present": encode(view.present),
            "best": None,
            "step_s": None,
            "present_step_s": None,
            "program": None,
            "measured": None if view.measured is None else encode(view.measured),
            "view": encode(view),
        }
        application = application_of(view)
        if application is None:
            missing = [one.name for one in view.analyses if one.one_core_s is None]
            what = ", ".join(map(repr, missing)) or "the simulation"
            return row | {"reason": f"nothing was measured yet of {what}"}
        best = await asyncio.to_thread(best_split, application, view)
        if best is None:
            return row | {"reason": "no split fits the memory of the nodes and where analyses are to run"}
        step_s = phases(application, view, best).step_s(view.mode)
        present = _settled(view)
        present_s = phases(application, view, present).step_s(view.mode)
        fits = misfit(view, present)
        row |= {"best": encode(best), "step_s": step_s, "present_step_s": present_s}
        if best == present:
            return row | {"reason": "the present split is the best by what is known"}
        if replace(best, staging_nodes=present.staging_nodes) == present and step_s == present_s:
            enough = f"{best.staging_nodes} of {present.staging_nodes} staging nodes are enough"
            return row | {"reason": f"the present split is the best by what is known, and {enough}"}
        if fits is not None:
            return row | {"reason": f"the present split does not fit: {fits.text}"}
        return row | {
            "reason": f"a step is to take {step_s:.3g} s; with the present split it takes {present_s:.3g} s"
        }


def _settled(view: FlowView) -> Split:
    """The split that a flow has, analyses without a place being where their blocks are."""
    present = view.present
    inside = [one.name for one in view.analyses if one.name not in present.in_transit]
    return replace(present, in_situ=tuple(inside))
