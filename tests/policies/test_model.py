"""What policies see: written as it always was, made at less cost, one place for each fact."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.codec import decode, encode, field_names
from dask_hpc_policies.model import ClusterSnapshot, JobFacts, JobRequest, JobView, NodeFacts, NodeView
from dask_hpc_policies.views import job_view, node_view, values_of

#: A view as the first release wrote it.
FIRST_JOB = (
    '{"id": "a", "name": "", "state": "pending", "kind": "malleable", "nodes": 0, "start_nodes": null, '
    '"min_nodes": 1, "max_nodes": 1, "preferred_nodes": null, "constraint": "any", "submit_s": 0.0, '
    '"start_s": null, "walltime_s": null, "remaining_s": null, "recorded_s": null, "restart_s": null, '
    '"priority": 0, "min_power_w": null, "max_power_w": null, "io_intensity": null, "io_by_nodes": [], '
    '"requested_nodes": null, "at_scheduling_point": true, "interruption": "none", "interrupted_s": null, '
    '"expansions": 0, "mtct": null, "mtct_previous": null, "unfinished_tasks": 0, "processing_tasks": 0, '
    '"is_default": false}'
)
FIRST_NODE = (
    '{"id": "n", "job": null, "state": "up", "workers": 1, "nthreads": 1, "memory_bytes": 0, '
    '"walltime_left_s": null, "domain": null}'
)


@pytest.mark.parametrize(("made", "text"), [(JobView(id="a"), FIRST_JOB), (NodeView(id="n"), FIRST_NODE)])
def test_what_was_written_first_is_written_so_for_ever(made: Any, text: str) -> None:
    assert json.dumps(encode(made)) == text
    assert decode(type(made), json.loads(text)) == made


def test_what_was_added_later_is_written_behind_when_it_is_said() -> None:
    later = {"deadline_s": 60.0, "value": 2.0, "protect": "field", "resilience": "ml"}
    made = JobView(id="a", **later)
    data = encode(made)
    assert list(data)[-len(later) :] == list(later)
    assert decode(JobView, json.loads(json.dumps(data))) == made
    assert encode(NodeView(id="n", role="staging"))["role"] == "staging"


@pytest.mark.parametrize("kind", [JobView, NodeView])
def test_every_field_is_written_at_some_time(kind: type) -> None:
    assert sorted(field_names(kind)) == sorted(field.name for field in fields(kind))


numbers = st.integers(0, 9)
facts = st.fixed_dictionaries(
    {}, optional={"name": st.text(max_size=3), "priority": numbers, "value": numbers}
)
sizes = st.fixed_dictionaries({}, optional={"submit_s": numbers, "min_nodes": numbers, "recorded_s": numbers})
own = st.fixed_dictionaries(
    {"id": st.text(max_size=3)},
    optional={
        name: numbers for name in (field.name for field in fields(JobView)) if name not in values_of(
            JobRequest, JobRequest()
        ) and name != "id"
    },
)  # fmt: skip


@given(facts, sizes, own)
def test_a_view_that_is_made_fast_is_the_same(facts: Any, sizes: Any, own: Any) -> None:
    request = JobRequest(**facts, **sizes)
    fast, plain = job_view(request, **own), JobView(**facts, **sizes, **own)
    assert fast == plain
    assert hash(fast) == hash(plain)
    with pytest.raises(FrozenInstanceError):
        fast.nodes = 3  # type: ignore[misc]


def test_every_field_of_a_request_is_in_its_view() -> None:
    names = values_of(JobRequest, JobRequest())
    request = JobRequest(**{name: number for number, name in enumerate(names)})  # type: ignore[arg-type]
    assert values_of(JobRequest, job_view(request, id="a")) == values_of(JobRequest, request)
    assert set(values_of(JobRequest, request).values()) == set(range(len(names)))


def test_a_node_that_is_made_fast_is_the_same() -> None:
    facts = NodeFacts(workers=2, nthreads=4, memory_bytes=8, domain="rack", role="staging")
    own: dict[str, Any] = {"id": "n", "job": "a", "state": "draining", "walltime_left_s": 5.0}
    assert node_view(facts, **own) == NodeView(**values_of(NodeFacts, facts), **own)
    assert node_view(NodeFacts(), id="n") == NodeView(id="n")


def test_values_are_those_of_the_named_class() -> None:
    view = JobView(id="a", name="heat", min_nodes=2, nodes=3)
    assert values_of(JobFacts, view) == values_of(JobFacts, JobFacts(name="heat"))
    assert JobRequest(**values_of(JobRequest, view)) == JobRequest(name="heat", min_nodes=2)


def test_idle_nodes_by_role() -> None:
    nodes = (
        NodeView(id="a"),
        NodeView(id="b", role="staging"),
        NodeView(id="c", role="staging", job="j"),
        NodeView(id="d", role="staging", state="draining"),
        NodeView(id="e", role="staging"),
    )
    view = ClusterSnapshot(now_s=0.0, nodes=nodes, idle_nodes=7)
    assert (view.of_role(), view.of_role("staging"), view.of_role("reserve")) == (7, 2, 0)
