"""Slurm's commands absent, hanging or talking nonsense under a cluster: it is said, and the cluster goes on.

The commands only pretend here: jobs are never started, and the workers that are there are local ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import pytest
from fake_slurm import OPTIONS, SUBMIT, ending, row, submitted, with_worker
from helpers import engine
from helpers import until as soon
from outside import until

import dask_hpc
from dask_hpc.deploy.slurm import reconcile
from dask_hpc.errors import SlurmError

REFUSED = pytest.mark.errors("could not be started")
#: Of two jobs.
STATES = ((1, "CONFIGURING"), (2, "PENDING"))


@pytest.mark.errors("could not be started")
@pytest.mark.parametrize(
    ("script", "text"),
    [
        (None, "SlurmError: sbatch is not on PATH"),
        (
            "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1",
            "invalid partition specified: x",
        ),
        ("echo Welcome", "Could not parse job id from submission command output"),
    ],
)
def test_a_job_that_cannot_be_submitted_is_one_message_and_the_cluster_goes_on(
    fakes: Any, tmp_path: Path, caplog: Any, script: str | None, text: str
) -> None:
    fakes("squeue", "exit 1")
    if script is not None:
        fakes("sbatch", script)
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=1)
        until(lambda: not made.worker_spec and "could not be started" in caplog.text, "it is said")
        ours = [record for record in caplog.records if record.name.startswith("dask_hpc")]
        said = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
        assert len(said) == 1
        assert text in said[0]
        fakes("sbatch", SUBMIT)
        made.scale(jobs=1)
        until(lambda: len(made.workers) == 1, "another one is submitted")


def test_a_job_that_is_refused_as_somebody_waits_for_the_cluster_can_be_asked_for_again(
    fakes: Any, tmp_path: Path
) -> None:
    async def run() -> None:
        async with dask_hpc.SLURMCluster(**OPTIONS, asynchronous=True) as made:
            made.scale(jobs=1)
            with pytest.raises(SlurmError, match="sbatch failed"):
                await made
            fakes("sbatch", SUBMIT)
            made.scale(jobs=1)
            await soon(lambda: [job.job_id for job in made.workers.values()] == ["1"], "it is submitted")

    fakes("sbatch", "exit 1")
    fakes("squeue", row(1, "PENDING"))
    asyncio.run(run())


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("exec sleep 600", "squeue did not end within 0.5 s"),
        ("echo Welcome to the cluster", "the line is 'Welcome to the cluster'"),
    ],
)
def test_a_squeue_that_hangs_or_talks_nonsense_is_said_once_and_jobs_come_and_go(
    fakes: Any, tmp_path: Path, monkeypatch: Any, caplog: Any, script: str, text: str
) -> None:
    monkeypatch.setattr(reconcile, "SQUEUE_S", 0.5)
    fakes("sbatch", SUBMIT)
    fakes("squeue", script)
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=2)
        until(lambda: made.asked > 2, "it is asked again")
        assert caplog.text.count("What has become of the jobs is not known") == 1
        assert text in caplog.text
        assert len(made.worker_spec) == 2
        made.scale(jobs=3)
        until(lambda: len(made.workers) == 3, "it grows")
        made.scale(jobs=1)
        until(lambda: len(made.workers) == 1, "it shrinks")
        assert submitted(tmp_path) == 3


def test_jobs_that_wait_in_the_queue_are_not_among_the_nodes_that_start(fakes: Any) -> None:
    fakes("sbatch", SUBMIT)
    # it boots the node of the first one, as it does to save power
    rows = (f"{n}|{n}|x|root|{state}|1||2:00:00|2:00:00|1795201705|N/A|N/A|None|w" for n, state in STATES)
    fakes("squeue", f"printf '%s\\n' {' '.join(map(repr, rows))}")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.adapt(minimum=1, maximum=5, interval="20 ms")
        table = engine(made.scheduler).state.nodes
        until(lambda: (table.away.starting, table.away.off) == (1, 4), "one starts")
        made.adapt(minimum=2, maximum=5, interval="20 ms")
        until(lambda: (table.away.starting, table.away.off) == (1, 3), "one starts, and one waits")
        assert len(made.queued) == 1


def test_a_job_of_which_slurm_did_not_hear_that_it_was_cancelled_is_cancelled_again(
    fakes: Any, tmp_path: Path, caplog: Any
) -> None:
    told = tmp_path / "scancel.told"
    fakes("sbatch", SUBMIT)
    fakes("squeue", row(1, "PENDING"))
    fakes("scancel", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=1)
        until(lambda: made.workers, "it is submitted")
        made.scale(jobs=0)
        until(lambda: not made.workers and "could not be cancelled" in caplog.text, "it is closed")
        fakes("scancel", 'echo "$@" >> "$0.told"')
        until(lambda: told.exists() and told.read_text(), "it is told again")
        assert set(told.read_text().split()) == {"1"}
        fakes("squeue", row(1, "CANCELLED"))
        until(lambda: not made._submitted, "Slurm has heard of it")


def test_the_number_of_a_job_is_not_taken_from_what_a_site_has_sbatch_say(fakes: Any, tmp_path: Path) -> None:
    fakes("sbatch", f"echo You have used 17 of 40 hours; {SUBMIT}")
    fakes("squeue", row(1, "PENDING"))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=1)
        until(lambda: [job.job_id for job in made.workers.values()] == ["1"], "it is submitted")
        looked = made.asked
        until(lambda: made.asked > looked + 2, "it is asked for by that number")
        assert submitted(tmp_path) == 1


def test_a_job_that_goes_back_into_the_queue_waits_there_again(fakes: Any) -> None:
    fakes("sbatch", SUBMIT)
    fakes("squeue", row(1, "RUNNING"))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.scale(jobs=1)
        until(lambda: made.worker_spec and not made.queued, "it runs")
        fakes("squeue", row(1, "PENDING"))
        until(lambda: made.queued == set(made.worker_spec), "it waits, it has been preempted")


def test_a_job_that_slurm_does_not_know_any_more_is_replaced_when_its_worker_has_gone(
    fakes: Any, tmp_path: Path
) -> None:
    fakes("sbatch", SUBMIT)
    fakes("squeue", row(1, "RUNNING"))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        worker = with_worker(made)
        fakes("squeue", "exit 0")
        looked = made.asked
        until(lambda: made.asked > looked + 3, "it is asked again")
        assert (list(made.worker_spec), submitted(tmp_path)) == ([worker.name], 1)
        made.sync(worker.close)
        until(lambda: submitted(tmp_path) == 2, "it is replaced")


def test_a_job_whose_worker_takes_long_to_start_again_keeps_its_node_but_not_for_ever(
    fakes: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    told = tmp_path / "scancel.told"
    fakes("sbatch", SUBMIT)
    fakes("scancel", 'echo "$@" >> "$0.told"')
    fakes("squeue", row(1, "RUNNING"))
    timeout = {"distributed.deploy.lost-worker-timeout": "100 ms"}
    with dask.config.set(timeout), dask_hpc.SLURMCluster(**OPTIONS) as made:
        worker = with_worker(made)
        until(lambda: made._come, "it has come")
        made.sync(worker.close)
        for state, most_s in (("RUNNING", reconcile.LOST_S), ("PENDING", 0.0)):
            fakes("squeue", row(1, state))
            until(lambda state=state: bool(made.queued) == (state == "PENDING"), "Slurm was asked")
            monkeypatch.setattr(reconcile, "LOST_S", most_s)
            looked = made.asked
            until(lambda looked=looked: made.asked > looked + 5, "it is asked again")
            assert (list(made.workers), submitted(tmp_path), told.exists()) == ([worker.name], 1, False)
        fakes("squeue", row(1, "RUNNING"))
        until(lambda: submitted(tmp_path) == 2, "in its place comes another one")
        assert (worker.name in made.worker_spec, set(told.read_text().split())) == (False, {"1"})


def test_a_rehearsal_gives_jobs_up_that_wait_before_others_and_knows_successors(fakes: Any) -> None:
    fakes("sbatch", SUBMIT)
    fakes("squeue", "; ".join([ending(), *(row(number, "PENDING") for number in (2, 3, 4))]))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        worker = with_worker(made)
        until(lambda: made.expiring and len(made.workers) == 2, "its successor is submitted")
        plan = made.scale(jobs=1, dry_run=True)
        assert plan == {"add": 0, "release": {}, "bytes": 0, "refused": {}}
        assert made.scale(jobs=2, dry_run=True)["add"] == 1
        waits = set(made.worker_spec) - {worker.name}
        plan = made.scale(jobs=0, dry_run=True)
        assert set(plan["release"]) == {worker.name, *waits}
        made.scale(jobs=2)
        until(lambda: len(made.workers) == 3, "another one is submitted")
        waits = set(made.worker_spec) - {worker.name}
        plan = made.scale(jobs=1, dry_run=True)
        assert len(plan["release"]) == 1
        assert set(plan["release"]) < waits
        made.sync(worker.close)


def test_nothing_is_left_of_a_job_whose_successor_is_not_wanted_any_more(fakes: Any, tmp_path: Path) -> None:
    fakes("sbatch", SUBMIT)
    fakes("scancel", 'echo "$@" >> "$0.told"')
    fakes("squeue", f"{ending()}; {row(2, 'PENDING')}")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        worker = with_worker(made)
        until(lambda: made.expiring and len(made.workers) == 2, "its successor is submitted")
        made.scale(jobs=0)
        until(lambda: not made.workers, "both have gone")
        told = (tmp_path / "scancel.told").read_text().split()
        assert (sorted(set(told)), submitted(tmp_path)) == (["1", "2"], 2)
        made.sync(worker.close)


@pytest.mark.errors("could not be started")
@pytest.mark.parametrize("adapts", [False, True])
def test_a_successor_that_is_refused_is_not_asked_for_for_ever_and_once_more_when_the_job_has_ended(
    fakes: Any, tmp_path: Path, adapts: bool
) -> None:
    fakes("sbatch", SUBMIT)
    fakes("squeue", ending())
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        worker = with_worker(made)
        fakes("sbatch", 'echo x >> "$0.asked"; exit 1')
        until(lambda: made._failures.total() == 3, "three were refused")
        assert submitted(tmp_path) == 4
        if adapts:
            made.adapt(minimum=1, maximum=4, interval="20 ms")
        else:
            made.scale(jobs=1)
        until(lambda: submitted(tmp_path) == 7, "three more were")
        looked = made.asked
        until(lambda: made.asked > looked + 5, "it looks again")
        assert (list(made.worker_spec), submitted(tmp_path)) == ([worker.name], 7)
        # who adapts asks again and again
        until(lambda: adapts or made._shrinking[""].done(), "nothing turns in a loop")
        fakes("sbatch", SUBMIT)
        fakes("squeue", f"{row(1, 'COMPLETED')}; {row(8, 'PENDING')}")
        made.sync(worker.close)
        until(lambda: submitted(tmp_path) == 8 and worker.name not in made.workers, "it is replaced")


def test_of_those_that_were_let_go_none_comes_again_for_a_job_whose_end_is_near(
    fakes: Any, tmp_path: Path
) -> None:
    fakes("sbatch", SUBMIT)
    others = [row(number, "PENDING") for number in range(2, 9)]
    fakes("squeue", "; ".join([ending(), *others]))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        for jobs in range(1, 5):
            made.scale(jobs=jobs)
            # one is submitted at a time, so that each has a number of its own
            until(lambda jobs=jobs: len(made.workers) == jobs + 1 and made.expiring, "and a successor")
        made.sync(made.let_go, [name for name in made.worker_spec if name not in made.expiring][:2])
        looked = made.asked
        until(lambda: made.asked > looked + 3, "it looks again")
        assert (len(made.worker_spec), submitted(tmp_path)) == (3, 5)
        assert made.expiring < set(made.worker_spec)


@pytest.mark.errors("in a row without a worker")
def test_an_adaptive_cluster_stops_asking_for_jobs_that_never_have_a_worker(
    fakes: Any, tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    fakes("sbatch", SUBMIT)
    # Slurm knows none of them: they have ended at once
    fakes("squeue", "exit 0")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.adapt(minimum=1, maximum=4, interval="20 ms")
        until(lambda: "3 in a row without a worker" in caplog.text, "it gives up")
        until(lambda: not made.worker_spec, "no job is asked for")
        asked, looked = submitted(tmp_path), made.asked
        until(lambda: made.asked > looked + 3, "it looks again")
        assert submitted(tmp_path) == asked == 3
        # after a while one is tried
        monkeypatch.setattr(reconcile, "RETRY_S", 0.0)
        until(lambda: submitted(tmp_path) > asked, "one more is asked for")


@pytest.mark.errors("could not be started")
def test_an_adaptive_cluster_does_not_call_an_sbatch_that_fails_for_ever(
    fakes: Any, tmp_path: Path, caplog: Any
) -> None:
    fakes("sbatch", 'echo x >> "$0.asked"; exit 1')
    fakes("squeue", "exit 0")
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        made.adapt(minimum=1, maximum=4, interval="20 ms")
        until(lambda: submitted(tmp_path) >= 3, "it tries")
        looked = made.asked
        until(lambda: made.asked > looked + 5, "it looks again")
        assert submitted(tmp_path) == 3
        assert caplog.text.count("could not be started") == 3


#: Shows the jobs that it is asked for: the first four have ended, those that were asked for later wait.
ENDED = """for option; do case "$option" in --jobs=*) ids="${option#--jobs=}";; esac; done
IFS=,
for id in $ids; do
case "$id" in [1234]) state=COMPLETED;; *) state=PENDING;; esac
echo "$id|$id|x|root|$state|1||2:00:00|2:00:00|1795201705|N/A|N/A|None|w"
done"""


@pytest.mark.parametrize(
    ("adapts", "refusals", "asked"),
    [
        (False, 0, 8),
        pytest.param(False, 1, 9, marks=REFUSED),
        pytest.param(False, 9, 7, marks=REFUSED),
        pytest.param(True, 9, 7, marks=REFUSED),
    ],
)
def test_for_jobs_that_end_together_one_is_asked_for_until_slurm_takes_it_and_then_the_others(
    fakes: Any, tmp_path: Path, adapts: bool, refusals: int, asked: int
) -> None:
    fakes("sbatch", SUBMIT)
    fakes("squeue", "; ".join(row(number, "RUNNING") for number in range(1, 5)))
    with dask_hpc.SLURMCluster(**OPTIONS) as made:
        workers = [with_worker(made, jobs) for jobs in range(1, 5)]
        until(lambda: len(made._come) == 4, "all have come")
        if adapts:
            made.adapt(minimum=4, maximum=4, interval="20 ms")
        refused = f'[ "$(wc -l < "$0.asked")" -le {4 + refusals} ] && exit 1'
        fakes("sbatch", f'echo x >> "$0.asked"; sleep 0.3; {refused}; echo "Submitted batch job $$"')
        fakes("squeue", ENDED)
        looked = made.asked
        until(lambda: submitted(tmp_path) >= asked, "it is asked again")
        # those behind the first one do not wait for a look each
        assert refusals or made.asked - looked < 4
        looked = made.asked
        until(lambda: made.asked > looked + 9, "it looks again")
        assert (submitted(tmp_path), len(made.workers)) == (asked, 4 if refusals < 9 else 0)
        for worker in workers:
            made.sync(worker.close)


class Compared(reconcile.Reconciled):
    """Jobs a, b and c in one pool, without Slurm: a worker of a is there."""

    def __init__(self) -> None:
        vars(self).update(_come=set(), _begun=set(), _expiring={}, _lost_s={}, adjusted=[])
        self.pools, self.workers = {"": None}, {}
        self._failures, self.waits_s = Counter({"": reconcile.FAILURES - 1}), {"": deque()}
        self._wanted, self.worker_spec = {"": 3}, dict.fromkeys("abc")

    def _there(self) -> set[str]:
        return {"a"}

    def _workers_of(self, spec: str) -> list[str]:
        return [spec]

    def _pool_of(self, spec: str) -> str:
        return ""

    def _grow(self, pool: str, most: float) -> None:
        """None comes in place of those that have ended."""

    def _job(self, pool: str) -> Any:
        return SimpleNamespace(log_directory=None)

    async def _adjust(self, pool: str, anew: bool = False) -> None:
        self.adjusted.append(pool)

    async def _open(self, again: bool = False) -> None:
        """Nothing is submitted."""


def test_jobs_without_a_worker_are_in_a_row_only_until_one_has_a_worker() -> None:
    cluster: Any = Compared()
    row = SimpleNamespace(state="RUNNING", submit_s=1.0, end_s=None)
    asyncio.run(cluster._compare({"1": "a", "2": "b"}, {"1": row}))
    # else it would be the last of too many, and fewer would be asked for
    assert (cluster._failures[""], cluster._wanted[""]) == (1, 3)
    assert set(cluster.worker_spec) == {"a", "c"}


def test_of_a_job_that_is_given_more_time_and_its_successor_one_is_too_many() -> None:
    cluster: Any = Compared()
    cluster._expiring["a"] = 2.0
    row = SimpleNamespace(state="RUNNING", submit_s=1.0, end_s=9e9, time_limit_s=60.0)
    asyncio.run(cluster._compare({"1": "a"}, {"1": row}))
    assert (cluster._expiring, cluster.adjusted) == ({}, [""])
