"""How many nodes plain work may keep busy: what fits, one at least, and jobs that wait come first."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.model import ClusterSnapshot, JobView, NodeView
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.rules.confined import plain_nodes

POWER = PowerView(mode="enforce", lower_w=0.0, upper_w=600.0, idle_w=70.0, busy_w=200.0)


def picture(*jobs: JobView, nodes: int = 4) -> ClusterSnapshot:
    return ClusterSnapshot(
        now_s=0.0,
        nodes=tuple(NodeView(id=f"n{i}") for i in range(nodes)),
        jobs=jobs,
        idle_nodes=nodes - sum(job.nodes for job in jobs),
    )


@given(st.floats(0, 3_000), st.floats(1, 500), st.integers(1, 20), st.integers(0, 20), st.integers(0, 20))
def test_it_has_one_node_at_least_and_no_more_than_there_are_watts_for(upper_w, node_w, free, busy, now):
    view, more_w = picture(nodes=free), min(busy, free) * node_w
    power = replace(POWER, upper_w=upper_w, base_w=more_w)
    nodes, reason = plain_nodes(view, power, more_w, node_w, free, min(now, free))
    assert 1 <= nodes <= free
    assert (reason is None) is (nodes == free)
    room_w = upper_w - free * 70.0
    assert nodes == 1 or nodes * node_w <= room_w + 1e-6
    # nor fewer, but for a node that there is hardly room for
    assert nodes == free or (nodes + 1.25) * node_w > room_w - 1e-6


def test_a_job_that_waits_for_watts_comes_first():
    view = picture()
    assert plain_nodes(view, POWER, 0.0, 130.0, 4, 4)[0] == 2
    job = JobView(id="heat", state="pending", start_nodes=1, min_nodes=1, max_nodes=1)
    waits = picture(job)
    assert plain_nodes(waits, POWER, 0.0, 130.0, 4, 4)[0] == 1
    # one that waits for nodes does not
    large = replace(job, start_nodes=9, max_nodes=9)
    assert plain_nodes(picture(large), POWER, 0.0, 130.0, 4, 4)[0] == 2
    assert plain_nodes(view, replace(POWER, mode="advise"), 0.0, 130.0, 4, 4) == (4, None)
    assert plain_nodes(view, replace(POWER, levers=("resize",)), 0.0, 130.0, 4, 4) == (4, None)


def test_it_gets_no_node_more_while_the_draw_is_above_the_upper_bound():
    view = picture(nodes=4)
    for draw_w, nodes in ((600.0, 4), (601.0, 2)):
        power = replace(POWER, upper_w=600.0, draw_w=draw_w)
        assert plain_nodes(view, power, 0.0, 60.0, 4, 2)[0] == nodes
    reason = plain_nodes(view, power, 0.0, 60.0, 4, 2)[1]
    assert reason is not None
    assert "while the draw is 601 W it gets no more" in reason.text
