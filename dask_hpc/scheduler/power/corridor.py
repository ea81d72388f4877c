"""The power corridor of a live cluster: set, looked at, and kept by the rules that the simulator has.

Rules of the file: nothing of it runs before a corridor is set, and the loop never waits for the solver: a
pass whose plan is not known goes without, and is made again when it is (`planner`). What the policy sees of
power comes with its picture, so that a trace replays without solver and sensors. While a corridor is set the
runtime stays awake.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc.config.file import AGAIN_S, mark
from dask_hpc.errors import LEAVES, CorridorError, InstallError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals.beats import Beats
from dask_hpc.scheduler.power.books import Books
from dask_hpc.scheduler.power.caps import HostCaps
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.forecaster import Forecaster
from dask_hpc.scheduler.power.gauges import Gauges
from dask_hpc.scheduler.power.plain import PlainNodes
from dask_hpc.scheduler.power.planner import Planner
from dask_hpc.scheduler.power.request import Marks, Wanted, read_wanted
from dask_hpc.scheduler.power.sampling import Sampling
from dask_hpc.scheduler.power.shown import Shown
from dask_hpc.scheduler.power.told import told
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Method
from dask_hpc_policies.combine import corridor as rules
from dask_hpc_policies.combine.limits import SumGuard, VetoGuard
from dask_hpc_policies.decision import Decision, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.params import shown
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.protocol import Policy
from dask_hpc_policies.rules.pool_range import PoolRange, pool_range, pool_step, wished_nodes

logger = logging.getLogger(__name__)

#: Rows of jobs that have ended in what is asked twice a second.
_ENDED_TOLD = 20
#: A schedule of more rows is not read on the loop.
_LONG = 100
#: What is closed with the scheduler, by name.
_EXTENSION = "hpc-corridor"


class Corridor:
    """The part that keeps it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state
        self._books = Books(engine.state, self._answered, engine.parts.saving)
        self._shown = Shown(self._books, lambda *told: engine.controller.note(*told))
        self._sampling = Sampling(engine.state)
        self._beats = Beats(engine.state.scheduler, self._books.draw.hear)
        self._caps = HostCaps(engine.state, engine.controller.note)
        self._plain = PlainNodes(engine)
        self._gauges = Gauges(self._row)
        self._wanted: Wanted | None = None
        engine.tracing.last_words.append(self._close_account)
        self._planner: Planner | None = None
        self._forecaster: Forecaster | None = None
        #: What was asked, the files that it names as they were when they were looked at last, which are
        #: watched, and what is wrong with them.
        self._given: dict[str, Any] = {}
        self._marks: Marks = ()
        self._problem = ""
        #: When files that could not be taken are tried again although they are the same.
        self._again_s = math.inf
        self._looking: asyncio.Task[None] | None = None
        #: Nodes that the pool is to have, as was told last; None: as many as jobs wish for.
        self._pool_told: int | None = None
        #: When the bounds change next.
        self._timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------ what clients say

    def methods(self) -> Mapping[str, Method]:
        """What clients may call."""
        return {"corridor": self.set, "power": self.power}

    async def set(
        self,
        lower_w: Any = None,
        upper_w: Any = None,
        over: Any = None,
        schedule: Any = None,
        file: Any = None,
        mode: Any = None,
        ramp_w_s: Any = None,
        series: Any = None,
        rules: Any = None,
        clear: bool = False,
    ) -> dict[str, Any]:
        """Set a corridor in place of the one there is, or clear it; all or nothing. Returns `power`.

        Raises
        ------
        CorridorError
            For what cannot be; the corridor and the cluster stay as they are.
        """
        given = {
            "lower_w": lower_w, "upper_w": upper_w, "over": over, "schedule": schedule, "file": file,
            "mode": mode, "ramp_w_s": ramp_w_s, "series": series, "rules": rules,
        }  # fmt: skip
        if not isinstance(clear, bool):
            raise CorridorError(f"clear is {shown(clear)}; allowed: True, False")
        if clear:
            if any(value is not None for value in given.values()):
                raise CorridorError("clear=True stands alone; leave the other arguments out")
            self._clear()
            return await self.power()
        asked = await self._read(given)
        await self._books.model.known()
        self._require_draw(asked)
        asked = await self._led(asked)
        if self._engine.leaving:
            raise InstallError(LEAVES)
        before, self._wanted = self._wanted, asked
        try:
            await self._engine.wake()
        except BaseException:
            self._wanted = before
            raise
        if self._engine.leaving or self._wanted is not asked:
            raise CorridorError(
                "the corridor was cleared, or set by somebody else, before it held; set it again"
            )
        self._given, self._problem = given, ""
        self._begin(asked)
        return await self.power()

    async def power(self) -> dict[str, Any]:
        """What is drawn, between which bounds, and what it has come to, for each (`told`, `bill`, `Runs`)."""
        # the account is brought up to date first: the bill is of the same moment
        books, told = self._books, self._told()
        more = {"bill": books.bill(), "history": books.history(), "recent": self.charted()["power"]}
        return {**told, **more}

    def charted(self) -> Mapping[str, Any]:
        """What has been drawn since the corridor was set: too much for what is asked twice a second."""
        return {"power": [] if self._wanted is None else self._books.recent.told(self._state.now_s())}

    def status(self) -> Mapping[str, Any]:
        """`power` without bill, rows of the past and most jobs that have ended.

        Empty where no corridor is set and the settings do not say what a node draws.
        """
        if self._wanted is None and not self._books.model.is_set:
            return {}
        told = self._told(_ENDED_TOLD)
        if self._wanted is not None:
            told["chart"] = self._books.recent.brief(self._state.now_s())
        return {"power": told}

    def _told(self, most_ended: int | None = None) -> dict[str, Any]:
        now_s = self._state.now_s()
        books, planner = self._books, self._planner
        account = books.now(now_s)
        return {
            **told(now_s, self._wanted, account, self._shown.view, most_ended),
            "file": self._given.get("file"),
            "problem": self._problem
            or self._books.model.problem
            or ("" if planner is None else planner.failure),
            "forecast": None if self._forecaster is None else self._forecaster.told(now_s),
            "programs": 0 if planner is None else planner.asked,
            "caps": self._caps.told(),
            "withheld": {"nodes": self._plain.told(), "reason": self._plain.reason},
        }

    def _row(self) -> Mapping[str, Any]:
        account = self._books.account
        return {} if account is None else told(self._state.now_s(), self._wanted, account, self._shown.view)

    def _require_draw(self, asked: Wanted) -> None:
        curve, problem = self._books.model.curve(), self._books.model.problem
        sample = self._books.sample(self._state.now_s())
        if curve is None and (asked.mode != "monitor" or (sample.nodes and sample.label == "unavailable")):
            raise CorridorError(
                f"what a node draws is not known{': ' * bool(problem)}{problem}; set "
                "hpc.power.model.idle and hpc.power.model.busy (watts of a node), in the configuration or by "
                "rt.update(power_model_idle_w=..., power_model_busy_w=...)"
            )

    # ----------------------------------------------------------------- its life

    def needed(self) -> bool:
        """The runtime stays awake while there is a corridor."""
        return self._wanted is not None

    def _begin(self, asked: Wanted) -> None:
        now_s = self._state.now_s()
        self._books.open(now_s, asked.over_s)
        if self._planner is None and asked.mode != "monitor":
            self._planner = Planner(self._answered)
            self._planner.start()
        if self._forecaster is None:
            self._forecaster = Forecaster(self._answered)
        self._sampling.begin(now_s, self._books.draw.silent())
        self._beats.begin()
        self._books.draw.told_by_beats = True
        self._gauges.begin()
        self._state.scheduler.extensions[_EXTENSION] = self
        self._wanted, self._marks, self._again_s = asked, asked.marks, math.inf
        self._bounds_moved()

    async def _led(self, asked: Wanted) -> Wanted:
        """Bounds that change slowly begin at what is drawn; found in a thread: a series may be long."""
        now_s = self._state.now_s()
        sample, step = self._books.sample(now_s), asked.bounds.at(now_s)
        if asked.ramp_w_s is None or sample.label == "unavailable" or step is None:
            return asked
        # inside there is nothing to lead
        if step[1] <= sample.total_w <= step[2]:
            return asked
        return await asyncio.to_thread(asked.led, now_s, sample.total_w)

    def _clear(self) -> None:
        if self._wanted is None:
            return
        self._end()
        self._books.note_bounds(None, "none")
        self._engine.controller.request("corridor")
        self._engine.rest()

    def _end(self, *, stripped: bool = False) -> None:
        """Forget the corridor, and whatever was begun for it; `stripped`: workers lose our plugin."""
        self._close_account()
        self.teardown()
        self._wanted = None
        self._problem, self._given, self._marks = "", {}, ()
        self._books.shut()
        self._shown.forget()
        self._caps.end()
        self._plain.end()
        self._state.pool_range = None
        if self._looking is not None:
            self._looking.cancel()
        self._timer = self._looking = self._planner = self._forecaster = None
        self._sampling.end(told=not stripped)
        self._beats.end()
        self._books.draw.told_by_beats = False
        extensions = self._state.scheduler.extensions
        if extensions.get(_EXTENSION) is self:
            del extensions[_EXTENSION]

    def _close_account(self) -> None:
        """Tell the trace who has drawn what."""
        if self._wanted is not None:
            self._books.add(self._state.now_s(), final=True)

    def unwrap(self) -> None:
        """The runtime is being uninstalled."""
        self._end(stripped=True)

    def teardown(self) -> None:
        """The scheduler closes."""
        self._gauges.end()
        if self._timer is not None:
            self._timer.cancel()
        for part in (self._planner, self._forecaster):
            if part is not None:
                part.close()

    def _bounds_moved(self) -> None:
        """Other bounds hold from now on, until the next ones do."""
        asked = self._wanted
        if asked is None:
            return
        now_s = self._state.now_s()
        self._books.add(now_s)
        self._books.note_bounds(asked.bounds.at(now_s), asked.mode)
        if self._timer is not None:
            self._timer.cancel()
        later = asked.bounds.after(now_s, 1)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(later[0][0] - now_s, self._bounds_moved) if later else None
        self._engine.controller.request("corridor")

    def _answered(self) -> None:
        self._engine.controller.request("corridor")

    # ------------------------------------------------------------------ ticks

    def tick(self, now_s: float) -> None:
        """Take a sample, note what was measured of jobs, look at the file."""
        if self._wanted is None:
            return
        sample = self._books.add(now_s)
        self._sampling.look(now_s, self._books.draw.silent())
        if sample is not None:
            self._cap(sample)
            self._books.note(sample, self._shown.view)
            if self._forecaster is not None:
                settings = self._state.settings
                self._forecaster.add(sample, settings.power_forecast_horizon_s, settings.tick_s)
        if self._marks and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look(self._given))

    def _cap(self, sample: Sample) -> None:
        """Have hosts capped where that is a lever, and the draw is known."""
        asked = self._wanted
        step = None if asked is None or asked.mode != "enforce" else asked.bounds.at(sample.t_s)
        if step is None or "cap" not in self._state.settings.power_levers:
            self._caps.end()
        elif sample.label != "unavailable":
            self._caps.look(step[2], sample.total_w, self._books.draw.hosts(sample.t_s))

    async def _read(self, given: Mapping[str, Any]) -> Wanted:
        """In a thread where it may take its time: a file system does, and schedules may be long."""
        now_s, epoch_s, schedule = self._state.now_s(), self._state.clock.at_s(0.0), given["schedule"]
        long = isinstance(schedule, Sequence) and len(schedule) > _LONG
        if given["file"] is None and given["series"] is None and not long:
            return read_wanted(given, now_s, epoch_s)
        return await asyncio.to_thread(read_wanted, given, now_s, epoch_s)

    async def _look(self, given: Mapping[str, Any]) -> None:
        """Take what was asked anew when one of its files is another one."""
        paths = [path for path, _ in self._marks]
        found = await asyncio.to_thread(lambda: tuple((path, mark(path)) for path in paths))
        same = found == self._marks and bool(all(row[1] for row in found) or self._problem)
        if same and self._state.now_s() < self._again_s:
            return
        try:
            asked = await self._read(given)
            self._require_draw(asked)
            asked = await self._led(asked)
        except CorridorError as error:
            if self._given is given:
                if not same or str(error) != self._problem:
                    logger.error("The corridor stays as it is: %s", error)
                self._marks, self._problem = found, str(error)
                self._again_s = self._state.now_s() + AGAIN_S
            return
        if self._given is given and self._wanted is not None:
            self._problem = ""
            self._begin(asked)

    # ------------------------------------------------------------- the decision

    def completed(self, view: ClusterSnapshot, policy: Policy) -> ClusterSnapshot:
        """The picture with the section ``power``, and in it the plan where it is known."""
        if self._wanted is None:
            return view
        free = len(self._state.nodes.free())
        return self._shown.completed(view, policy, self._wanted, self._planner, self._forecaster, free)

    def guards(self) -> Sequence[SumGuard | VetoGuard]:
        """What the decision about the last picture is held to."""
        return self._shown.guards

    def lends(self, node: Node) -> bool:
        """Jobs borrow no node that the corridor keeps idle; on those of jobs the plan counts busy threads."""
        view = self._shown.view
        return node.job is not None or view is None or not (view.acts and view.bounded)

    def amended(self, view: ClusterSnapshot, decision: Decision) -> Decision:
        """What is done in place of the decision where the draw is outside; plain work is confined."""
        if self._wanted is None:
            return decision
        books, power, curve = self._books, self._shown.view, self._books.model.curve()
        last = None if books.account is None else books.account.last
        if power is not None and last is not None and curve is not None:
            self._plain.look(view, power, last, curve)
        elif self._plain.reason:
            self._plain.end()
        self._state.pool_range = None if power is None else self._pool(view, power)
        return rules.amended(view, decision, power)

    def _pool(self, view: ClusterSnapshot, power: PowerView) -> PoolRange | None:
        """The nodes that an adaptive cluster may have (lever ``pool``); tells of it when they are others."""
        found = pool_range(view, power, self._state.pool_range)
        if power.off_nodes is None:
            # it is being asked: what was told holds until that is known
            return found
        step = None
        # whoever looks at the pool looks at all of its nodes
        if found is not None and found.bounded(wished := wished_nodes(view)) != wished:
            step = pool_step(view, found)
        told, self._pool_told = self._pool_told, None if step is None else step.nodes
        if step is not None and step.nodes != told:
            self._engine.controller.note("", ReasonCode.CORRIDOR, step.reason.text)
        return found
