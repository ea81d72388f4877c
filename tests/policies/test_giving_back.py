"""A job that rests has the pool keep its smallest size alone; every other keeps what it holds."""

from __future__ import annotations

import pytest

from dask_hpc_policies.model import JobRequest
from dask_hpc_policies.rules.giving_back import given_back, kept_nodes


def job(**fields):
    return JobRequest(**{"name": "j", "submit_s": 0.0, "kind": "malleable", "max_nodes": 8, **fields})


@pytest.mark.parametrize(
    ("fields", "nodes", "fixed", "rests", "kept"),
    [
        ({}, 6, 0, True, 1),
        ({}, 6, 0, False, 6),
        ({"min_nodes": 2}, 6, 0, True, 2),
        # pinned nodes and those with an actor stay
        ({"min_nodes": 2}, 6, 3, True, 3),
        ({"min_nodes": 2}, 6, 1, True, 2),
        # what was lost is asked for
        ({"min_nodes": 2}, 1, 0, True, 2),
        ({"min_nodes": 2}, 1, 0, False, 2),
        ({}, 0, 0, False, 1),
        # never resized, or not by one node
        ({"kind": "rigid", "min_nodes": 6, "max_nodes": 6}, 6, 0, True, 6),
        ({"kind": "moldable"}, 6, 0, True, 6),
        ({"kind": "evolving"}, 6, 0, True, 6),
        ({"constraint": "pof2"}, 8, 0, True, 8),
    ],
)
def test_what_a_job_keeps(fields, nodes, fixed, rests, kept):
    assert kept_nodes(job(**fields), nodes, fixed, rests) == kept


def test_its_user_is_told_why_and_when_it_gets_nodes_again():
    text = given_back(job(min_nodes=2), 5.0).text
    for part in ("no task for 5 s (hpc.lend)", "beyond 2 nodes (min_nodes)", "with its next tasks"):
        assert part in text
