"""Whom a notice tells that its computation has been waiting for nodes, and when: a job that stands still."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_hpc.scheduler.core.notices import Notices


class Waiting:
    """A job of the client that hears of what has been held for 10 s."""

    def __init__(self, plain=False, unserved=False, nodes=0, client="client", smallest_start=1, running=()):
        self.told = []
        self.job = SimpleNamespace(
            id="job", held=2, processing=0, held_since_s=None, noticed=False, client=client, is_default=plain,
            smallest_start=smallest_start, reason="it waits", nodes=[], reach=["own"] * nodes
        )  # fmt: skip
        # one of its tasks is on its worker, and one of others
        tasks = [SimpleNamespace(key=key) for key in ("its", "theirs", "forgotten")]
        own, there = SimpleNamespace(address="own", processing=tasks), SimpleNamespace(address="other")
        workers = {"own": own, "other": there}
        self.scheduler = SimpleNamespace(
            log_event=lambda topic, event: self.told.append(event["text"]),
            running=[workers[name] for name in running],
            workers=workers,
        )
        self.other = other = SimpleNamespace(id="other", nodes=["node"])
        self._notices = Notices(
            SimpleNamespace(
                jobs=SimpleNamespace(active={"job": self.job}, named=[self.job, other]),
                plain=[self.job] if plain else [],
                starving=lambda job: unserved,
                nodes_up=lambda job: nodes,
                settings=SimpleNamespace(held_notice_s=10.0),
                owner={"its": SimpleNamespace(job=self.job), "theirs": SimpleNamespace(job=other)},
                scheduler=self.scheduler,
            )
        )

    def at(self, *times_s, **counts):
        """Has it looked at these times, with these counts of tasks; what has been told then."""
        vars(self.job).update(counts)
        for now_s in times_s:
            self._notices.tick(now_s)
        return len(self.told)


def test_a_job_without_a_node_is_told_once_and_after_a_while():
    waits = Waiting()
    assert waits.at(100.0, 109.9) == 0
    assert waits.at(110.1, 200.0) == 1
    (text,) = waits.told
    assert text == (
        "Job job has been held for 10 s: it waits. Remedy: wait, cancel a running job (other) or add workers."
    )
    waits = Waiting()
    waits.other.nodes = []
    assert waits.at(100.0, 111.0) == 1
    assert "cancel a running job (none is running) or add workers" in waits.told[0]


@pytest.mark.parametrize("counts", [{"processing": 1}, {"held": 0}])
def test_what_runs_on_borrowed_slots_or_holds_nothing_does_not_wait_and_the_while_begins_anew(counts):
    waits = Waiting()
    assert waits.at(100.0) == waits.at(101.0, 150.0, **counts) == 0
    assert waits.at(151.0, 160.0, held=2, processing=0) == 0
    assert waits.at(161.5) == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"nodes": 1, "running": ["own"]}, 0),
        ({"client": None}, 0),
        # plain work has no nodes of its own; what counts is whether it is to have some and has none
        ({"plain": True}, 0),
        ({"plain": True, "unserved": True, "nodes": 1}, 1),
    ],
)
def test_who_has_a_node_or_nobody_to_tell_is_not_told(how, told):
    assert Waiting(**how).at(100.0, 120.0) == told


@pytest.mark.parametrize(
    ("how", "advised"), [({"smallest_start": 4}, True), ({"smallest_start": 4, "plain": True}, False)]
)
def test_a_job_that_starts_on_several_nodes_is_advised_to_ask_for_fewer(how, advised):
    waits = Waiting(unserved=True, **how)
    waits.at(100.0, 120.0)
    assert ("ask for fewer than 4 nodes, " in waits.told[0]) is advised


def test_a_job_whose_workers_are_all_paused_is_told_so_unless_others_execute_its_tasks():
    paused = Waiting(nodes=1, running=["other"])
    assert paused.at(100.0) == paused.at(101.0, 150.0, processing=2) == 0
    assert paused.at(200.0, 209.9, processing=1) == 0
    assert paused.at(211.0) == 1
    assert paused.told == [
        "Job job has been held for 11 s: none of its workers takes tasks, since its memory is full or it is "
        "being closed. Remedy: let go of results or add workers."
    ]
    for goes_on in (Waiting(nodes=1, running=["own"]), Waiting(nodes=1, running=["own", "other"])):
        assert goes_on.at(100.0, 150.0) == 0
