"""What is lent is accounted for: who has lent it, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

from dask_hpc.scheduler.placing import lending as of_lending


def test_a_job_that_has_to_leave_a_node_lends_its_idle_threads_until_it_has_left():
    jobs = [SimpleNamespace(lent_tasks=0, lent_s=0.0) for _ in range(2)]
    holder, borrower = jobs
    vars(borrower).update(borrowed_tasks=0, borrowed_s=0.0, reach=())
    ts = SimpleNamespace(key="asked", run_id=1, processing_on=(worker := SimpleNamespace(address="a")))
    now_s = [0.0]
    state = SimpleNamespace(
        now_s=lambda: now_s[0],
        # nothing serves it any more while its node is drained
        serving={},
        nodes=SimpleNamespace(at={"a": SimpleNamespace(job="holder")}),
        jobs=SimpleNamespace(active={"holder": holder}),
        scheduler=SimpleNamespace(running=(), workers={}),
    )
    lending = of_lending.Lending(state, None)
    lending.lent([(ts, worker, SimpleNamespace(job=borrower))])
    now_s[0] = 2.0
    lending.settle("a", whole=True)
    assert (holder.lent_tasks, holder.lent_s) == (borrower.borrowed_tasks, borrower.borrowed_s) == (1, 2.0)
