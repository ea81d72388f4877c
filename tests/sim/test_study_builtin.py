"""The builtin studies: every condition of theirs holds, and they can be drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from dask_hpc.sim.study.figure import study_figure
from dask_hpc.sim.study.study import StudyResult, builtin_studies, load_study, run_study

#: Short enough to be run each time; the others are run with the slow tests.
QUICK = ("node-stealing", "figure-5-1", "five-jobs", "esp-10")
WHOLE = ("esp", "fair")
FAST = ("io-aware", "mebf", "sfsj", "sfsj-victims")
#: Smaller still; the same runs in full are in the tests of the policy.
SMALLER = {"mebf": {"option.jobs": 40}}


def held(name: str, *, fast: bool, jobs: int = 1) -> StudyResult:
    study = load_study(f"builtin:{name}", fast=fast, overrides=SMALLER.get(name))
    found = run_study(study, jobs=jobs)
    print(found.table())
    assert found.failures == []
    assert found.conditions
    assert all(one.ok is True for one in found.conditions)
    return found


def test_every_builtin_study_is_run_here() -> None:
    assert sorted((*QUICK, *WHOLE, *FAST)) == list(builtin_studies())


@pytest.mark.parametrize("name", builtin_studies())
def test_every_builtin_study_says_what_it_is(name: str) -> None:
    for fast in (False, True):
        study = load_study(f"builtin:{name}", fast=fast)
        assert study.name == name
        assert study.description
        assert study.source
        assert study.expect


@pytest.mark.parametrize("name", QUICK)
def test_small_studies_hold(name: str) -> None:
    held(name, fast=False)


def test_esp_holds_on_one_order_and_is_drawn_along_the_share(tmp_path: Path) -> None:
    found = held("esp", fast=True)
    turn = next(one for one in found.turns if one.metric == "makespan_s")
    assert len(turn.at) == 1
    assert 0.1 < turn.at[0] < 1
    study_figure(found, tmp_path / "esp.png")
    assert (tmp_path / "esp.png").read_bytes().startswith(b"\x89PNG")


def test_fair_holds_on_one_order() -> None:
    held("fair", fast=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_studies_hold(name: str) -> None:
    held(name, fast=False, jobs=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_short_studies_hold(name: str) -> None:
    held(name, fast=True, jobs=2)
