"""A job is a span of Dask's: its tools tell apart what several jobs do, and no message grows by that."""

from __future__ import annotations

import dask
from dask import delayed
from distributed import span
from helpers import asleep, engine, live, until
from tasks import inc

import dask_hpc


def plus(x, name):
    """Tasks of it are called alike in every job, and are in a group of their own by what they work on."""
    return delayed(inc)(x, dask_key_name=(f"plus-{name}", x))


def names(s, key):
    ts = s.tasks[key]
    return s.extensions["spans"].spans[ts.group.span_id].name, (ts.annotations or {}).get("span")


@live(workers=2)
async def test_the_tasks_of_each_job_are_in_its_span_but_for_those_in_one_of_the_user(c, s, *workers):
    rt = await dask_hpc.install(c)
    futures = {}
    for name in ("heat", "ocean"):
        async with rt.job(name, nodes=1):
            futures[name] = c.compute([plus(i, name) for i in range(3)])
            with span("mine"):
                mine = c.compute(plus(1, "mine"))
        assert await c.gather(futures[name]) == [1, 2, 3]
    with dask.annotate(hpc_job=None):
        plain = c.compute(plus(1, "plain"))
    assert await c.gather([mine, plain]) == [2, 2]
    assert names(s, ("plus-heat", 1)) == (("heat",), None)
    assert names(s, ("plus-ocean", 1)) == (("ocean",), None)
    assert names(s, ("plus-plain", 1)) == (("default",), None)
    assert names(s, ("plus-mine", 1))[0] == ("mine",)
    found = s.extensions["spans"].spans_search_by_name
    for name in ("heat", "ocean"):
        (its,) = found[name,]
        assert [group.name for group in its.traverse_groups()] == [f"plus-{name}"]
        assert its.duration > 0
        # what workers measure comes with their heartbeats
        await until(lambda its=its: its.cumulative_worker_metrics, "workers have told")
    assert {group.name for one in found["default",] for group in one.groups} == {"plus-plain"}
    await asleep(s)


@live(workers=2)
async def test_two_jobs_of_one_name_are_two_spans(c, s, *workers):
    rt = await dask_hpc.install(c)
    ids = []
    for number in range(2):
        async with rt.job("heat", nodes=1) as job:
            assert await c.compute(plus(number, f"heat-{number}")) == number + 1
            ids.append(engine(s).state.jobs.find(job.id).span_id)
    found = s.extensions["spans"].spans_search_by_name["heat",]
    assert [one.id for one in found] == ids
    assert len(set(ids)) == 2
