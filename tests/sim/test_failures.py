"""Failures of processes, hosts and domains, and what is told of them."""

from __future__ import annotations

from typing import Any

import pytest
from sim_worlds import ends, malleable, rigid, run, workload

from dask_hpc.errors import WorkloadError
from dask_hpc.sim import Workload
from dask_hpc.sim.engine.engine import Engine
from dask_hpc.sim.engine.recording import recorded
from dask_hpc.sim.formats.yaml_file import parse
from dask_hpc.sim.formats.yaml_text import dump
from dask_hpc.sim.model.domains import Domains
from dask_hpc.sim.model.machine import Failures, NodeFailure, Options
from dask_hpc.trace.records import LossEvent, NodeEvent
from dask_hpc_policies import registry

PAIRS = Domains(size=2)


def failing(*jobs: Any, nodes: int = 8, domains: Domains | None = PAIRS, **failure: Any) -> Workload:
    listed = NodeFailure(**{"t_s": 5.0, "node": 0, "downtime_s": 100.0, **failure})
    return workload(*jobs, nodes=nodes, domains=domains, failures=Failures(listed=(listed,)))


def losses(work: Workload, seed: int = 0) -> list[LossEvent]:
    assert work.machine is not None
    options = Options(snapshots=True, node_ids=True, seed=seed)
    engine = Engine(work, registry.create("fcfs"), work.machine, options)
    return [record for record in recorded(engine) if isinstance(record, LossEvent)]


def test_when_a_process_fails_its_job_begins_again_at_once_on_the_same_nodes() -> None:
    # all eight nodes are needed, so that it could not begin again were one of them down
    assert ends(run(failing(rigid("a", 8, 10.0), severity="process"))) == {"a": 15.0}
    assert ends(run(failing(rigid("a", 8, 10.0), severity="host"))) == {"a": 115.0}
    assert ends(run(failing(malleable("a", 4, 1, 4, 10.0), severity="process"))) == {"a": 15.0}


def test_a_process_that_fails_where_nobody_computes_concerns_no_job() -> None:
    assert ends(run(failing(rigid("a", 4, 10.0), severity="process", node=7))) == {"a": 10.0}


def test_all_nodes_of_a_domain_fail_at_once() -> None:
    # a holds nodes 0 to 2, b 3 to 5: the domain of nodes 2 and 3 takes one of each; b finds three others
    jobs = malleable("a", 3, 1, 3, 12.0), rigid("b", 3, 12.0)
    result = run(failing(*jobs, severity="domain", node=3))
    assert ends(result) == {"a": pytest.approx(5 + 7 * 3 / 2), "b": pytest.approx(5 + 12)}
    both = run(failing(malleable("a", 4, 1, 4, 12.0), severity="domain", node=1))
    assert ends(both)["a"] == pytest.approx(5 + 7 * 4 / 2), "it goes on with the two that are left"
    few = run(failing(malleable("a", 4, 3, 4, 12.0), severity="domain", node=1))
    assert few.rows[0].restarts == 1, "two are fewer than it needs"


def test_the_trace_has_each_loss_with_its_class_and_exposure() -> None:
    listed = (
        NodeFailure(t_s=2.0, node=1, downtime_s=0.0, severity="process"),
        NodeFailure(t_s=3.0, node=4, downtime_s=4.0, severity="host"),
        NodeFailure(t_s=4.0, node=6, downtime_s=4.0, severity="domain"),
        NodeFailure(t_s=5.0, node=5, downtime_s=1.0, severity="domain"),
        NodeFailure(t_s=5.5, node=4, downtime_s=1.0, severity="host"),
    )
    work = workload(rigid("a", 2, 20.0), nodes=8, domains=PAIRS, failures=Failures(listed=listed))
    found = [(one.t_s, one.severity, one.nodes, one.exposure_node_s) for one in losses(work)]
    assert found == [
        (2.0, "process", ("n1",), 16.0),
        (3.0, "host", ("n4",), 24.0),
        (4.0, "domain", ("n6", "n7"), 31.0),
        # the other node of that domain is down already: what is lost now is one host
        (5.0, "host", ("n5",), 36.0),
    ]


def test_all_nodes_of_a_host_fail_at_once_and_one_alone_is_a_process() -> None:
    listed = (
        NodeFailure(t_s=2.0, node=1, downtime_s=1.0),
        NodeFailure(t_s=4.0, node=1, downtime_s=1.0, severity="host"),
        NodeFailure(t_s=6.0, node=1, downtime_s=1.0, severity="domain"),
        NodeFailure(t_s=8.0, node=6, downtime_s=9.0),
        NodeFailure(t_s=9.0, node=7, downtime_s=1.0, severity="host"),
        NodeFailure(t_s=9.5, node=4, downtime_s=1.0, severity="host"),
    )
    hosts = Domains(names=("h0", "h0", "h1", "h1", None, None, "n4", "n4"))
    work = workload(
        rigid("a", 2, 20.0), nodes=8, domains=Domains(size=4), hosts=hosts, failures=Failures(listed=listed)
    )
    assert [(one.t_s, one.severity, one.nodes) for one in losses(work)] == [
        # its host has another node, which is still there
        (2.0, "process", ("n1",)),
        (4.0, "host", ("n0", "n1")),
        (6.0, "domain", ("n0", "n1", "n2", "n3")),
        (8.0, "process", ("n6",)),
        # the other one of that host is down already
        (9.0, "host", ("n7",)),
        # whose host is not known has one for itself
        (9.5, "host", ("n4",)),
    ]


@pytest.mark.parametrize(
    ("hosts", "number"), [(None, 16), (PAIRS, 8), (Domains(names=("a", "a", *[None] * 14)), 15)]
)
def test_random_failures_strike_each_host_as_often(hosts: Domains | None, number: int) -> None:
    failures = Failures(node_mtbf_s=1000.0, downtime_s=1e-3)
    jobs = [rigid(f"j{i}", 1, 20_000.0) for i in range(16)]
    work = workload(*jobs, nodes=16, hosts=hosts, domains=Domains(size=16), failures=failures)
    assert work.machine is not None
    engine = Engine(work, registry.create("fcfs"), work.machine, Options())
    engine.run_until(20_000.0)
    assert engine.failures.losses is not None
    counts = engine.failures.losses.by_class()
    assert abs(counts.pop("host") - 20 * number) < 4 * (20 * number) ** 0.5
    assert set(counts.values()) == {0}


def test_a_policy_sees_hosts_and_domains() -> None:
    work = workload(rigid("a", 2, 20.0), nodes=4, domains=Domains(names=("x", "x", None, "y")), hosts=PAIRS)
    assert work.machine is not None
    for options in (Options(snapshots=True), Options(snapshots=True, node_ids=True)):
        engine = Engine(work, registry.create("fcfs"), work.machine, options)
        nodes = engine.enactor.asker.snapshot("tick").nodes  # type: ignore[attr-defined]
        assert [(one.host, one.domain) for one in nodes] == [
            ("h0", "x"), ("h0", "x"), ("h1", None), ("h1", "y"),
        ]  # fmt: skip


def test_node_seconds_are_watched_while_there_are_jobs() -> None:
    # two nodes are down from 5 to 8 s; at 20 s the last job ends, what fails then is not watched any more
    failures = Failures(listed=(
        NodeFailure(t_s=5.0, node=6, downtime_s=3.0, severity="domain"),
        NodeFailure(t_s=1000.0, node=6, downtime_s=3.0, severity="domain"),
    ))  # fmt: skip
    result = run(workload(rigid("a", 2, 20.0), nodes=8, domains=PAIRS, failures=failures))
    assert result.metrics()["exposure_node_s"] == 8 * 20 - 2 * 3


def test_nothing_is_told_of_classes_where_nobody_names_one() -> None:
    work = failing(rigid("a", 4, 10.0), domains=None)
    assert losses(work) == []
    assert work.machine is not None
    engine = Engine(work, registry.create("fcfs"), work.machine, Options(snapshots=True, node_ids=True))
    assert any(isinstance(one, NodeEvent) and one.state == "lost" for one in recorded(engine))


def test_a_job_that_comes_after_an_idle_time_is_struck_as_one_that_comes_at_once() -> None:
    # what fails while nothing runs is passed over, up to the next job and not to what is listed for later
    later = NodeFailure(t_s=1e6, node=0, downtime_s=1.0)
    failures = Failures(listed=(later,), node_mtbf_s=1000.0, downtime_s=1.0)
    jobs = [rigid("a", 1, 1.0), rigid("b", 1, 2000.0, submit_s=20_000.0)]
    assert [run(workload(*jobs, nodes=4, failures=failures), seed=seed).rows[1].restarts > 0
            for seed in range(4)].count(True) >= 2  # fmt: skip


def test_random_failures_of_one_class_are_the_same_whatever_others_there_are() -> None:
    jobs = [rigid(f"j{i}", 4, 50.0, submit_s=10.0 * i) for i in range(10)]

    def times(what: str, **mtbf_s: Any) -> list[tuple[float, tuple[str, ...]]]:
        failures = Failures(downtime_s=1.0, **mtbf_s)
        work = workload(*jobs, nodes=8, domains=PAIRS, failures=failures)
        return [(one.t_s, one.nodes) for one in losses(work, seed=3) if one.severity == what][:3]

    alone = times("process", process_mtbf_s=400.0)
    assert len(alone) == 3
    assert times("process", process_mtbf_s=400.0, node_mtbf_s=2000.0) == alone
    assert len(times("domain", domain_mtbf_s=200.0)) == 3


def test_random_failures_go_on_however_many_there_would_have_been_while_nothing_ran() -> None:
    # some 40,000 while a node that failed is down; a run of 5 s has none every seventh time
    failures = Failures(node_mtbf_s=10.0, downtime_s=100_000.0)
    work = workload(rigid("a", 4, 5.0), nodes=4, failures=failures)
    restarts = [run(work, seed=seed).rows[0].restarts for seed in range(30)]
    assert 4 < sum(restarts) / len(restarts) < 10
    assert max(restarts) > 10


def test_rates_are_those_that_were_asked_for() -> None:
    # 16 nodes for 20,000 s, all of them held: 320 processes and 80 domains of two nodes are expected
    failures = Failures(process_mtbf_s=1000.0, domain_mtbf_s=2000.0, downtime_s=1e-3)
    work = workload(*[rigid(f"j{i}", 1, 20_000.0) for i in range(16)], domains=PAIRS, failures=failures)
    assert work.machine is not None
    engine = Engine(work, registry.create("fcfs"), work.machine, Options())
    engine.run_until(20_000.0)
    assert engine.failures.losses is not None
    counts = engine.failures.losses.by_class()
    assert abs(counts["process"] - 320) < 4 * 320**0.5
    assert abs(counts["domain"] - 80) < 4 * 80**0.5
    assert counts["host"] == counts["several"] == 0


YAML = """
machine:
  nodes: 4
  failures:
    - {at: 1 h, node: 2, class: process}
    - {at: 2 h, node: 1, down: 5 min, class: domain}
    - {at: 3 h, node: 1, down: 5 min, class: host}
    - {at: 4 h, node: 1, down: 5 min}
  domains: {size: 2}
  hosts: [x, x, null, y]
  process_mtbf: 30 days
  domain_mtbf: 100 days
jobs:
  - {name: a, nodes: 2, runtime: 10}
"""


def test_the_format_of_failures_and_domains() -> None:
    machine = parse(YAML, "f.yaml").machine
    assert machine is not None
    assert [one.severity for one in machine.failures.listed] == ["process", "domain", "host", None]
    assert machine.failures.process_mtbf_s == 30 * 86_400
    assert machine.domains == Domains(size=2)
    assert machine.hosts == Domains(names=("x", "x", None, "y"))
    named = YAML.replace("{size: 2}", "[rack a, rack a, rack b, rack b]")
    for text in (YAML, named):
        work = parse(text, "f.yaml")
        assert parse(dump(work), "again").machine == work.machine


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("class: host", "class: node"), "line 7: .*'node' is none of process, host, domain"),
        (("class: process", "class: process, down: 3"), "line 5: .*stays usable; leave down out"),
        (("{size: 2}", "[a, b]"), "line 2: machine: domains: 2 nodes have a domain, the machine has 4"),
        (("[x, x, null, y]", "[a, b]"), "line 2: machine: hosts: 2 nodes have a host, the machine has 4"),
        (("{size: 2}", "[null, null, null, null]"), "a domain fails, but no domains are given"),
        (("{size: 2}", "[]"), "line 9: machine.domains: is empty; give one name"),
        (("{size: 2}", "{size: 9}"), "expected a whole number from 1 to 4, got 9"),
        (("{size: 2}", "4"), "expected {size: nodes in each}, or a list"),
        (("  domains: {size: 2}\n", ""), "a domain fails, but no domains are given"),
    ],
)
def test_what_cannot_be_is_said(change: tuple[str, str], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        parse(YAML.replace(*change), "f.yaml")
