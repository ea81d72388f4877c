"""The seams hold: a capability of a few lines is added by one file, which touches no other."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from helpers import live, started

import dask_hpc
from dask_hpc.client import methods
from dask_hpc.config import rows
from dask_hpc.errors import ConfigError
from dask_hpc.scheduler.tables import parts
from dask_hpc.sim import Machine, Options, Workload, simulate
from dask_hpc.sim.engine import twins
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.model.job import Job
from dask_hpc_policies.registry import create

FILE = Path(__file__).with_name("meter.py")


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The capability, registered until the end of the test."""
    views = pytest.importorskip("dask_hpc_widgets.views")
    for module, name in (
        (rows, "_registered"),
        (methods, "added"),
        (views, "_views"),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    for module in (parts, twins):
        monkeypatch.setattr(module, "_MAKERS", [])
    spec = importlib.util.spec_from_file_location("meter", FILE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.register()
    return made


def test_it_is_small() -> None:
    body = ast.parse(FILE.read_text()).body
    inside = {node.lineno for part in body for node in ast.walk(part) if isinstance(node, ast.stmt)}
    imports = {node.lineno for node in body if isinstance(node, (ast.Import, ast.ImportFrom))}
    assert len(inside - imports) <= 34


@live(4)
async def test_live_it_sums_vetoes_and_tells(c, s, *workers, meter):
    rt = await dask_hpc.install(c, "pwma-fpsma", meter_limit=200)
    async with rt.job("precious", min_nodes=1, max_nodes=4) as job:
        await started(s, job, 2)
        # the sum: two nodes are what the watts allow, and the refusal names the guard and its figures
        told = [row for row in await job.why() if row["result"] == "suppressed"]
        assert "meter: in the end the decision leads to 400 W, allowed are at most 200 W" in told[0]["reason"]
        refused = await job.resize(3)
        assert refused["result"] == "refused"
        assert "300 W" in refused["reason"]
        # the veto
        refused = await job.resize(1)
        assert refused["result"] == "refused"
        assert "precious" in refused["reason"]
        # the method, the section of the status, and that of the picture which policies get and traces keep
        now = {"watts": 200.0, "limit_w": 200.0}
        assert await rt.meter() == now
        assert (await rt.status())["meter"] == now
        assert (await rt.snapshot()).sections["meter"] == now
        assert any('"meter":{"watts":' in line.replace(" ", "") for line in await rt.trace())
        # the setting
        with pytest.raises(ConfigError, match=r"hpc\.meter\.limit is '2 MW'; allowed: a number from 0 to"):
            await rt.update(meter_limit="2 MW")
        await rt.update(meter_limit="0.4 kW")
        await started(s, job, 4)
        # the view
        found = {"status": await rt.status(), "jobs": await rt.jobs(), "decisions": await rt.decisions()}
        view = meter.views.named("meter")
        assert "400 W" in view.body(meter.views.Picture(**found))


def test_simulated_it_sums_by_the_same_rule(meter: ModuleType) -> None:
    job = Job(
        id="a", submit_s=0.0, start_nodes=None, min_nodes=1, max_nodes=4, kind="malleable", runtime_s=8.0
    )
    work = Workload(name="one", jobs=(job,))
    machine = Machine(nodes=4)

    def sizes(**options: object) -> list[int]:
        result = simulate(work, "pwma-fpsma", machine=machine, options=Options(extra=options))  # type: ignore[arg-type]
        return [nodes for _, nodes in result.runs[0].nodes]

    assert sizes() == [4, 0]
    assert sizes(meter={"limit_w": 200.0}) == [2, 0]


def test_a_fork_has_a_meter_of_its_own(meter: ModuleType) -> None:
    jobs = tuple(
        Job(id=id, submit_s=at_s, start_nodes=2, min_nodes=2, max_nodes=2, runtime_s=8.0)
        for id, at_s in (("a", 0.0), ("b", 1.0))
    )
    options = Options(extra={"meter": {"limit_w": 200.0}})
    engine = Engine(Workload(name="two", jobs=jobs), create("fcfs"), Machine(nodes=4), options)
    engine.run_until(0.5)
    other = engine.fork()
    engine.run()
    assert engine.world.twins.sections()["meter"]["watts"] == 0.0
    assert other.world.twins.sections()["meter"]["watts"] == 200.0
