"""What users see of annotations is what they have annotated: the name of a job does not show."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import pytest
from distributed import SchedulerPlugin, WorkerPlugin, get_worker, span
from helpers import asleep, live, owner_of, started, until
from tasks import inc

import dask_hpc


class Graphs(SchedulerPlugin):
    """Keeps the annotations of every graph, and how many tasks it has."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.tasks: list[int] = []

    def update_graph(self, scheduler: Any, *, annotations: Any, tasks: Any, **kwargs: Any) -> None:
        self.seen.append({name: set(values.values()) for name, values in annotations.items()})
        self.tasks.append(len(tasks))


class Tasks(WorkerPlugin):
    """Keeps the annotations of tasks on their workers."""

    name = "annotations"

    def __init__(self) -> None:
        self.seen: dict[Any, Any] = {}

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        if finish == "executing":
            self.seen[key] = dict(self.worker.state.tasks[key].annotations or {})


def annotations_here() -> dict[str, Any]:
    worker = get_worker()
    return dict(worker.state.tasks[worker.get_current_task()].annotations or {})


@live(2)
async def test_the_job_does_not_show_in_annotations_and_those_of_the_user_do(c, s, a, b):
    on_worker = [Tasks(), Tasks()]
    for worker, plugin in zip((a, b), on_worker, strict=True):
        await worker.plugin_add(plugin)
    plain = c.submit(inc, 0, pure=False)
    await plain
    stock = s.tasks[plain.key].annotations
    rt = await dask_hpc.install(c)
    async with rt.job("main", nodes=2) as job:
        await started(s, job, 2)
        graphs = Graphs()
        s.add_plugin(graphs, name="graphs")
        keep = [c.submit(inc, 1, pure=False)]
        with dask.annotate(mine="yes", priority=3):
            keep.append(c.submit(annotations_here, pure=False))
            # built and computed in the context: layers of the graph are annotated
            array = (da.ones((4, 4), chunks=2) + 1).sum()
            keep.append(c.compute(array, optimize_graph=False))
        with span("phase"):
            keep.append(c.submit(inc, 2, pure=False))
        values = await c.gather(keep)
        assert values[1] == {"mine": "yes", "priority": 3}
        assert values[2] == 32
        assert len(s.tasks) > len(keep)
        assert {owner_of(s, key) for key in s.tasks if key != plain.key} == {job.id}
        found = [ts.annotations for ts in s.tasks.values()]
        assert not any("hpc_job" in (one or {}) for one in found)
        assert {"mine": "yes", "priority": 3} in found
        assert s.tasks[keep[0].key].annotations == stock
        assert not any("hpc_job" in computation.annotations for computation in s.computations)
        assert not any("hpc_job" in one for one in graphs.seen)
        assert {"mine": {"yes"}, "priority": {3}} in graphs.seen
        seen = {key: value for plugin in on_worker for key, value in plugin.seen.items()}
        assert {"mine": "yes", "priority": 3} in seen.values()
        assert not any("hpc_job" in value for value in seen.values())
        with dask.annotate(hpc_job=lambda key, id=job.id: id if key == "by key" else None):
            keep.append(c.submit(inc, 3, key="by key"))
        assert await keep[-1] == 4
        assert owner_of(s, "by key") == job.id
        # and so it is for what names it as it is built, and is computed elsewhere
        with dask.annotate(hpc_job=job.id):
            built = dask.delayed(inc, pure=False)(5)
        with dask.annotate(hpc_job=None):
            late = c.compute(built, optimize_graph=False)
        assert await late == 6
        assert "hpc_job" not in (s.tasks[late.key].annotations or {})
    await job.wait(10)
    await asleep(s)


@live(2)
async def test_what_names_no_job_is_plain_work_beside_jobs_that_hold_every_node(c, s, a, b):
    rt = await dask_hpc.install(c)
    keep: list[Any] = []
    async with rt.job("all", nodes=2) as job:
        await started(s, job, 2)
        row = (await rt.jobs())[0]
        for i, wrong in enumerate((row, [job.id], {job.id}, 1, lambda key, id=job.id: [id])):
            with dask.annotate(hpc_job=wrong):
                # one by the whole graph, the other by its layers
                keep.append(c.submit(inc, i, key=f"submitted-{i}"))
                keep += c.compute([dask.delayed(inc)(i, dask_key_name=f"built-{i}")])
        await until(lambda: all(future.key in s.tasks for future in keep), "the scheduler knows them")
        owners = {owner_of(s, future.key) for future in keep}
        assert not owners.intersection({job.id, None})
    assert await c.gather(keep) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@live(2)
async def test_a_callable_that_fails_to_name_a_job_fails_its_graph_as_in_stock(c, s, a, b):
    rt = await dask_hpc.install(c)
    async with rt.job("all", nodes=2) as job:
        await started(s, job, 2)
        with dask.annotate(hpc_job=lambda key: [][0]):
            failed = c.submit(inc, 1, key="failed")
        with pytest.raises(IndexError):
            await failed.result(timeout=10)


@live(2)
async def test_what_was_opened_before_a_job_is_fused_with_what_the_job_makes_of_it(c, s, a, b):
    graphs, before = Graphs(), da.ones((8, 8), chunks=2)
    s.add_plugin(graphs, name="graphs")
    assert await c.compute((before + 1).sum()) == 128
    rt = await dask_hpc.install(c)
    async with rt.job("main") as job:
        for array in (before, da.ones((8, 8), chunks=2)):
            value = c.compute((array + 1).sum())
            assert (await value, owner_of(s, value.key)) == (128, job.id)
        async with rt.job("inner") as inner:
            value = c.compute((before + 2).sum())
            assert (await value, owner_of(s, value.key)) == (192, inner.id)
        value = c.compute((before + 3).sum())
        assert (await value, owner_of(s, value.key)) == (256, job.id)
        made = (before + 4).sum()
    # who computes it in no job has plain work
    value = c.compute(made)
    assert (await value, owner_of(s, value.key)) == (320, None)
    assert len(set(graphs.tasks)) == 1
