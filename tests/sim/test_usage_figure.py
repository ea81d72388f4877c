"""The figure of nodes in use, and progress that can end a run soon."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_worlds import rigid, run, workload

from dask_hpc.sim import load, simulate
from dask_hpc.sim.model.machine import Failures, NodeFailure
from dask_hpc.sim.results.plots import (
    compare_figure,
    intensity_figure,
    jobs_figure,
    png,
    usage_figure,
    waits_figure,
)
from dask_hpc.sim.results.series import utilization


def drawn(figure, i=0):
    """Edges and heights of what panel `i` of the figure shows."""
    (stairs,) = figure.axes[i].patches
    data = stairs.get_data()
    return data.edges.tolist(), data.values.tolist()


def test_each_run_has_a_panel_with_its_steps() -> None:
    # the clock of a recorded workload begins anywhere
    work = workload(rigid("a", 4, 10.0, 1000.0), rigid("b", 16, 5.0, 1000.0))
    results = {"first come": run(work, "fcfs"), "again": run(work, "easy")}
    figure = usage_figure(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["first come", "again"]
    assert drawn(figure) == ([0.0, 10.0, 15.0], [4, 16])
    assert figure.axes[0].get_ylim()[1] >= 16
    assert figure.axes[-1].get_xlabel() == "time (s)"
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("length_s", "unit", "longest"),
    [(300.0, "s", 300), (600.0, "min", 10), (36e3, "h", 10), (864e3, "d", 10)],
)
def test_time_has_a_unit_that_fits(length_s, unit, longest) -> None:
    figure = usage_figure({"x": run(workload(rigid("a", 1, length_s)), "fcfs")})
    assert figure.axes[0].get_xlabel() == f"time ({unit})"
    assert drawn(figure)[0][-1] == longest


def test_many_changes_are_shown_as_means_with_the_same_area() -> None:
    # one job after the other, on one node and on three
    jobs = [rigid(f"j{i}", 1 + 2 * (i % 2), 0.25, 0.5 * i) for i in range(400)]
    figure = usage_figure({"x": run(workload(*jobs), "fcfs")})
    edges, means = drawn(figure)
    assert len(means) == 200
    area = sum((b - a) * mean for a, b, mean in zip(edges, edges[1:], means, strict=False))
    assert area == pytest.approx(400 * 0.25 * 2)


def test_a_run_without_time_is_drawn_too() -> None:
    figure = usage_figure({"x": run(workload(rigid("a", 1, 0.0)), "fcfs")})
    assert png(figure).startswith(b"\x89PNG")


def test_names_are_drawn_as_they_are_written(tmp_path) -> None:
    # what stands between two dollar signs is a formula to matplotlib, and this one is wrong
    name = "cost $5_{a$ and $6$"
    result = run(replace(workload(rigid("a", 1, 5.0)), name=name), "fcfs")
    for figure in (
        jobs_figure(result),
        intensity_figure(result, [(0.0, 0.1, 0.2), (1.0, 0.1, 0.2)]),
        usage_figure({name: result}),
        waits_figure({name: result}),
    ):
        assert png(figure).startswith(b"\x89PNG")
    compare_figure([(name, result)], tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()


def test_jobs_that_wait_and_their_waits_are_drawn_over_time() -> None:
    # one node: each waits for those before; of the second two the first has waited 15 s, the other 25 s
    work = workload(*(rigid(f"j{i}", 1, 10.0, t) for i, t in enumerate((0.0, 0.0, 5.0, 5.0))), nodes=1)
    figure = waits_figure({"first come": run(work, "fcfs")})
    above, below = figure.axes
    (steps,) = above.lines
    assert list(zip(*steps.get_data(), strict=True)) == [(0, 1), (5, 3), (10, 2), (20, 1), (30, 0), (40, 0)]
    (median,) = below.lines
    assert median.get_xdata()[0] < 5 / 4
    assert list(median.get_ydata()) == [5.0, 20.0]
    assert png(figure).startswith(b"\x89PNG")
    nobody = waits_figure({"x": run(workload(rigid("a", 1, 0.0)), "fcfs")})
    assert png(nobody).startswith(b"\x89PNG")


def test_jobs_of_no_length_and_interrupted_ones_leave_nobody_waiting_at_the_end() -> None:
    stop = Failures(listed=(NodeFailure(t_s=4.0, node=0, downtime_s=2.0),))
    work = workload(rigid("none", 1, 0.0), rigid("cut", 2, 10.0), rigid("late", 1, 0.0, 3.0), nodes=2,
                    failures=stop)  # fmt: skip
    steps = list(utilization(run(work, "fcfs")))
    # 'late' waits from 3 s until 'cut', which waits again from 4 to 6 s, is over
    assert [(t_s, running, waiting) for t_s, _, running, waiting in steps] == [
        (0.0, 1, 0), (3.0, 1, 1), (4.0, 0, 2), (6.0, 1, 1), (16.0, 0, 0),
    ]  # fmt: skip


def test_progress_is_told_often_enough_to_end_a_run_soon() -> None:
    work = load("builtin:poisson", jobs=300, nodes=16)
    told: list[int] = []
    result = simulate(work, "easy", progress=told.append)
    assert told == sorted(told)
    # also while no job ends
    assert len(told) == result.counts.moments // 25
    assert told[-1] <= 300

    def stop(ended: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        simulate(work, "easy", progress=stop)
