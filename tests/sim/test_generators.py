"""Generated workloads: the published tables, the same workload from the same seed, errors for options."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.generators import esp, io_aware
from dask_hpc.sim.generators.generator import Generator
from dask_hpc.sim.model.job import Compute, Delay, Job, Repeat, Stage, Transfer, amount, computing_s
from dask_hpc.sim.model.workload import Workload
from dask_hpc.sim.workloads import sources
from dask_hpc.sim.workloads.sources import load
from dask_hpc_policies.jobs import constraints

SMALL = {"io-aware": {"jobs": 200}, "poisson": {"jobs": 200}}


def make(name: str, seed: int = 0, **options: object) -> Workload:
    return load(f"builtin:{name}", seed=seed, **options)


@pytest.mark.parametrize("name", sources.BUILTIN)
def test_every_workload_is_sound(name: str) -> None:
    workload = make(name, seed=3, **SMALL.get(name, {}))
    assert (workload.name, workload.source, workload.seed) == (name, f"builtin:{name}", 3)
    assert workload.machine is not None
    assert len({job.id for job in workload.jobs}) == len(workload.jobs)
    assert [job.submit_s for job in workload.jobs] == sorted(job.submit_s for job in workload.jobs)
    for job in workload.jobs:
        assert 1 <= job.min_nodes <= (job.nodes or job.preferred_nodes or job.min_nodes) <= job.max_nodes
        assert job.max_nodes <= workload.machine.nodes
        assert job.nodes is None or constraints.is_legal(job.constraint, job.nodes)
        assert (job.runtime_s > 0) != (job.program is not None)
        assert job.walltime_s is None or job.walltime_s > 0
        assert (job.kind == "rigid") == (job.min_nodes == job.max_nodes)


@pytest.mark.parametrize("name", sources.BUILTIN)
def test_the_seed_decides_alone(name: str) -> None:
    options = SMALL.get(name, {})
    assert make(name, 5, **options) == make(name, 5, **options)
    drawn = {"corridor", "esp", "io-aware", "poisson", "node-failures"}
    drawn |= {"mebf-compute", "mebf-read", "mebf-write", "mebf-mixed"}
    assert (make(name, 5, **options).jobs != make(name, 6, **options).jobs) == (name in drawn)


def test_summaries_and_options_are_there_to_be_shown() -> None:
    for generator in sources.BUILTIN.values():
        assert isinstance(generator, Generator)
        assert generator.summary.endswith((".", ".")), generator.summary
        assert all(option.help for option in generator.options)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("esp", {"malleabel": 1}, "builtin:esp: unknown parameter 'malleabel'; known parameters: malleable"),
        ("esp", {"malleable": 2}, "'malleable' cannot be 2: it must be a number from 0 to 1"),
        ("esp", {"nodes": "many"}, "'nodes' cannot be 'many'"),
        ("esp", {"nodes": 1, "interval_s": "x"}, "'interval_s' cannot be 'x'"),
        ("poisson", {"load": 0}, "'load' cannot be 0"),
        ("figure-5-1", {"x": 1}, "unknown parameter 'x'; known parameters: none"),
        ("esp-10", {"which": 11}, "'which' cannot be 11"),
        ("esp11", {}, "unknown workload 'esp11'"),
    ],
)
def test_a_bad_option_is_one_error(name: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        make(name, **options)
    assert said in str(error.value)


def test_options_may_be_texts_as_on_the_command_line() -> None:
    assert make("esp", malleable="0.5", nodes="64", interval_s="1 min", z_first="true") == make(
        "esp", malleable=0.5, nodes=64, interval_s=60, z_first=True
    )


def test_figure_5_1_and_node_stealing_are_those_of_the_tables() -> None:
    assert [(job.nodes, job.runtime_s) for job in make("figure-5-1").jobs] == [(8, 4), (4, 4), (2, 4), (8, 4)]
    toy = make("node-stealing")
    assert [(job.nodes, job.runtime_s) for job in toy.jobs] == [(1, 8), (1, 5), (6, 10), (6, 10), (1, 2)]
    assert toy.machine is not None
    (failure,) = toy.machine.failures.listed
    assert (toy.machine.nodes, failure.node, failure.t_s, failure.downtime_s) == (8, 2, 1, 5)


def test_five_jobs_says_that_its_durations_are_ours() -> None:
    workload = make("five-jobs")
    assert [(job.nodes, job.submit_s) for job in workload.jobs] == [
        (4, 0), (16, 100), (6, 200), (10, 300), (8, 400),
    ]  # fmt: skip
    assert {(job.kind, job.min_nodes, job.max_nodes) for job in workload.jobs} == {("malleable", 4, 16)}
    assert "chosen by us" in workload.notes[0]
    first = workload.jobs[0]
    assert computing_s(first, 16) == pytest.approx(700 * (4 / 16) ** 0.3)
    # no job may ever outlive its walltime
    for job in workload.jobs:
        assert job.walltime_s == pytest.approx(max(computing_s(job, n) for n in range(4, 17)))
    assert {job.kind for job in make("five-jobs", malleable=0).jobs} == {"rigid"}


def work_node_s(jobs: tuple[Job, ...]) -> float:
    return sum((job.nodes or 0) * job.runtime_s for job in jobs)


def test_esp_10_has_the_published_work_and_our_order() -> None:
    workload = make("esp-10")
    assert work_node_s(workload.jobs) == 35_916
    assert "".join(job.name for job in workload.jobs) == "DZCDJJCGGG"
    assert [job.submit_s for job in workload.jobs] == [60 * place for place in range(10)]
    counts = Counter((job.name, job.nodes, job.runtime_s) for job in workload.jobs)
    assert counts == {
        ("C", 8, 1204): 2, ("D", 4, 513): 2, ("G", 2, 696): 3, ("J", 1, 522): 2, ("Z", 16, 458): 1,
    }  # fmt: skip
    for seed in range(20):
        order = [job.name for job in make("esp-10", seed, order="random").jobs]
        assert (order[1], sorted(order)) == ("Z", sorted("DZCDJJCGGG"))


def test_esp_10_shares_and_the_ten_choices_of_one() -> None:
    for share, number in ((0.1, 1), (0.5, 5), (1.0, 10)):
        malleable = [job for job in make("esp-10", malleable=share).jobs if job.kind == "malleable"]
        assert len(malleable) == number
        assert {(job.min_nodes, job.max_nodes) for job in malleable} == {(1, 16)}
    chosen = [
        [job.id for job in make("esp-10", which=which).jobs if job.kind == "malleable"]
        for which in range(1, 11)
    ]
    assert [len(ids) for ids in chosen] == [1] * 10
    assert len({id for ids in chosen for id in ids}) == 10


def test_esp_10_with_times_divided_by_100() -> None:
    slow, fast = make("esp-10"), make("esp-10", time_scale=0.01)
    for one, other in zip(slow.jobs, fast.jobs, strict=True):
        assert other.runtime_s == pytest.approx(one.runtime_s / 100)
        assert other.submit_s == pytest.approx(one.submit_s / 100)
        assert other.walltime_s == pytest.approx((one.walltime_s or 0) / 100)


def test_esp_is_the_published_table() -> None:
    workload = make("esp")
    assert len(workload.jobs) == 230
    assert work_node_s(workload.jobs) == 351_238
    assert workload.jobs[-1].submit_s == 229 * 30
    counts = Counter(job.name for job in workload.jobs)
    assert [(kind.name, counts[kind.name]) for kind in esp.TYPES] == [
        ("A", 75), ("B", 9), ("C", 3), ("D", 3), ("E", 3), ("F", 9), ("G", 6), ("H", 6), ("I", 24),
        ("J", 24), ("K", 15), ("L", 36), ("M", 15), ("Z", 2),
    ]  # fmt: skip
    sizes = {job.name: job.nodes for job in workload.jobs}
    assert sizes == {
        "A": 1, "B": 2, "C": 16, "D": 8, "E": 16, "F": 2, "G": 4, "H": 5, "I": 1, "J": 2, "K": 3, "L": 4,
        "M": 8, "Z": 32,
    }  # fmt: skip


def test_esp_puts_the_jobs_of_full_size_by_the_rule() -> None:
    for seed in range(5):
        names = "".join(job.name for job in make("esp", seed).jobs)
        assert names.index("Z") == 23
        assert names.rindex("Z") == 183
    firsts = {
        "".join(job.name for job in make("esp", seed, z_order="random").jobs).index("Z") for seed in range(5)
    }
    assert len(firsts) > 1
    first = make("esp", z_first=True).jobs
    assert {job.name for job in first if job.priority} == {"Z"}


def test_esp_bounds_are_the_legal_ones() -> None:
    jobs = make("esp", malleable=1.0).jobs
    bounds = {job.name: (job.kind, job.min_nodes, job.max_nodes) for job in jobs}
    assert bounds["A"] == ("malleable", 1, 32)
    assert bounds["B"] == ("malleable", 1, 32)
    assert bounds["D"] == ("malleable", 2, 32)
    assert bounds["H"] == ("malleable", 1, 31)
    assert sum(job.kind == "malleable" for job in make("esp", malleable=0.1).jobs) == 23
    assert len({job.speed for job in jobs}) == 3


@given(st.integers(2, 5000))
def test_esp_sizes_are_legal_on_any_machine(nodes: int) -> None:
    for kind in esp.TYPES:
        size = esp.legal_size(kind, nodes)
        assert 1 <= size <= nodes
        assert constraints.is_legal(kind.constraint, size)
        # the nearest legal size is at most a third away (powers of two), or two nodes
        assert abs(size - kind.fraction * nodes) <= max(2, kind.fraction * nodes / 3 + 1)


def loads(workload: Workload) -> list[tuple[float, float, int]]:
    """Work (node-s) and bytes of one iteration of each job, and the number of iterations."""
    rows = []
    for job in workload.jobs:
        assert job.program is not None
        compute, write, rest = job.program.stages
        assert isinstance(compute, Compute)
        assert isinstance(write, Transfer)
        assert isinstance(rest, Repeat)
        rows.append((amount(compute.work, 1), amount(write.size_bytes, 1), round(amount(rest.times, 1)) + 1))
    return rows


def test_io_aware_has_the_statistics_of_its_table() -> None:
    workload = make("io-aware", seed=1)
    rows = loads(workload)
    assert len(rows) == 4000
    assert workload.machine is not None
    assert (workload.machine.nodes, workload.machine.file_system_bytes_s) == (500, 48e9)
    assert workload.machine.link_bytes_s == 12.5e9
    # Beta(1, 1): mean 1/2, standard deviation sqrt(1/12); in units of the largest
    work = [row[0] / 2000 for row in rows]
    assert statistics.mean(work) == pytest.approx(1 / 2, abs=0.02)
    assert statistics.stdev(work) == pytest.approx(12**-0.5, abs=0.01)
    calm = [row[1] / (256 * 2**30) for i, row in enumerate(rows, 1) if not io_aware.in_peak(i)]
    peak = [row[1] / (256 * 2**30) for i, row in enumerate(rows, 1) if io_aware.in_peak(i)]
    assert (len(calm), len(peak)) == (3200, 800)
    # Beta(2, 8): mean 1/5, variance 16/1100; Beta(1, 0.1): mean 10/11
    assert statistics.mean(calm) == pytest.approx(0.2, abs=0.01)
    assert statistics.stdev(calm) == pytest.approx((16 / 1100) ** 0.5, abs=0.01)
    assert statistics.mean(peak) == pytest.approx(10 / 11, abs=0.03)
    assert Counter(row[2] for row in rows).keys() == set(range(10, 26))
    assert statistics.mean(row[2] for row in rows) == pytest.approx(17.5, abs=0.3)
    gaps = [b.submit_s - a.submit_s for a, b in zip(workload.jobs, workload.jobs[1:], strict=False)]
    assert statistics.mean(gaps) == pytest.approx(10, rel=0.06)
    share = sum(job.kind == "malleable" for job in workload.jobs) / 4000
    assert share == pytest.approx(0.2, abs=0.03)
    # lower bounds of the makespan, in ks: nodes alone and file system alone nearly match
    assert sum(w * times for w, _, times in rows) / 500 == pytest.approx(140e3, rel=0.05)
    assert sum(b * times for _, b, times in rows) / 48e9 == pytest.approx(137e3, rel=0.05)


def test_io_aware_sizes_and_intensities_follow_from_the_loads() -> None:
    workload = make("io-aware", seed=2, jobs=400)
    for job, (work, size_bytes, _) in zip(workload.jobs, loads(workload), strict=True):
        mean = (work / 2000 + size_bytes / (256 * 2**30)) / 2
        assert job.preferred_nodes == 2 + round(18 * mean)
        low_high = (2, 20) if job.kind == "malleable" else (job.preferred_nodes, job.preferred_nodes)
        assert (job.min_nodes, job.max_nodes) == low_high
        assert [n for n, _ in job.io_by_nodes] == list(range(job.min_nodes, job.max_nodes + 1))
        io_s = size_bytes / 4e9
        for n, share in job.io_by_nodes:
            assert share == pytest.approx(io_s / (io_s + work / n))
        assert job.io_intensity == dict(job.io_by_nodes)[job.preferred_nodes or 0]


def test_an_option_of_io_aware_changes_only_what_it_is_for() -> None:
    base, rigid = make("io-aware", jobs=300), make("io-aware", jobs=300, malleable=0, mean_gap_s=0)
    assert loads(base) == loads(rigid)
    assert {job.submit_s for job in rigid.jobs} == {0}
    assert {job.kind for job in rigid.jobs} == {"rigid"}


def test_the_peaks_keep_their_shares() -> None:
    assert [i for i in (446, 447, 646, 647) if io_aware.in_peak(i)] == [447, 646]
    assert sum(io_aware.in_peak(i, 400) for i in range(1, 401)) == 80


def spent_s(job: Job) -> Counter[str]:
    """Time of a job on its preferred size on a full machine, by kind of stage."""
    nodes = job.preferred_nodes or 0
    spent: Counter[str] = Counter()

    def walk(stages: tuple[Stage, ...], times: float) -> None:
        for stage in stages:
            if isinstance(stage, Repeat):
                walk(stage.stages, times * amount(stage.times, nodes))
            elif isinstance(stage, Compute):
                spent["compute"] += times * amount(stage.work, nodes) / stage.speed(nodes)
            elif isinstance(stage, Delay):
                spent["messages"] += times * amount(stage.seconds, nodes)
            elif isinstance(stage, Transfer):
                # 500 nodes write at once, or one of each 7, which is the mean size, reads
                share = 48e9 / (500 if stage.direction == "write" else 500 / 7)
                taking_part = nodes if stage.participants is None else amount(stage.participants, nodes)
                spent[stage.direction] += times * amount(stage.size_bytes, nodes) / share / taking_part

    assert job.program is not None
    walk(job.program.stages, 1)
    return spent


@pytest.mark.parametrize(("name", "kind"), [("compute", "compute"), ("read", "read"), ("write", "write")])
def test_mebf_applications_spend_their_time_as_they_are_called(name: str, kind: str) -> None:
    workload = make(f"mebf-{name}", seed=4, jobs=100)
    for job in workload.jobs:
        spent = spent_s(job)
        assert max(spent, key=lambda key: spent[key]) == kind
        assert 3500 < sum(spent.values()) < 23_000
        assert (job.min_nodes, job.max_nodes) == (
            (job.preferred_nodes or 0) // 2, 2 * (job.preferred_nodes or 0),
        )  # fmt: skip
    assert {job.submit_s for job in workload.jobs} == {0}
    assert {job.priority for job in workload.jobs} == {0, 1}
    assert {job.nodes for job in workload.jobs} == {None}
    exact = make(f"mebf-{name}", seed=4, jobs=100, start="preferred").jobs
    assert [job.nodes for job in exact] == [job.preferred_nodes for job in workload.jobs]


def test_mebf_mixed_has_exact_shares() -> None:
    counts = Counter(job.application for job in make("mebf-mixed", jobs=300).jobs)
    assert counts == {"compute": 150, "read": 75, "write": 75}
    assert len(make("mebf-mixed", jobs=7).jobs) == 7


def test_poisson_has_the_load_that_was_asked_for() -> None:
    workload = make("poisson", seed=7, jobs=20_000, nodes=64, load=0.7)
    span_s = workload.jobs[-1].submit_s
    assert work_node_s(workload.jobs) / (64 * span_s) == pytest.approx(0.7, rel=0.05)
    assert {job.nodes for job in workload.jobs} == {1, 2, 4, 8, 16, 32}
    gaps = [b.submit_s - a.submit_s for a, b in zip(workload.jobs, workload.jobs[1:], strict=False)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.05)
    malleable = [job for job in make("poisson", malleable=1.0).jobs if job.nodes == 4]
    assert {(job.min_nodes, job.max_nodes) for job in malleable} == {(1, 16)}
