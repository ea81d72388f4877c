"""Walltime left follows Slurm's time limit, which may be changed while a job runs."""

from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Worker
from fake_queue import FakeQueue
from helpers import engine, live, started, until

import dask_hpc
from dask_hpc.scheduler.leaving.sooner import Sooner
from dask_hpc.scheduler.tables.walltimes import Walltimes
from dask_hpc.wire import WORKER_PLUGIN

SOON = {
    "hpc.tick": "50 ms",
    "hpc.slurm.poll": "100 ms",
    "hpc.walltime.notice": "20 s",
    "hpc.walltime.margin": "1 s",
}


@pytest.fixture
def queue(tmp_path: Any, monkeypatch: Any) -> FakeQueue:
    made = FakeQueue(tmp_path / "bin")
    monkeypatch.setenv("PATH", made.path)
    return made


async def ask(walltimes: Walltimes, sections: list[dict[str, Any]], now_s: float) -> None:
    walltimes.look(sections, now_s, 15.0)
    assert walltimes._asking is not None
    await walltimes._asking


SECTION = {"slurm_job": "7", "end_s": 1_800_000_000.0}


@pytest.mark.parametrize(
    ("section", "end_s", "found"),
    [
        (SECTION, 1_800_000_600.0, (1_800_000_600.0, False)),
        (SECTION, 1_799_999_000.0, (1_799_999_000.0, True)),
        (SECTION, math.inf, (None, False)),
        # the setting of the node counts whatever Slurm says
        (SECTION | {"limit_end_s": 1_800_000_100.0}, 1_800_000_600.0, (1_800_000_100.0, False)),
        (SECTION | {"limit_end_s": 1_800_000_000.0}, math.inf, (1_800_000_000.0, False)),
        # nothing was known when the worker started
        ({"slurm_job": "7"}, 1_800_000_600.0, (1_800_000_600.0, True)),
        # no such job, and none at all
        (SECTION | {"slurm_job": "8"}, 1_800_000_600.0, (1_800_000_000.0, False)),
        ({"end_s": 1_800_000_000.0}, 1_800_000_600.0, (1_800_000_000.0, False)),
        ({"slurm_job": 8, "end_s": "soon", "limit_end_s": math.nan}, 1_800_000_600.0, (None, False)),
    ],
)
def test_a_worker_ends_with_its_job_as_slurm_has_it_now(
    queue: FakeQueue, section: dict[str, Any], end_s: float, found: tuple[float | None, bool]
) -> None:
    async def asked() -> tuple[float | None, bool]:
        walltimes = Walltimes()
        queue.says({"7": end_s})
        await ask(walltimes, [section, SECTION], 0.0)
        return walltimes.end_s(section)

    assert asyncio.run(asked()) == found


def test_a_job_that_was_started_again_ends_as_its_workers_say_until_slurm_was_asked(queue: FakeQueue) -> None:
    async def asked() -> None:
        walltimes, again = Walltimes(), SECTION | {"end_s": SECTION["end_s"] + 3600.0}
        queue.says({"7": 1_799_999_000.0})
        await ask(walltimes, [SECTION], 0.0)
        # it has the number that it had before
        assert walltimes.end_s(again) == (1_800_003_600.0, False)
        queue.says({"7": 1_800_003_000.0})
        await ask(walltimes, [again], 15.0)
        assert walltimes.end_s(again) == (1_800_003_000.0, True)

    asyncio.run(asked())


def test_one_question_for_all_jobs_every_so_often_and_what_cannot_be_asked_stays(
    queue: FakeQueue, caplog: Any
) -> None:
    async def asked() -> None:
        walltimes = Walltimes()
        others = [{"slurm_job": str(job), "end_s": 1.8e9} for job in (7, 8, 8, 9)]
        queue.says({"7": 1_800_000_060.0, "8": 1_800_000_120.0})
        # outside of Slurm it is not asked
        walltimes.look([{"end_s": 1.8e9}], 0.0, 15.0)
        assert walltimes._asking is None
        await ask(walltimes, others, 1.0)
        for now_s in (2.0, 15.9):
            walltimes.look(others, now_s, 15.0)
        assert len(queue.asked()) == 1
        assert "--jobs=7,8,9" in queue.asked()[0]
        ends = [walltimes.end_s(other)[0] for other in others]
        assert ends == [1_800_000_060.0, 1_800_000_120.0, 1_800_000_120.0, 1.8e9]
        queue.says({"7": 1_800_000_300.0})
        await ask(walltimes, others, 16.0)
        ends[0] = 1_800_000_300.0
        queue.fails()
        for now_s in (31.0, 46.0):
            await ask(walltimes, others, now_s)
        assert len(queue.asked()) == 4
        assert [walltimes.end_s(other)[0] for other in others] == ends
        assert caplog.text.count("another time limit is not known") == 1

    asyncio.run(asked())


def test_who_ends_sooner_than_it_knows_is_emptied_a_margin_before_its_end_and_asked_once() -> None:
    asked: list[tuple[str, float, str]] = []

    async def depart(address: str, within_s: float, why: str) -> None:
        asked.append((address, within_s, why))

    def due(before_s: float) -> dict[str, float]:
        return {"late": 115.0} if before_s > 115.0 else {}

    async def ticks() -> None:
        state: Any = SimpleNamespace(
            settings=SimpleNamespace(walltime_notice_s=10.0, walltime_margin_s=4.0),
            nodes=SimpleNamespace(sooner=due),
        )
        sooner = Sooner(state, depart)
        for now_s in (100.0, 102.0, 103.0, 104.0):
            sooner.tick(now_s)
            await asyncio.gather(*sooner._going.values())
        # where no more than the margin is left, half of that is used
        other = Sooner(state, depart)
        other.tick(112.0)
        await asyncio.gather(*other._going.values())

    asyncio.run(ticks())
    assert asked == [("late", 9.0, "its walltime ends"), ("late", 1.5, "its walltime ends")]


@live(workers=2, config=SOON)
async def test_walltime_left_follows_squeue_and_a_worker_that_ends_sooner_than_it_knows_is_emptied(
    c: Any, s: Any, a: Any, b: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    queue, ends_s = FakeQueue(tmp_path / "bin"), int(time.time()) + 3600
    monkeypatch.setenv("PATH", queue.path)
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(ends_s))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    queue.says({"7": ends_s, "8": ends_s})
    rt = await dask_hpc.install(c)
    await until(lambda: all(WORKER_PLUGIN in w.plugins for w in (a, b)), "the plugin is everywhere")
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    async with Worker(s.address, nthreads=1, name="late") as late:
        for worker in (a, b, late):
            await worker.heartbeat()
        async with rt.job("main", nodes=3) as job:
            await started(s, job, 3)

            def left_s() -> dict[str, float]:
                nodes = engine(s).state.nodes.views(engine(s).state.now_s())
                return {node.id: node.walltime_left_s for node in nodes}

            def left_is(**expected: float) -> bool:
                found = left_s()
                return all(
                    found[name] is not None and abs(found[name] - (end_s - time.time())) < 5
                    for name, end_s in expected.items()
                )

            names = {str(w.name): ends_s for w in (a, b)}
            await until(lambda: left_is(**names, late=ends_s), "all as it began")
            queue.says({"7": ends_s + 1800, "8": ends_s})
            longer = dict.fromkeys(names, ends_s + 1800)
            await until(lambda: left_is(**longer, late=ends_s), "one job has got half an hour more")
            queue.fails()
            asked = len(queue.asked())
            await until(lambda: len(queue.asked()) > asked + 2, "it is asked in vain")
            assert left_is(**longer, late=ends_s)
            [data] = await c.scatter([list(range(9))], workers=[late.address], hash=False)
            queue.says({"7": ends_s + 1800, "8": time.time() + 15})
            await until(lambda: late.address not in s.workers, "its time is up")
            assert await data == list(range(9))
            assert set(s.workers) == {a.address, b.address}
            assert job.id in engine(s).state.jobs.active
    await rt.uninstall()
