"""A capability: a fake sensor that keeps the jobs of a cluster below some watts, live and simulated."""

from dask_hpc import config
from dask_hpc.client import methods
from dask_hpc.scheduler.tables import parts
from dask_hpc.sim.engine import twins
from dask_hpc_policies.combine.limits import SumGuard
from dask_hpc_policies.decision import Reason, ReasonCode, Shrink
from dask_hpc_policies.params import Power
from dask_hpc_widgets import views
from dask_hpc_widgets.base.markup import element

WATTS = 100.0  # of a node that a job has


class Meter:
    def __init__(self, where):
        self.where = where

    def section(self):
        return {"meter": {"watts": WATTS * self.held(), "limit_w": self.limit_w()}}

    status = section

    def guards(self):
        return [SumGuard(name="meter", unit="W", cost=lambda job, nodes: WATTS * nodes, upper=self.limit_w())]

    def limit_w(self):
        return self.where.options.extra["meter"]["limit_w"]

    def held(self):
        return sum(active.nodes for active in self.where.active.values())


class LiveMeter(Meter):
    def limit_w(self):
        return self.where.state.settings.extra["meter"]["limit_w"]

    def held(self):
        return sum(self.where.state.nodes_up(job) for job in self.where.state.jobs.named)

    def veto(self, subject, action):
        if isinstance(action, Shrink) and subject.name == "precious":
            return Reason(ReasonCode.KEPT, "the meter says that it is precious")

    def methods(self):
        async def meter():
            return self.section()["meter"]

        return {"meter": meter}


def shown(picture):
    return element("p", f"{picture.section('meter')['watts']:g} W")


def register():
    config.register("meter", [Power("limit", 300.0, hi=1e6, help="Most power of all jobs together.")])
    parts.register(LiveMeter)
    twins.register(lambda world: Meter(world) if "meter" in world.options.extra else None)
    methods.register("meter", lambda rt: rt.channel.sync("meter"))
    views.register(views.View(name="meter", title="Meter", section="meter", html=shown))
