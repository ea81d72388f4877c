"""A part of the tests is drawn of each folder, the same in every process; in time each is run."""

from __future__ import annotations

from subset import drawn

NAMES = [f"tests/{folder}/test_{n}.py::test_it[a/b]" for folder in "abc" for n in range(7)]
NAMES.append("tests/d/test_1.py::test_it")


def test_a_seed_draws_the_same_part_of_each_folder_in_any_order() -> None:
    kept = drawn(NAMES, 0.4, "seed")
    assert kept == drawn(NAMES[::-1], 0.4, "seed")
    assert [sum(name.startswith(f"tests/{folder}/") for name in kept) for folder in "abcd"] == [3, 3, 3, 1]


def test_seeds_draw_different_parts_and_each_test_is_run_in_time() -> None:
    parts = [drawn(NAMES, 0.4, f"{seed}") for seed in range(30)]
    assert len({frozenset(part) for part in parts}) > 20
    assert set.union(*parts) == set(NAMES)
