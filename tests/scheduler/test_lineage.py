"""What stands in for a task, and what it stood in for put back."""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task
from departed import double
from distributed.utils_test import gen_cluster
from waits import until

from dask_hpc.scheduler.internals.lineage import fall_back, put_back, stand_in


@gen_cluster(client=True, scheduler_kwargs={"validate": True})
async def test_what_stands_in_for_a_task_leaves_its_lineage_as_it_was(c: Any, s: Any, a: Any, b: Any) -> None:
    x = c.submit(double, 1, key="x")
    y = c.submit(double, x, key="y")
    await y
    ts, run_spec = s.tasks["y"], s.tasks["y"].run_spec
    lineage = stand_in(s, "y", Task("y", double, 21), "int")
    assert (ts.dependencies, s.tasks["x"].dependents) == (set(), set())
    s.validate_state()
    put_back(s, "y", lineage)
    assert ts.run_spec is run_spec
    assert ts.dependencies == {s.tasks["x"]}
    assert s.tasks["x"].dependents == {ts}
    s.validate_state()
    lineage = stand_in(s, "y", Task("y", double, 21), "int")
    x.release()
    await until(lambda: s.tasks.get("x") is None, "nobody needs it any more")
    assert not fall_back(s, "y", lineage)
    ts.has_lost_dependencies = False
    put_back(s, "y", lineage)
    assert ts.has_lost_dependencies
    s.validate_state()
