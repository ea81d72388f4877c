"""Layouts cover their domain, and plans put every index where the new layout wants it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.layout import (
    Layout,
    LayoutError,
    Part,
    even_layout,
    indices_moved,
    layout_function,
    overlap_plan,
)


@st.composite
def layouts(draw, size=None):
    size = draw(st.integers(1, 60)) if size is None else size
    count = draw(st.integers(1, size))
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=count - 1)) if size > 1 else [])
    bounds = [0, *cuts, size]
    some = st.lists(st.sampled_from([f"n{i}" for i in range(4)]), min_size=count, max_size=count)
    alone = st.permutations([f"n{i}" for i in range(len(bounds) - 1)])
    nodes = draw(alone | some)[: len(bounds) - 1]
    return Layout(size, tuple(map(Part, nodes, bounds, bounds[1:])))


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 5))
def test_an_even_layout_covers_the_domain_and_differs_by_one_at_most(size, count, blocks):
    nodes = [f"n{i}" for i in range(count)]
    if count * blocks > size:
        with pytest.raises(LayoutError, match=f"allowed: 1 to {size // blocks} nodes"):
            even_layout(size, nodes, blocks)
        return
    layout = even_layout(size, nodes, blocks)
    layout.check(nodes)
    sizes = [part.size for part in layout.parts]
    assert max(sizes) - min(sizes) <= 1
    assert [part.node for part in layout.parts] == [node for node in nodes for _ in range(blocks)]
    assert layout.nodes == tuple(nodes)


@given(st.data())
def test_a_plan_puts_every_index_where_the_new_layout_wants_it(data):
    old = data.draw(layouts())
    new = data.draw(layouts(size=old.size))
    plan = overlap_plan(old, new)
    for target, pieces in zip(new.parts, plan, strict=True):
        assert [i for p in pieces for i in range(p.start, p.stop)] == list(range(target.start, target.stop))
        for piece in pieces:
            source = old.parts[piece.source]
            assert source.start <= piece.start < piece.stop <= source.stop


@given(st.data())
def test_what_moves_is_what_has_another_node_in_the_new_layout(data):
    old = data.draw(layouts())
    new = data.draw(layouts(size=old.size))
    before = {i: part.node for part in old.parts for i in range(part.start, part.stop)}
    after = {i: part.node for part in new.parts for i in range(part.start, part.stop)}
    expected = sum(before[i] != after[i] for i in before)
    assert indices_moved(old, new, overlap_plan(old, new)) == expected
    assert indices_moved(old, old, overlap_plan(old, old)) == 0


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([("a", 0, 4), ("b", 5, 10)], "a gap at index 4"),
        ([("a", 0, 6), ("b", 5, 10)], "an overlap at index 5"),
        ([("a", 0, 5), ("b", 5, 9)], "covers 0:9; the domain is 0:10"),
        ([("a", 0, 5), ("b", 5, 5), ("c", 5, 10)], "allowed: 1 or more"),
        ([("a", 0, 5), ("c", 5, 10)], "a part to each of a, b"),
        ([("a", 0, 5), ("a", 5, 10)], "a part to each of a, b"),
        ([], "covers 0:0"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_with_the_place(parts, words):
    layout = Layout(10, tuple(Part(*part) for part in parts))
    with pytest.raises(LayoutError, match=words):
        layout.check(["a", "b"])


def test_layouts_of_different_domains_have_no_plan():
    with pytest.raises(LayoutError, match="10 indices, the new one 11"):
        overlap_plan(even_layout(10, ["a"]), even_layout(11, ["a"]))


def test_blocks_of_a_node_are_a_whole_number_of_any_type():
    for blocks in (2, 2.0, np.int64(2)):
        assert layout_function(None, blocks)(8, ["a", "b"]) == even_layout(8, ["a", "b"], 2)
    for blocks in (0, 2.5, True, "2"):
        with pytest.raises(ValueError, match="allowed: a number of blocks, 1 or more"):
            layout_function(None, blocks)
