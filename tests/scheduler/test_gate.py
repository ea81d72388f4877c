"""Tokens by themselves: who has one, who waits for one, and who passes."""

from __future__ import annotations

import math
from random import Random
from time import time
from types import SimpleNamespace as Namespace

import pytest

from dask_hpc.scheduler.internals.allotment import HOLD
from dask_hpc.scheduler.io import tokens
from dask_hpc.scheduler.io.accounts import accounts
from dask_hpc.scheduler.io.tokens import Learner, TokenLearning
from dask_hpc.scheduler.placing.admission import Admission
from dask_hpc.scheduler.placing.gate import Gate
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.wire import IO_SECONDS
from dask_hpc_policies.jobs.jobspec import job_spec
from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.rules.io.tokens import Tokens

DISK = ("lustre", "/scratch")


class Task(Namespace):
    """Stands in a set, as tasks do."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    @property
    def processing_on(self):
        """The worker that executes it, while one does."""
        return self.worker if self.state == "processing" else None


def task(number, name="write"):
    return Task(
        key=f"{name}-{number}", prefix=Task(name=name), state="no-worker",
        worker_restrictions=HOLD, priority=(number,),
        worker=Task(long_running=set()),
    )  # fmt: skip


def gated(tokens, *tasks):
    """A gate with so many tokens for tasks that write, and a job with these held tasks."""
    gate = Gate()
    gate.needs["heat", "write"] = (DISK,)
    gate.limits[DISK] = tokens
    job = JobRecord("heat-1", job_spec("heat"), JobRequest(name="heat"), client=None)
    job.gate = gate
    for ts in tasks:
        job.park(ts)
    return gate, job


def send(job):
    """Send what may be sent, as admission does; the keys."""
    sent = []
    while (ts := job.next_held()) is not None:
        ts.state = "processing"
        sent.append(ts)
    return sent


def reopened(gate, *left):
    """What a pass of admission is given after a look at all that have a token."""
    gate.ended()
    return gate.reopen(*left)


def keys(tasks):
    return [ts.key for ts in tasks]


def test_what_is_looked_at_first_takes_its_token_when_it_is_taken():
    gate, job = gated(2, *map(task, range(4)))
    taken = []
    while job.first() is not None:
        taken.append(gate.taken(DISK))
        job.take()
    assert (taken, gate.taken(DISK), len(gate.waiting[DISK])) == ([0, 1], 2, 2)


def test_who_finds_no_token_is_passed_and_comes_back_in_its_turn():
    tasks = [*map(task, range(4)), task(9, "nap")]
    gate, job = gated(2, *tasks)
    sent = send(job)
    assert keys(sent) == ["write-0", "write-1", "nap-9"]
    assert (gate.taken(DISK), len(gate.waiting[DISK]), gate.holders(DISK)) == (2, 2, {"write-0", "write-1"})
    assert reopened(gate) == set()
    sent[0].state = "memory"
    assert gate.holders(DISK) == {"write-1"}
    assert reopened(gate) == {job}
    assert keys(send(job)) == ["write-2"]
    # one that waited and is wanted no more takes no token
    tasks[3].state = "forgotten"
    sent[1].state = tasks[2].state = "memory"
    assert reopened(gate) == set()
    assert not gate.waiting


def test_for_as_many_as_have_room_where_others_ended_nobody_looks_elsewhere():
    gate, job = gated(3, *map(task, range(8)))
    sent = send(job)
    for ended, left, looked_for in ((1, 1, set()), (2, 1, {job}), (0, 0, set())):
        for ts in sent[:ended]:
            ts.state = "memory"
        assert reopened(gate, lambda its, left=left: left * (its is job)) == looked_for
        sent = sent[ended:] + (again := send(job))
        assert len(again) == ended


def test_a_look_at_the_first_takes_no_token():
    gate, job = gated(1, task(0), task(1))
    assert job.first().key == job.first().key == "write-0"
    assert gate.taken(DISK) == 0
    (sent,) = send(job)
    assert (sent.key, job.first()) == ("write-0", None)
    # one that could not be sent has none any more, and its turn is still before the other's
    sent.state = "no-worker"
    job.park(sent)
    assert reopened(gate) == {job}
    assert keys(send(job)) == ["write-0"]
    assert len(gate.waiting[DISK]) == 1


def test_what_is_on_workers_already_counts_though_there_are_fewer_tokens():
    gate, job = gated(2, task(7))
    on_workers = [task(number) for number in range(4)]
    for ts in on_workers:
        ts.state = "processing"
    gate.adopt(DISK, on_workers)
    assert (gate.taken(DISK), send(job)) == (4, [])
    for ts in on_workers[:3]:
        ts.state = "memory"
    assert reopened(gate) == {job}
    assert keys(send(job)) == ["write-7"]


def test_a_task_that_has_left_its_thread_has_no_token_any_more():
    gate, job = gated(1, task(0), task(1))
    (outer,) = send(job)
    assert reopened(gate) == set()
    outer.processing_on.long_running.add(outer)
    assert (reopened(gate), gate.holders(DISK)) == ({job}, set())
    assert keys(send(job)) == ["write-1"]


def test_who_was_set_aside_tries_again_when_all_jobs_are_looked_at():
    woken, doubts = [], []
    for waiting in ({}, {DISK: [1]}):
        admission = Task(
            lending=Task(settle_all=int), sharing=Task(sweep=list, pass_time=int), _aside=waiting,
            queue=Task(first=lambda: None), state=Task(jobs=Task(active={}), plain=[]),
            wake=lambda its=waiting: woken.append(its), gate=Task(ended=lambda: doubts.append(1)),
        )  # fmt: skip
        Admission.sweep(admission)
    assert (woken, doubts) == ([{DISK: [1]}], [1, 1])


def test_a_task_whose_worker_is_lost_has_its_token_still_when_it_is_sent_again_at_once():
    gate, job = gated(1, task(0), task(1))
    (sent,) = send(job)
    sent.state = "no-worker"
    job.park(sent)
    assert keys(send(job)) == ["write-0"]
    assert gate.taken(DISK) == 1


def test_a_job_that_ends_leaves_nobody_behind():
    gate, job = gated(1, task(0), task(1), task(2))
    assert keys(send(job)) == ["write-0"]
    # what somebody else wants of them goes on under its heir
    job.step("cancel")
    gate.drop(job)
    assert job.gate is None
    assert not gate.waiting
    assert keys(send(job)) == ["write-1", "write-2"]


def test_tasks_that_do_not_read_and_write_any_more_need_no_tokens():
    gate, job = gated(1, task(0), task(1), task(2))
    assert keys(send(job)) == ["write-0"]
    other = JobRecord("heat-2", job_spec("heat"), JobRequest(name="heat"), client=None)
    job.span_id, other.span_id = "one", "two"
    state = Namespace(settings=Namespace(io_tokens="auto"), scheduler=Namespace(workers={}), owner={})
    learning = TokenLearning(state, gate)

    def executed(seconds, io_s=0.0):
        """Of tasks of the first job, and some of the second one's, which write for all the time they take."""
        busy = [
            ("two", "write", "io write lustre /scratch", "bytes", 1e6),
            ("two", "write", IO_SECONDS, "seconds", 1.0),
        ]
        io = [("one", "write", IO_SECONDS, "seconds", io_s)]
        return accounts([("one", "write", "thread-cpu", "seconds", seconds - io_s), *io, *busy])

    for jobs, found in (
        ([job], executed(0.9)),
        ([job], executed(10.0, io_s=1.1)),
        ([job, other], executed(10.0)),
    ):
        learning.tick(0.0, jobs, found)
        assert (gate.needs["heat", "write"], len(gate.waiting[DISK]), job.first()) == ((DISK,), 2, None)
    learning.tick(0.0, [job], executed(1.0))
    assert (gate.needs, gate.waiting) == ({}, {})
    assert keys(send(job)) == ["write-1", "write-2"]


def test_one_more_is_let_through_when_nobody_gives_a_token_back_for_long(monkeypatch):
    gate, job = gated(1, *map(task, range(3)))
    (holder,) = send(job)
    learning = TokenLearning(Namespace(settings=Namespace(io_tokens="auto")), gate)
    learning._learners[DISK] = Learner(Tokens(1))
    usual_s = 2.0
    monkeypatch.setattr(tokens.durations, "usual", lambda ts: (None, usual_s))

    def at(now_s):
        learning.tick(now_s, [job], accounts([]))
        return gate.limits[DISK]

    assert [at(now_s) for now_s in (5.0, 34.9)] == [1, 1]
    # it has ended, and the next has its token
    holder.state = "memory"
    assert reopened(gate) == {job}
    (holder,) = send(job)
    assert [at(now_s) for now_s in (35.0, 64.9, 65.0, 94.9)] == [1, 1, 2, 2]
    # tasks of that kind take long
    gate.limits[DISK], usual_s = 1, 20.0
    assert [at(now_s) for now_s in (164.9, 165.0)] == [1, 2]


def test_versions_take_tokens_and_never_wait_for_their_first():
    gate, job = gated(2, task(0), task(1), task(2))
    assert keys(send(job)) == ["write-0", "write-1"]
    lease = gate.lease(DISK)
    assert lease.open()
    lease.take()
    assert not lease.open()
    assert gate.taken(DISK) == 3
    # what a version has, no task gets
    for key in gate.holders(DISK):
        gate.tokens[DISK][key].state = "memory"
    assert reopened(gate) == {job}
    assert keys(send(job)) == ["write-2"]
    lease.give()
    assert gate.free(DISK) == 1


def test_when_the_last_task_has_ended_that_was_sent_with_another_number():
    gate, job = gated(2, *map(task, range(4)))
    first, second = send(job)
    gate.allow(DISK, 1)
    assert gate.ended_s(DISK) == math.inf
    first.state = "memory"
    reopened(gate)
    assert gate.ended_s(DISK) == math.inf
    before_s = time()
    second.state = "memory"
    reopened(gate)
    ended_s = gate.ended_s(DISK)
    assert before_s <= ended_s <= time()
    # those that are sent from then on do not change it
    (third,) = send(job)
    third.state = "memory"
    reopened(gate)
    assert gate.ended_s(DISK) == ended_s


def test_whoever_writes_versions_has_so_many_tokens_as_it_has_taken_and_not_given_back():
    first, second = (task(number) for number in range(2))
    gate, job = gated(2, first, second)
    lease = gate.lease(DISK)
    lease.take()
    assert lease.open(), "one is left"
    assert send(job) == [first]
    assert not lease.open()
    lease.give()
    assert lease.open(), "nobody waits for the first one"
    assert reopened(gate) == {job}
    assert send(job) == [second]
    assert gate.free(DISK) == 0
    lease.take()
    assert not lease.open()
    lease.give()
    assert lease.open(), "though there is none: it has none now"
    assert gate._leased == {}


def test_of_jobs_that_wait_for_one_target_the_one_that_ends_takes_nothing_of_the_others():
    gate, job = gated(0, task(0))
    other = JobRecord("heat-2", job_spec("heat"), JobRequest(name="heat"), client=None)
    other.gate = gate
    other.park(task(1))
    assert (send(job), send(other)) == ([], [])
    gate.drop(job)
    assert keys(send(job)) == ["write-0"]
    assert [ts.key for _, ts in gate.waiting[DISK]] == ["write-1"]
    # a job that was cancelled has nothing sent any more
    gate.limits[DISK], other.state = 1, "cancelled"
    assert reopened(gate) == set()
    assert gate.waiting == {}


def test_no_token_is_kept_by_what_waits_in_its_task_for_tasks_of_its_own():
    first, second, third = (task(number) for number in range(3))
    gate, job = gated(2, first, second, third)
    assert send(job) == [first, second]
    assert reopened(gate) == set()
    # others of its worker have left their thread
    first.processing_on.long_running.add(third)
    assert reopened(gate) == set()
    first.processing_on.long_running.add(first)
    assert gate.holders(DISK) == {second.key}
    assert reopened(gate) == {job}
    assert send(job) == [third]
    # the worker of one is lost
    second.state = "released"
    assert gate.holders(DISK) == {third.key}


def test_only_those_that_were_told_of_are_looked_at_and_give_their_token_back_if_they_have_ended():
    gate, job = gated(3, *map(task, range(6)))
    first, second, third = send(job)
    gate.allow(DISK, 3)
    first.state = second.state = "memory"
    for other in ("nap-1", first.key, first.key, third.key):
        gate.ended(other)
    assert (gate.reopen(), keys(send(job))) == ({job}, ["write-3"])
    assert gate.holders(DISK) == {"write-2", "write-3"}
    # nobody has told of the second, nor again of the first
    assert (gate.reopen(), send(job), gate.ended_s(DISK)) == (set(), [], math.inf)
    third.state = "memory"
    gate.ended()
    assert (gate.reopen(), keys(send(job))) == ({job}, ["write-4", "write-5"])
    assert gate.ended_s(DISK) < math.inf


@pytest.mark.parametrize("seed", range(20))
def test_who_hears_of_each_end_has_the_same_tasks_go_as_who_looks_at_all_that_have_a_token(seed):
    def sent_by(told):
        chance, sent, log = Random(seed), [], []
        gate, job = gated(chance.randint(1, 6))
        lease = gate.lease(DISK)
        for number in range(200):
            step = chance.choice(["come", "come", "end", "end", "leave", "again", "allow", "lease"])
            ts = chance.choice(sent) if sent else None
            if step == "come":
                job.park(task(number, chance.choice(["write", "write", "nap"])))
            elif step == "allow":
                gate.allow(DISK, chance.randint(1, 6))
            elif step == "lease":
                lease.give() if lease._taken else lease.take()
            elif ts is not None and step == "leave":
                ts.processing_on.long_running.add(ts)
                gate.ended()
            elif ts is not None:
                sent.remove(ts)
                ts.worker.long_running.discard(ts)
                ts.state = "memory" if step == "end" else "no-worker"
                gate.ended(ts.key)
                if step == "again":
                    job.park(ts)
            if not told:
                gate.ended()
            gate.reopen()
            sent += (new := send(job))
            log.append((keys(new), gate.taken(DISK), gate.holders(DISK), gate.ended_s(DISK) < math.inf))
            assert gate.taken(DISK) <= 7
        return log

    assert sent_by(told=True) == sent_by(told=False)
