"""Users of one cluster submit at fixed times, and each gets what is theirs."""

from __future__ import annotations

import operator
import time

import dask
import distributed
import pytest
from helpers import until

import dask_hpc
from dask_hpc.demo.users import Submission, serve


@pytest.fixture(scope="module", params=[distributed.LocalCluster, dask_hpc.LocalCluster])
def cluster(request):
    with request.param(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        yield cluster


def products(user, name, at_s, factor, **more):
    """A submission of three products."""

    def submit(client):
        return client.map(operator.mul, range(3), [factor] * 3, pure=False)

    return Submission(user=user, name=name, at_s=at_s, submit=submit, **more)


@pytest.mark.parametrize("managed", [False, True])
def test_every_user_gets_the_results_of_their_own_submissions(cluster, managed):
    asked = [
        products("bob", "later", 0.1, 3),
        products("ada", "first", 0.0, 2),
        Submission(
            user="eve", name="delayed", at_s=0.05,
            submit=lambda client: client.compute(dask.delayed(operator.add)(1, 2)),
        ),
    ]  # fmt: skip

    served = serve(cluster, asked, managed=managed, timeout_s=60)

    assert [each.name for each in served.values()] == ["first", "delayed", "later"]
    assert served["first"].results == (0, 2, 4)
    assert served["later"].results == (0, 3, 6)
    assert served["delayed"].results == (3,)
    for each in served.values():
        assert each.at_s <= each.submitted_s <= each.end_s
        assert each.turnaround_s == each.end_s - each.at_s


def test_a_managed_submission_is_a_job_of_its_user_that_declares_a_name(cluster):
    seen = []

    def look(client):
        seen.extend(dask_hpc.runtime(client).snapshot().jobs)
        return client.submit(operator.add, 1, 2, pure=False)

    serve(cluster, [Submission(user="ada", name="mine", at_s=0.0, submit=look)], managed=True, timeout_s=60)

    (job,) = [job for job in seen if job.name == "mine"]
    assert job.user == "ada"


def wait_for(name):
    return distributed.Event(name).wait(30)


def when(number):
    return number, time.monotonic()


def test_arrivals_do_not_wait_for_anybody(cluster):
    """The second submission is what the first one waits for."""

    def release(client):
        distributed.Event("released").set()
        return client.submit(operator.add, 1, 2, pure=False)

    asked = [
        Submission(
            user="ada",
            name="blocked",
            at_s=0.0,
            submit=lambda client: client.submit(wait_for, "released", pure=False),
        ),
        Submission(user="ada", name="release", at_s=0.2, submit=release),
    ]

    served = serve(cluster, asked, managed=False, timeout_s=60)

    assert served["blocked"].results == (True,)
    assert served["blocked"].end_s > 0.2
    with distributed.Client(cluster, set_as_default=False) as client:
        distributed.Event("released", client=client).clear()


@pytest.mark.parametrize("priorities", [False, True])
def test_priorities_are_set_only_when_asked_for(priorities):
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:

        def release(client):
            client.sync(until, lambda: len(cluster.scheduler.tasks) == 41, "all tasks")
            distributed.Event("all are there").set()
            return ()

        submits = {
            "blocked": (3, lambda client: client.submit(wait_for, "all are there", pure=False)),
            "low": (1, lambda client: client.map(when, range(20), pure=False, fifo_timeout=0)),
            "high": (2, lambda client: client.map(when, range(20), pure=False, fifo_timeout=0)),
            "release": (0, release),
        }
        asked = [
            Submission(user="ada", name=name, at_s=0.0, submit=submit, priority=priority)
            for name, (priority, submit) in submits.items()
        ]
        served = serve(cluster, asked, managed=False, priorities=priorities, timeout_s=60)

    last_s = {name: max(at_s for _, at_s in served[name].results) for name in ("low", "high")}
    assert (last_s["high"] < last_s["low"]) == priorities


def test_submissions_are_built_one_at_a_time(cluster):
    """Dask's dataframes cannot be built by two threads at once before Python 3.12."""
    inside, most = [], []

    def submit(client):
        inside.append(client)
        most.append(len(inside))
        # others get their turn, if they are let in
        client.run_on_scheduler(int)
        inside.pop()
        return ()

    asked = [Submission(user=user, name=user, at_s=0.0, submit=submit) for user in "abcdef"]
    serve(cluster, asked, managed=False, timeout_s=60)
    assert most == [1] * 6


def test_a_task_that_fails_raises_its_exception_after_the_others_have_ended(cluster):
    asked = [
        Submission(
            user="ada", name="fails", at_s=0.0,
            submit=lambda client: client.submit(operator.truediv, 1, 0, pure=False),
        ),
        products("bob", "ends", 0.1, 2),
    ]  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        serve(cluster, asked, managed=False, timeout_s=60)


def test_what_is_not_finished_in_time_is_named(cluster):
    asked = [
        Submission(
            user="ada",
            name="endless",
            at_s=0.0,
            submit=lambda client: client.submit(wait_for, "never", pure=False),
        ),
        products("bob", "ends", 0.0, 2),
    ]
    try:
        with pytest.raises(TimeoutError, match=r"not finished after 1 s: endless$"):
            serve(cluster, asked, managed=False, timeout_s=1)
    finally:
        with distributed.Client(cluster, set_as_default=False) as client:
            distributed.Event("never", client=client).set()


def test_two_submissions_of_one_name_are_refused():
    with pytest.raises(ValueError, match="share the name 'same'"):
        serve(
            "tcp://127.0.0.1:1", [products("ada", "same", 0, 1), products("bob", "same", 0, 1)], managed=False
        )
