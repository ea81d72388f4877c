"""What checkpoints cost, what they survive, and transfers that go on beside computing."""

from __future__ import annotations

from dataclasses import replace
from math import exp, expm1, inf
from statistics import fmean, stdev
from typing import Any, ClassVar

import pytest
from sim_worlds import (
    Scripted,
    application,
    ends,
    every,
    failures,
    level,
    malleable,
    rigid,
    run,
    workload,
)

from dask_hpc.errors import WorkloadError
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.formats.yaml_file import parse
from dask_hpc.sim.formats.yaml_text import dump
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.job import Compute, Job, Repeat, SchedulingPoint, Transfer
from dask_hpc.sim.model.machine import AdaptationCost, Failures, NodeFailure, Options
from dask_hpc_policies import registry
from dask_hpc_policies.decision import Checkpoint, Decision, Reason, ReasonCode, Start
from dask_hpc_policies.metrics import node_seconds

GB = 1e9


def one(job: Job, nodes: int = 4, **machine: Any) -> Any:
    machine.setdefault("domains", Domains(size=2))
    return run(workload(job, nodes=nodes, **machine))


def costs(job: Job, nodes: int = 4, **machine: Any) -> tuple[float, float, float]:
    """When it ended, the node-seconds lost, and those that were of use."""
    result = one(job, nodes, **machine)
    end_s = result.runs[0].end_s
    assert end_s is not None
    held = node_seconds(result.runs[0].nodes, 0.0, end_s)
    return end_s, result.metrics()["lost_node_s"], held - result.runs[0].wasted_node_s


SAVING = rigid("a", 2, 100.0, checkpoints=every(30.0, level(blocking_s=2.0)))


def test_commits_hold_the_job_up() -> None:
    # at 30, 62 and 94 s, each for 2 s
    result = one(SAVING)
    assert ends(result)["a"] == pytest.approx(106.0)
    found = result.metrics()
    assert (found["commits"], found["mean_checkpoint_s"], found["lost_node_s"]) == (3, 2.0, 0.0)
    assert found["useful_utilization"] == pytest.approx(200 / (4 * 106))


def test_no_commit_at_the_very_end() -> None:
    # 30 s, a commit, 30 s: at the end there is nothing to save
    assert ends(one(rigid("a", 2, 60.0, checkpoints=SAVING.checkpoints)))["a"] == pytest.approx(62.0)


def test_a_failed_job_begins_again_at_its_newest_commit() -> None:
    # commits at 30 to 32 and 62 to 64 s; the failure at 70 s costs 6 s of 2 nodes; 40 s and a commit are left
    saved = failures((70.0, "process"))
    assert costs(SAVING, failures=saved) == pytest.approx((70 + 30 + 2 + 10, 12.0, 200.0))
    bare = rigid("a", 2, 100.0)
    assert costs(bare, failures=saved) == pytest.approx((170.0, 140.0, 200.0))


def test_a_failure_in_the_middle_of_a_commit_breaks_it() -> None:
    # the commit at 62 s is not over at 63: 30 s are kept, 30 s of 2 nodes are lost
    assert costs(SAVING, failures=failures((63.0, "process"))) == pytest.approx(
        (63 + 30 + 2 + 30 + 2 + 10, 60.0, 200.0)
    )


def test_a_restart_holds_the_job_up_and_may_itself_fail() -> None:
    job = replace(SAVING, checkpoints=every(30.0, level(blocking_s=2.0, restart_s=5.0)))
    once = failures((70.0, "process"))
    assert costs(job, failures=once) == pytest.approx((70 + 5 + 42, 12.0, 200.0))
    twice = failures((70.0, "process"), (73.0, "process"))
    assert costs(job, failures=twice) == pytest.approx((73 + 5 + 42, 12.0, 200.0))
    early = failures((10.0, "process"))
    assert costs(job, failures=early)[0] == pytest.approx(10 + 106), "from nothing there is nothing to read"


def test_policies_see_what_a_job_would_begin_again_from() -> None:
    class Sees(Scripted):
        seen: ClassVar[dict[float, Any]] = {}

        def decide(self, view: Any, state: None) -> Any:
            self.seen[view.now_s] = {job.id: job.restart_s for job in view.jobs}
            return super().decide(view, state)

    later = [rigid(f"b{at_s:g}", 1, 1.0, at_s) for at_s in (20.0, 40.0, 70.0)]
    run(workload(replace(SAVING, walltime_s=100.0), *later, nodes=4), Sees({}))
    # commits end at 32 and 64 s, with 30 and 60 % of the work
    assert [Sees.seen[at_s]["a"] for at_s in (20.0, 40.0, 70.0)] == pytest.approx([100.0, 70.0, 40.0])


@pytest.mark.parametrize(
    ("severity", "kept_s", "restart_s"),
    [("process", 60.0, 1.0), ("host", 40.0, 3.0), ("domain", 0.0, 0.0)],
)
def test_a_failure_takes_the_levels_that_do_not_survive_it(
    severity: str, kept_s: float, restart_s: float
) -> None:
    # every 20 s, to memory; every second time to a partner as well; commits take no time at all
    levels = level("process", restart_s=1.0), level("host", each=2, restart_s=3.0)
    job = rigid("a", 2, 100.0, checkpoints=every(20.0, *levels))
    found = costs(job, failures=failures((70.0, severity), downtime_s=1.0))
    # the nodes that are left are as many as it needs
    assert found == pytest.approx((70 + restart_s + 100 - kept_s, 2 * (70 - kept_s), 200.0))


def test_what_is_gone_is_gone() -> None:
    # a host fails, then a process: what was in memory at 60 s did not come back with the first restart
    levels = level("process"), level("host", each=2)
    job = rigid("a", 2, 100.0, checkpoints=every(20.0, *levels))
    both = failures((70.0, "host"), (75.0, "process"))
    # both times it begins at 40 s of work; it waits for its node until 71 s
    assert costs(job, nodes=2, failures=both) == pytest.approx((75 + 60, 2 * 30.0 + 2 * 4.0, 200.0))


def test_what_is_moved_beside_computing_counts_when_it_has_ended() -> None:
    # 2 nodes of 10 GB each at 1 GB/s: the commit at 30 s is there at 42 s
    job = replace(SAVING, checkpoints=every(30.0, level(blocking_s=2.0, node_bytes=10 * GB)))
    links: dict[str, Any] = {"link_bytes_s": GB, "file_system_bytes_s": 10 * GB}
    assert ends(one(job, **links))["a"] == pytest.approx(106.0), "it goes on meanwhile"
    early = costs(job, failures=failures((41.0, "process")), **links)
    assert early == pytest.approx((41 + 106, 2 * 39.0, 200.0))
    late = one(job, failures=failures((43.0, "process")), **links)
    assert ends(late)["a"] == pytest.approx(43 + 30 + 2 + 30 + 2 + 10)
    found = late.metrics()
    # one before the failure, one that ended after it, and the last one, at 107 s of 117, as well
    assert (found["transfers_begun"], found["transfers_ended"], found["transfers_cut"]) == (3, 2, 1)
    assert found["begun_bytes"] == 60 * GB
    # what began at 105 s had 10 s until the end of the job at 117 s ... 2 nodes at 1 GB/s
    assert found["moved_bytes"] + found["cut_bytes"] == pytest.approx(60 * GB)


def test_a_level_that_is_still_being_moved_is_left_out() -> None:
    # 45 s for each copy, a commit every 30 s of computing
    job = replace(SAVING, checkpoints=every(30.0, level(node_bytes=45 * GB)))
    found = one(job, link_bytes_s=GB, file_system_bytes_s=10 * GB).metrics()
    # at 30 s, then not at 60 s, at 90 s again, and that one is cut off at 100 s
    assert (found["commits"], found["levels_left_out"], found["transfers_cut"]) == (2, 1, 1)
    assert found["cut_bytes"] == pytest.approx(2 * 35 * GB)


def test_a_program_commits_after_its_points_or_between_stages() -> None:
    stages = Repeat(stages=(Compute(work=40.0), SchedulingPoint()), times=3)
    job = application("a", 4, stages, resize="points", checkpoints=every(None, level(blocking_s=2.0)))
    # after the points at 10 and 22 s; after the last point nothing is left to do
    assert ends(one(job))["a"] == pytest.approx(34.0)
    assert costs(job, failures=failures((25.0, "process")))[0] == pytest.approx(25 + 10)
    timed = replace(job, checkpoints=every(15.0, level(blocking_s=2.0)))
    # due at 15 s, taken between two stages, at 20 s; due again at 37 s
    assert ends(one(timed))["a"] == pytest.approx(32.0)
    assert costs(timed, failures=failures((19.0, "process")))[0] == pytest.approx(19 + 32)
    assert costs(timed, failures=failures((23.0, "process"))) == pytest.approx((23 + 10, 4.0, 120.0))


@pytest.mark.parametrize("beside", [None, "file-system"])
def test_what_a_program_saves_by_itself_survives_everything(beside: Any) -> None:
    save = Transfer(size_bytes=0.0, purpose="checkpoint", beside=beside)
    stages = Compute(work=40.0), save, Compute(work=40.0), Compute(work=40.0)
    job = application("a", 4, *stages, checkpoints=every(15.0, level("process")))
    # it saves at 10 s, and commits to memory at 20 s
    assert costs(job, failures=failures((25.0, "process"))) == pytest.approx((35.0, 20.0, 120.0))
    assert costs(job, nodes=5, failures=failures((25.0, "host"))) == pytest.approx((45.0, 60.0, 120.0))


def test_a_resize_waits_for_the_commit() -> None:
    # asked for at 31 s, in the commit from 30 to 32 s
    job = malleable("a", 2, 1, 4, 100.0, checkpoints=SAVING.checkpoints)
    work = workload(job, rigid("clock", 1, 31.0), nodes=5)
    result = run(work, Scripted({31.0: {"a": 4}}))
    assert result.runs[0].nodes[1] == (32.0, 4)
    # 70 s are left, 35 on four nodes: a commit at 62 s, and 5 s
    assert ends(result)["a"] == pytest.approx(32 + 30 + 2 + 5)


def test_a_job_may_say_what_its_resizes_cost() -> None:
    job = malleable("a", 2, 1, 4, 100.0, adaptation=AdaptationCost(expand_base_s=3.0))
    jobs = job, rigid("clock", 1, 20.0)
    free = run(workload(*jobs, nodes=5), Scripted({20.0: {"a": 4}}))
    assert ends(free)["a"] == pytest.approx(20 + 3 + 40)
    dear = workload(*jobs, nodes=5, adaptation=AdaptationCost(expand_base_s=50.0))
    assert ends(run(dear, Scripted({20.0: {"a": 4}})))["a"] == pytest.approx(20 + 3 + 40)
    assert free.metrics()["resize_s"] == 3.0


def test_a_malleable_job_that_loses_a_node_loses_the_commit_under_way() -> None:
    job = malleable("a", 2, 1, 2, 100.0, checkpoints=SAVING.checkpoints)
    result = one(job, nodes=2, failures=failures((31.0, "host"), downtime_s=1000.0))
    # 70 s of two nodes are left for one: 140 s from 31 s on, with commits at 61, 93, 125 and 157 s
    assert ends(result)["a"] == pytest.approx(31 + 140 + 4 * 2)
    assert result.metrics()["commits"] == 4


@pytest.mark.parametrize(("survives", "lost_node_s"), [("process", 4 * 30 + 3 * 5), ("host", 4 * 10 + 3 * 5)])
def test_what_a_lost_node_took_is_gone_for_a_job_that_goes_on_without_it(
    survives: str, lost_node_s: float
) -> None:
    # a commit at 20 s; node 3 goes at 30 s, and a process at 35 s, 5 s after that
    job = malleable("a", 4, 2, 4, 100.0, checkpoints=every(20.0, level(survives)))
    lost = [
        NodeFailure(t_s=30.0, node=3, downtime_s=0.5),
        NodeFailure(t_s=35.0, node=0, downtime_s=0.0, severity="process"),
    ]
    end_s, found_node_s, useful_node_s = costs(job, failures=Failures(listed=tuple(lost)))
    assert (found_node_s, useful_node_s) == pytest.approx((lost_node_s, 400.0))
    assert end_s == pytest.approx(35 + (400 - (135 - lost_node_s)) / 4)


def test_a_commit_can_be_asked_for() -> None:
    job = rigid("a", 2, 100.0, checkpoints=every(1000.0, level(blocking_s=2.0)))
    clock = rigid("clock", 1, 10.0)
    work = workload(job, clock, nodes=3, failures=failures((70.0, "process")))
    assert work.machine is not None
    engine = Engine(work, registry.create("fcfs"), work.machine, Options())
    engine.run_until(10.0)
    plain = engine.fork()
    assert engine.enactor.commits.ask(engine.world.by_id["a"]) is None
    for each, end_s in ((engine, 70 + 90), (plain, 70 + 100)):
        each.run()
        assert each.world.table.rows[-1].end_s == pytest.approx(end_s)


def test_a_policy_asks_for_the_commits_that_a_job_would_make_itself() -> None:
    # work of 100 s, an interval of 30 s and commits of 2 s: at 30, 62 and 94 s
    asked = rigid("a", 2, 100.0, checkpoints=every(inf, level(blocking_s=2.0)))
    told = workload(asked, nodes=4, failures=failures((70.0, "process")))
    itself = workload(SAVING, nodes=4, failures=failures((70.0, "process")))
    by_policy = run(told, registry.create("interval-fixed", every_s=30.0), tick_s=1.0)
    by_itself = run(itself, registry.create("fcfs"), tick_s=1.0)
    assert ends(by_policy) == ends(by_itself)
    for name in ("commits", "lost_node_s", "mean_checkpoint_s"):
        assert by_policy.metrics()[name] == by_itself.metrics()[name]
    assert by_policy.metrics()["commits"] > 0
    # a policy that asks for none: all is lost
    assert run(told, registry.create("fcfs"), tick_s=1.0).metrics()["commits"] == 0
    # Young's, with 2 nodes of which each fails in 450 s in the mean: sqrt(2 * 2 * 225) = 30
    young = run(told, registry.create("interval-young", node_mtbf_s=450.0), tick_s=1.0)
    assert ends(young) == ends(by_itself)


def test_that_only_the_policy_asks_is_written_and_read_again() -> None:
    asked = rigid("a", 2, 100.0, checkpoints=every(inf, level(blocking_s=2.0)))
    text = dump(workload(asked, nodes=4))
    assert "every: policy" in text
    assert parse(text, "w").jobs[0].checkpoints == asked.checkpoints


def test_who_has_no_checkpoints_refuses_them() -> None:
    class Asks:
        name = "asks"

        def initial_state(self) -> None:
            return None

        def decide(self, view: Any, state: None) -> tuple[Decision, None]:
            why = Reason(ReasonCode.CHECKPOINT_DUE, "now")
            starts = [Start(job=job.id, nodes=2, reason=why) for job in view.pending]
            return Decision(actions=(*starts, Checkpoint(job="a", reason=why))), None

    result = run(workload(rigid("a", 2, 10.0), nodes=2), Asks())
    assert ends(result)["a"] == 10.0
    assert "commits" not in result.metrics()


def test_a_victim_is_interrupted_after_its_next_commit() -> None:
    # at 5 s the node of the big job fails; the small job commits from 5 to 5.5 s, and is robbed then
    big = rigid("big", 6, 10.0, checkpoint_interval_s=5.0)
    small = rigid("small", 2, 50.0, checkpoints=every(5.0, level("host", blocking_s=0.5)))
    work = workload(big, small, nodes=8, failures=failures((5.0, None), downtime_s=1000.0))
    result = run(work, registry.create("sfsj", timing="next-checkpoint"))
    # 45 s are left, with a commit after each 5 but the last
    assert ends(result) == {"big": pytest.approx(10.5), "small": pytest.approx(10.5 + 45 + 8 * 0.5)}


# ------------------------------------------------------------------------------------ Daly (2006)


def test_the_expected_time_is_that_of_daly() -> None:
    # 60 intervals of 50 s with commits of 2 s and restarts of 5 s, and one failure in 400 s in the mean
    interval_s, commit_s, restart_s, mtbf_s, intervals = 50.0, 2.0, 5.0, 400.0, 60
    job = rigid(
        "a", 1, interval_s * intervals,
        checkpoints=every(interval_s, level("process", blocking_s=commit_s, restart_s=restart_s)),
    )  # fmt: skip
    work = workload(job, nodes=1, failures=Failures(process_mtbf_s=mtbf_s))
    times = [ends(run(work, seed=seed))["a"] or 0.0 for seed in range(300)]
    # equation 20 there: T = M e^(R/M) (e^((tau+delta)/M) - 1) Ts / tau
    daly_s = mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + commit_s) / mtbf_s) * intervals
    # his every interval ends with a commit, and every failure with a restart; of ours the last does not
    # commit, and in the first there is nothing to read
    first_s = mtbf_s * expm1((interval_s + commit_s) / mtbf_s)
    last_s = mtbf_s * exp(restart_s / mtbf_s) * expm1(interval_s / mtbf_s)
    expected_s = daly_s * (intervals - 2) / intervals + first_s + last_s
    error_s = stdev(times) / len(times) ** 0.5
    assert abs(expected_s - daly_s) < 0.002 * daly_s
    assert abs(fmean(times) - expected_s) < 3 * error_s
    assert error_s < 0.01 * daly_s


# ------------------------------------------------------------------------------------ format

YAML = """
machine: {nodes: 4, network_bytes_s: 1e9}
jobs:
  - name: a
    nodes: 2
    runtime: 10
    checkpoints:
      every: 30 s
      levels:
        - {survives: process, blocking: 2 s}
        - {survives: domain, each: 4, node_bytes: 2e9, path: link, restart: 10 s}
  - name: b
    nodes: 2
    stages:
      - write: 1e9
        beside: link
        purpose: checkpoint
      - compute: 5
      - point:
    checkpoints: {every: points, levels: [{survives: several}]}
    adaptation: {expand_base_s: 3, shrink_base_s: 1}
"""


def test_the_format_of_checkpoints() -> None:
    work = parse(YAML, "f.yaml")
    first, second = work.jobs
    assert first.checkpoints == every(
        30.0,
        level("process", blocking_s=2.0),
        level("domain", each=4, node_bytes=2 * GB, path="link", restart_s=10.0),
    )
    assert second.checkpoints == every(None, level("several"))
    assert second.program is not None
    assert second.program.stages[0] == Transfer(size_bytes=GB, purpose="checkpoint", beside="link")
    assert second.adaptation == AdaptationCost(expand_base_s=3.0, shrink_base_s=1.0)
    again = parse(dump(work), "again.yaml")
    assert (again.jobs, again.machine) == (work.jobs, work.machine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("survives: process,", ""), r"line 10: jobs\[0\].checkpoints.levels\[0\]: 'survives' is missing"),
        (("survives: process", "survives: node"), "'node' is none of process, host, domain, several"),
        (("every: 30 s", "every: points"), "points are of jobs with stages; give a duration"),
        (("every: 30 s", "every: 0"), "expected a duration above 0 s"),
        (("every: 30 s", "often: 1"), "unknown key; known keys: every, levels"),
        (("blocking: 2 s", "path: link"), "is of bytes that are moved; give node_bytes"),
        (("each: 4", "each: 0"), "expected a whole number from 1"),
        (("[{survives: several}]", "[]"), "is empty; give one level at least"),
        (("runtime: 10", "runtime: 10\n    checkpoint_interval: 5"), "or checkpoints, not both"),
        (("beside: link", "beside: wire"), "'wire' is none of file-system, link"),
    ],
)
def test_what_cannot_be_is_said(change: tuple[str, str], message: str) -> None:
    assert change[0] in YAML
    with pytest.raises(WorkloadError, match=message):
        parse(YAML.replace(*change), "f.yaml")


def test_numbers_out_of_range_are_refused() -> None:
    for make in (
        lambda: level(each=0), lambda: level(blocking_s=-1.0), lambda: level(node_bytes=float("inf")),
        lambda: every(0.0, level()), lambda: every(1.0),
    ):  # fmt: skip
        with pytest.raises(WorkloadError, match=r"expected|give one"):
            make()
