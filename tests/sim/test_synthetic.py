"""The synthetic application: its keys, and what its checkpoints cost it."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_worlds import Scripted, run

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.generators import synthetic
from dask_hpc.sim.model.job import Repeat, SchedulingPoint, Transfer
from dask_hpc.sim.workloads.sources import load

#: No fault, no checkpoint, one size.
BARE = {"cp_mpiio": False, "fault_inject": None, "is_invasive": False}


def metrics(policy: Any = "fcfs", **options: Any) -> dict[str, Any]:
    return run(load("builtin:synthetic", **{**BARE, **options}), policy).metrics()


def test_the_keys_have_the_values_of_the_listing() -> None:
    given = {option.name: option.default for option in synthetic.synthetic.options}
    ours = {name: given.pop(name) for name in ("step_s", "nodes")}
    assert given == {
        "cp_size": 100_000, "cp_type": "float", "cp_interval": 10.0, "cp_count": 1000, "cp_mpiio": True,
        "enable_ichk": False, "fault_inject": 10.0, "probe_interval": 5.0, "is_invasive": True,
    }  # fmt: skip
    assert ours == {"step_s": 1.0, "nodes": 4}


@given(
    st.integers(1, 300), st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0.1, 5), st.booleans(),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_the_loop_does_all_steps_and_saves_and_probes_at_the_ends_of_steps(
    count: int, interval: float, probe: float, step: float, mpiio: bool, agents: bool, invasive: bool
) -> None:
    work = load(
        "builtin:synthetic", cp_count=count, cp_interval=interval, probe_interval=probe, step_s=step,
        cp_mpiio=mpiio, enable_ichk=agents, is_invasive=invasive,
    )  # fmt: skip
    program = work.jobs[0].program
    assert program is not None
    steps, saved, points = 0.0, [], []
    for stage in program.stages:
        if isinstance(stage, Repeat):
            assert isinstance(stage.times, float)
            steps += stage.times
        elif isinstance(stage, Transfer):
            saved.append(steps)
        elif isinstance(stage, SchedulingPoint):
            points.append(steps)
    each = max(1, ceil(interval / step - 1e-9))
    assert steps == count
    expected = list(range(each, count + 1, each))
    assert saved == (expected if mpiio else [])
    assert points == (expected if agents or invasive else [])


@given(st.integers(1_000, 30_000_000), st.sampled_from(sorted(synthetic.TYPES)), st.integers(1, 16))
def test_what_the_interval_hides_costs_a_message_and_a_copy(size: int, kind: str, nodes: int) -> None:
    options = {"cp_size": size, "cp_type": kind, "nodes": nodes, "cp_count": 100, "probe_interval": 1e7}
    found = metrics(enable_ichk=True, **options)
    node_bytes = synthetic.PROCESSES * synthetic.TYPES[kind] * size
    visible_s = synthetic.MESSAGE_S + node_bytes / synthetic.COPY_BYTES_S
    transfer_s = node_bytes / synthetic.LINK_BYTES_S
    assert transfer_s < 10.0, "the interval hides it"
    # after each tenth step but the last, when there is nothing left to do
    assert found["makespan_s"] == pytest.approx(100 + 9 * visible_s)
    assert (found["commits"], found["levels_left_out"]) == (9, 0)


def test_what_the_interval_does_not_hide_is_left_out() -> None:
    # 15 s over the link, each 10 s
    size = int(15 * synthetic.LINK_BYTES_S / synthetic.PROCESSES / 8)
    found = metrics(enable_ichk=True, cp_size=size, cp_type="double", cp_count=100, probe_interval=1e7)
    assert (found["commits"], found["levels_left_out"]) == (5, 4)


def test_the_file_system_holds_it_up_and_probes_take_their_time() -> None:
    node_bytes = 48 * 4 * 100_000
    written = metrics(cp_mpiio=True, cp_count=100, nodes=16)
    # 16 links would carry more than the file system
    assert written["makespan_s"] == pytest.approx(100 + 10 * 16 * node_bytes / synthetic.FILE_SYSTEM_BYTES_S)
    few = metrics(cp_mpiio=True, cp_count=100, nodes=2)
    assert few["makespan_s"] == pytest.approx(100 + 10 * node_bytes / synthetic.LINK_BYTES_S)
    probed = metrics(enable_ichk=True, cp_interval=1e6, cp_count=100)
    assert probed["makespan_s"] == pytest.approx(100 + 20 * synthetic.PROBE_S)


@pytest.mark.parametrize("where", ["cp_mpiio", "enable_ichk"])
def test_a_fault_costs_what_was_done_since_the_last_checkpoint(where: str) -> None:
    # the fourth checkpoint, at 40 s and a little, is the last one before
    found = metrics(**{where: True, "fault_inject": 47.0, "cp_count": 100, "probe_interval": 1e7})
    assert found["restarts"] == 1
    assert found["makespan_s"] == pytest.approx(100 + 7, abs=0.1)
    bare = metrics(fault_inject=47.0, cp_count=100)
    assert bare["makespan_s"] == pytest.approx(100 + 47)


def test_an_invasive_one_is_resized_after_a_checkpoint_and_saves_as_much_as_it_has_nodes() -> None:
    options = {"is_invasive": True, "enable_ichk": True, "cp_count": 40, "nodes": 1, "probe_interval": 1e7}
    work = load("builtin:synthetic", **{**BARE, **options})
    points = run(work, "equipartition")
    ((first_s, first), (second_s, second), _) = points.runs[0].nodes
    assert (first_s, first, second) == (0.0, 1, 16)
    assert second_s == pytest.approx(10.0)
    # the commit follows the resize; the last point is the end
    assert points.metrics()["begun_bytes"] == 3 * 16 * 48 * 4 * 100_000
    assert metrics(Scripted({}), **options)["begun_bytes"] == 3 * 48 * 4 * 100_000


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"cp_size": 0}, "'cp_size' cannot be 0"),
        ({"cp_type": "half"}, "one of char, int, float, double"),
        ({"cp_interval": 0}, "'cp_interval' cannot be 0"),
        ({"cp_count": 1_000_000}, "'cp_count' cannot be 1000000"),
        ({"fault_inject": -1}, "'fault_inject' cannot be -1"),
        ({"nodes": 17}, "'nodes' cannot be 17"),
        ({"cp_sise": 1}, "cp_sise"),
    ],
)
def test_values_out_of_range_are_refused(option: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load("builtin:synthetic", **option)
