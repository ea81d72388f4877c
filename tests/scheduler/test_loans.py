"""What is lent is accounted for, and what was held for want of a node is sent when there is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dask_hpc.scheduler.internals.allotment import HOLD
from dask_hpc.scheduler.placing import lending as of_lending
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc_policies.jobs.jobspec import job_spec, resolve


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


def test_what_a_job_held_for_want_of_a_node_is_sent_once_but_for_what_is_anothers_by_now():
    spec = job_spec("any")
    job, other = (JobRecord(id, spec, resolve(spec, 1), client=None) for id in ("job", "other"))
    tasks = {}
    for number, key in enumerate(("rest", "root", "of another", "of nobody", "sent")):
        tasks[key] = SimpleNamespace(
            key=key, state="no-worker", worker_restrictions=HOLD, priority=(number,), annotations=None
        )
        job.park(tasks[key])
    tasks["sent"].state = "processing"
    owner = dict.fromkeys(tasks, job.lanes["rest"])
    owner |= {"root": job.lanes["root"], "of another": other.lanes["rest"]}
    del owner["of nobody"]
    lending = of_lending.Lending(SimpleNamespace(owner=owner), None)
    assert lending.unheld(job) == [], "it has always had a node"
    job.nodeless = True
    assert lending.unheld(job) == ["rest"]
    assert tasks["rest"].worker_restrictions is job.reach
    assert tasks["of another"].worker_restrictions is HOLD
    assert not job.nodeless


@pytest.mark.parametrize(
    ("node", "given", "who"),
    [
        ({}, {}, ["stays"]),
        ({"reserved": 0}, {}, []),
        ({"leaves": None}, {}, []),
        ({"job": "alone"}, {}, []),
        ({"job": "ended"}, {}, ["stays"]),
        ({}, {"lends": False}, []),
        ({}, {"there": False}, []),
    ],
    ids=["it changes hands", "held", "all have to leave", "exclusive", "of nobody", "kept by a part", "gone"],
)
def test_threads_of_a_node_that_changes_hands_are_lent_to_who_need_not_leave_it(node, given, who):
    active = {
        id: SimpleNamespace(request=SimpleNamespace(exclusive=id == "alone")) for id in ("alone", "holds")
    }
    facts = {"job": "holds", "reserved": 3, "leaves": lambda job: job == "goes", **node}
    at = {"a": SimpleNamespace(**facts)} if given.get("there", True) else {}
    state = SimpleNamespace(nodes=SimpleNamespace(at=at), jobs=SimpleNamespace(active=active))
    lending = of_lending.Lending(state, SimpleNamespace(lends=lambda node: given.get("lends", True)))
    assert lending._changing("a", ["goes", "stays"]) == who
