"""The account of a corridor, by hand: energy by what drew it, and what was outside of which bounds."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest
from helpers import engine, live, until
from hypothesis import given
from hypothesis import strategies as st

import dask_hpc
from dask_hpc.report.power import power_bills, power_report
from dask_hpc.scheduler.power import runs as runs_module
from dask_hpc.scheduler.power.account import ENOUGH, Account, History
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.power.noted import Noted
from dask_hpc.scheduler.power.request import Wanted
from dask_hpc.scheduler.power.runs import Runs
from dask_hpc.scheduler.power.told import told as power_told
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.trace.files import parse_trace, read_trace
from dask_hpc.trace.records import Header, Other, encode_line
from dask_hpc_policies.jobs.jobspec import JobSpec
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.power.bill import Use
from dask_hpc_policies.power.bounds import Bounds
from dask_hpc_policies.power.scaling import Run, Scaling, fit_scaling

BOUNDS = Bounds(steps=((0.0, 0.0, 300.0),))


def sample(t_s: float, job_w: float, idle_w: float = 100.0, label: str = "modelled") -> Sample:
    watts = job_w + idle_w
    return Sample(t_s, label=label, total_w=watts, jobs_w={"a": job_w}, idle_w=idle_w)  # type: ignore[arg-type]


def test_between_two_samples_the_draw_is_that_of_the_first() -> None:
    account, bounds = Account(0.0), (0.0, 200.0, 350.0)
    account.add(sample(0, 50), bounds)  # 150 W for 2 s: 50 W below
    account.add(sample(2, 250), bounds)  # 350 W for 3 s: on the bound
    account.add(sample(5, 300), bounds)  # 400 W for 1 s: 50 W above
    assert account.draw_w == 400
    account.add(sample(6, 0, label="unavailable"), bounds)  # nobody knows for 4 s
    assert account.draw_w is None
    account.add(sample(10, 0), None)
    account.add(sample(11, 0), None)
    uses = account.uses
    assert (uses.total.energy_j, uses.idle.energy_j) == (300 + 1050 + 400 + 100, 600 + 100)
    assert {id: use.energy_j for id, use in uses.jobs.items()} == {"a": 100 + 750 + 300}
    assert (account.outside_ws, account.outside_s, account.known_s) == (150, 3, 7)


def test_with_a_time_the_mean_over_it_is_held_to_the_bounds() -> None:
    account, bounds = Account(0.0, over_s=10.0), (0.0, 0.0, 300.0)
    # twice at one time, as a pass takes it and then a tick
    account.add(sample(0.0, 100), bounds)
    for t_s in range(21):
        # 200 W, with a peak of 700 W for one second
        account.add(sample(float(t_s), 600 if t_s == 12 else 100), bounds)
    assert account.outside_s == 0
    assert account.draw_w == pytest.approx((9 * 200 + 700) / 10)
    for t_s in range(21, 41):
        account.add(sample(float(t_s), 400), bounds)
    assert account.draw_w == pytest.approx(500)
    # the mean is above 300 W from the moment when three of ten seconds and a bit had 500 W
    assert 15 <= account.outside_s <= 18


def test_a_mean_over_long_is_kept_in_few_rows() -> None:
    # passes take samples, too: ten a second
    account, drawn = Account(0.0, over_s=300.0), []
    for number in range(6001):
        # twice as much in every third minute
        watts = 200.0 * (1 + (number // 600) % 3 // 2)
        drawn.append(watts)
        account.add(Sample(number / 10, label="measured", total_w=watts), None)
        if number > 3000:
            assert account.draw_w == pytest.approx(sum(drawn[-3001:-1]) / 3000, rel=1e-3)
    assert len(account._recent) < 1500


@given(
    st.floats(0, 1e-6),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.lists(st.floats(0.1, 900), min_size=1, max_size=40),
)
def test_the_mean_is_that_of_all_that_lies_in_the_time(
    tiny: float, apart_s: float, watts: list[float]
) -> None:
    for over_s in (tiny, 3.5, 1e5):
        account = Account(0.0, over_s)
        for count, each in enumerate([*watts, watts[-1]]):
            t_s = count * apart_s
            account.add(sample(1e6 + t_s, each, 0.0), None)
            if not count:
                continue
            spans = [
                (max(n * apart_s, t_s - over_s), (n + 1) * apart_s, w) for n, w in enumerate(watts[:count])
            ]
            length = sum(end - begin for begin, end, _ in spans if begin < end)
            mean = sum((end - begin) * w for begin, end, w in spans if begin < end) / length if length else 0
            if over_s > 1e-3:
                assert account.draw_w == pytest.approx(mean)
            assert min(watts) * 0.99 <= (account.draw_w or 0) <= max(watts) * 1.01


def test_what_was_measured_of_a_name_is_kept_by_size_and_noise_does_not_count() -> None:
    history = History()
    for nodes, watts in ((4, 100.2), (1, 180.0), (4, 101.0)):
        history.add("heat-1", "heat", nodes, watts, 0.0)
    assert history.of("heat") == {1: 180.0, 4: 100.0}
    history.add("heat-1", "heat", 4, 107.0, 0.0)
    assert history.of("heat") == {1: 180.0, 4: 103.0}
    assert list(history.of("heat")) == [1, 4]
    assert history.of("pi") == {}


@pytest.mark.parametrize("tick_s", [0.25, 1.0, 5.0])
def test_what_a_job_draws_now_counts_and_a_dip_of_seconds_is_no_new_level(tick_s: float) -> None:
    history, silent, t_s = History(), JobRequest(name="heat"), 0.0

    def told_after(seconds: float, watts: float) -> float:
        """What is told of it when it has drawn so much for so long."""
        nonlocal t_s
        for _ in range(round(seconds / tick_s)):
            t_s += tick_s
            history.add("a", "heat", 4, watts, t_s)
        return history.holds("a", silent)[4]

    assert told_after(3600, 100.0) == 100.0
    after = [told_after(seconds, 200.0) for seconds in (60, 240, 600)]
    assert after == pytest.approx([118, 163, 195], abs=2)
    assert told_after(900, 200.0) == pytest.approx(200, abs=2)
    for _ in range(5):
        assert told_after(8, 71.0) > 190
        assert told_after(300, 200.0) == pytest.approx(200, abs=3)
    # what it drew on a size hours ago is not overruled by the first sample of another run
    t_s += 20_000
    assert told_after(tick_s, 100.0) == pytest.approx(190, abs=10)


def test_what_a_user_says_holds_against_earlier_jobs_until_the_job_itself_was_measured() -> None:
    history = History()
    history.add("heat-1", "heat", 2, 100.0, 0.0)
    silent = JobRequest(name="heat")
    assert history.holds("heat-2", silent) == {2: 100.0}
    for hint in ({"min_power_w": 300.0}, {"max_power_w": 300.0}):
        says = replace(silent, **hint)
        id = str(hint)
        for _ in range(ENOUGH):
            assert history.holds(id, says) == {}
            # a job that only begins, or that others of its name go on beside, is not measured
            history.add("heat-1", "heat", 2, 100.0, 0.0)
            history.add(id, "heat", 4, 120.0, 0.0)
            history.keep({id, "heat-1"})
        # now that alone: others of its name have drawn 100 W on other sizes
        assert history.holds(id, says) == {4: 120.0}
        # one that has ended is forgotten: its id says nothing of another one
        history.keep({"heat-1"})
        assert history.holds(id, says) == {}
    # a thousand samples of others do not outweigh its own
    for _ in range(1000):
        history.add("heat-1", "heat", 4, 100.0, 0.0)
    for _ in range(205):
        history.add("heat-3", "heat", 4, 300.0, 0.0)
    assert history.holds("heat-3", replace(silent, min_power_w=300.0)) == {4: 300.0}
    assert history.of("heat")[4] < 140


def test_a_job_that_is_like_no_other_of_its_name_is_known_by_its_own() -> None:
    history, silent = History(), JobRequest(name="heat")
    for _ in range(2000):
        history.add("a", "heat", 4, 100.0, 0.0)
        history.add("a", "heat", 2, 150.0, 0.0)
    for _ in range(ENOUGH - 1):
        history.add("b", "heat", 4, 300.0, 0.0)
        history.add("c", "heat", 4, 105.0, 0.0)
        # a job that only begins may still do so
        assert history.holds("b", silent) == {2: 150.0, 4: 100.0}
    history.add("b", "heat", 4, 300.0, 0.0)
    history.add("c", "heat", 4, 105.0, 0.0)
    assert history.holds("b", silent) == {4: 300.0}
    # of one that is like the others that says more: they have been on other sizes
    assert history.holds("c", silent) == history.of("heat") == {2: 150.0, 4: 100.0}


def test_whoever_draws_now_is_told_and_of_those_that_have_ended_the_latest() -> None:
    account = Account(0.0)
    for number in range(30):
        jobs_w = {"first": 60.0, f"job-{number}": 40.0}
        account.add(Sample(float(number), label="modelled", total_w=100.0, jobs_w=jobs_w), None)
    asked = Wanted(asked=BOUNDS, bounds=BOUNDS)
    every, few = (power_told(30.0, asked, account, None, most) for most in (None, 3))
    assert [len(row["jobs"]) for row in (every, few)] == [31, 5]
    assert [row["job"] for row in few["jobs"]] == ["job-26", "job-27", "job-28", "first", "job-29"]
    assert (every["more_jobs"], few["more_jobs"]) == (0, 26)
    # not those that began last
    account.add(Sample(30.0, label="modelled", total_w=40.0, jobs_w={"job-30": 40.0}), None)
    few = power_told(31.0, asked, account, None, 2)
    assert [row["job"] for row in few["jobs"]] == ["first", "job-29", "job-30"]


def test_who_drew_it_is_told_now_and_then_for_a_scheduler_that_is_killed():
    account, noted, told = Account(0.0), Noted(), []
    for t_s in range(0, 1500, 10):
        account.add(sample(float(t_s), 60.0, 40.0), None)
        if (row := noted.due(account, {"price": None, "carbon": None})) is not None:
            told.append((t_s, row.get("bill")))
    # a record a minute; the split every ten
    assert len(told) == 25
    assert [t_s for t_s, bill in told if bill is not None] == [600, 1200]
    assert told[20][1]["jobs"]["a"]["energy_j"] == 60.0 * 1200
    lines = [encode_line(Header())]
    lines += [encode_line(Other(kind="draw", data={"t_s": t_s, "bill": bill})) for t_s, bill in told if bill]
    # bounds that change begin no other bill, a corridor that is cleared ends it
    lines.insert(2, encode_line(Other(kind="corridor", data={"mode": "policy"})))
    lines.append(encode_line(Other(kind="corridor", data={"mode": "none"})))
    lines.append(encode_line(Other(kind="draw", data={"t_s": 2000, "bill": {"total": {"energy_j": 5.0}}})))
    assert [one["total"]["energy_j"] for one in power_bills(parse_trace(lines))] == [120_000.0, 5.0]


def test_runs_are_fitted_when_they_are_booked_and_few_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, fits = Runs(), 0

    def counted(given: Sequence[Run]) -> Scaling:
        nonlocal fits
        fits += 1
        return fit_scaling(given)

    monkeypatch.setattr(runs_module, "fit_scaling", counted)
    ended: list[JobRecord] = []
    uses: dict[str, Use] = {}
    for number in range(210 * 2 + 40):
        # two of each name, then forty of one
        name, nodes = f"n{number // 2}" if number < 420 else "last", 1 + number % 2
        job = JobRecord(f"j{number}", JobSpec(name=name), JobRequest(name=name), client=None)
        job.state, job.start_s, job.end_s = "completed", 0.0, 2.0 + 8.0 / nodes
        job.sizes.append((0.0, nodes))
        ended.append(job)
        uses[job.id] = Use(energy_j=100.0 * nodes * job.end_s, known_s=job.end_s)
    runs.book(ended, uses)
    assert fits == len(ended)
    runs.book(ended, uses)
    told = runs.told()
    assert fits == len(ended)
    assert list(told)[-2:] == ["n209", "last"]
    assert len(told) == 50
    assert len(told["last"]["runs"]) == 8
    for one in told.values():
        assert one["fitted"]["alone_s"] == pytest.approx(2.0)
        assert one["fitted"]["node_w"] == pytest.approx(100.0)
    assert len(json.dumps(told)) < 20_000


@pytest.mark.parametrize(
    ("change", "use"),
    [
        ({"state": "failed"}, Use(100.0, 10.0)),
        ({"paused_s": 1.0}, Use(100.0, 10.0)),
        ({"sizes": [(0.0, 2), (5.0, 3)]}, Use(100.0, 10.0)),
        ({"end_s": 0.0}, Use(100.0, 10.0)),
        ({"start_s": None}, Use(100.0, 10.0)),
        ({}, Use(0.0, 10.0)),
        ({}, Use(0.0, 0.0)),
        ({}, None),
    ],
)
def test_only_runs_that_were_whole_on_one_size_say_how_a_name_scales(change, use) -> None:
    def booked(change: dict[str, object], use: Use | None) -> list[object]:
        runs, job = Runs(), JobRecord("j", JobSpec(name="n"), JobRequest(name="n"), client=None)
        # nodes that it gave back at its end are no size
        whole = {"state": "completed", "start_s": 0.0, "end_s": 10.0, "sizes": [(0.0, 2), (10.0, 0)]}
        for name, value in {**whole, **change}.items():
            setattr(job, name, value)
        runs.book([job], {} if use is None else {"j": use})
        return [row["runs"] for row in runs.told().values()]

    assert booked({}, Use(energy_j=100.0, known_s=10.0)) == [[[2, 10.0, 10.0]]]
    assert booked(change, use) == []


@live(workers=2)
async def test_runs_of_a_name_on_two_sizes_tell_how_it_scales_also_when_the_corridor_is_cleared(c, s, a, b):
    rt = await dask_hpc.install(c, power_model_idle_w=70, power_model_busy_w=200, tick_s=0.05)
    await rt.corridor(mode="monitor", upper_w=1_000)
    for nodes in (1, 2):
        async with rt.job("steps", nodes=nodes) as job:
            futures = c.map(lambda _: time.sleep(0.05), range(6), pure=False)
            await c.gather(futures)
        await job.wait()
    async with rt.job("other", nodes=1) as job:
        await c.submit(abs, 1)
        await job.cancel()
    found = (await rt.power())["history"]
    assert set(found) == {"steps"}
    runs = found["steps"]["runs"]
    ended = [job for job in engine(s).state.jobs.ended if job.name == "steps"]
    # whatever they took on this machine
    assert [(nodes, took_s) for nodes, took_s, _ in runs] == [
        (nodes, job.end_s - job.start_s) for nodes, job in zip((1, 2), ended, strict=True)
    ]
    assert all(70 * nodes <= drew_w <= 200 * nodes for nodes, _, drew_w in runs)
    assert found["steps"]["fitted"] == asdict(fit_scaling(runs))
    assert (await rt.corridor(clear=True))["history"] == found


@live(workers=2)
async def test_a_scheduler_that_closes_tells_its_trace_who_drew_what(c, s, a, b, tmp_path):
    path = tmp_path / "trace.jsonl"
    rt = await dask_hpc.install(c, trace_path=str(path), power_model_idle_w=70, power_model_busy_w=200)
    await rt.corridor(upper_w=1_000)
    await until(lambda: engine(s).state.now_s() > 0.2, "some of it is accounted")
    await s.close()
    (bill,) = power_report(read_trace(path))["bills"]
    assert bill["idle"]["mean_w"] == pytest.approx(140.0)
    assert bill["total"]["energy_j"] == pytest.approx(bill["idle"]["energy_j"])
