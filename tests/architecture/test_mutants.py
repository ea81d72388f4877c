"""The lines that `make mutants` breaks are there, and it tells tests that notice from those that do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mutants
import pytest
from mutants import Mutant, Verdict

PRODUCT = "def price(kilos):\n    return 3 * kilos\n"
TESTS = "from product import price\n\ndef test_price():\n    assert price(2) == 6\n"
BROKEN = Mutant(
    file="product.py", find="3 * kilos", replace="3 + kilos", tests="test_product.py", why="a price"
)


def test_every_row_breaks_one_place_that_is_there() -> None:
    rows = mutants.table()
    assert len(rows) >= 50
    assert mutants.wrong(rows) == []
    assert len({(row.file, row.find, row.replace) for row in rows}) == len(rows)


def test_rows_that_break_nothing_are_told() -> None:
    (row,) = [row for row in mutants.table() if row.find == "return job.nodes, -late_s"]
    for change, said in (
        ({"file": "nowhere.py"}, "0 times"),
        ({"find": "return"}, "times; it must be there once"),
        ({"replace": row.find}, "is replaced by itself"),
        ({"tests": "tests/nowhere.py::test_it"}, "there is no tests/nowhere.py"),
        ({"tests": f"{row.tests.partition('::')[0]}::test_it"}, "::test_it"),
    ):
        (found,) = mutants.wrong([dataclasses.replace(row, **change)])
        assert said in found


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of pytest that are installed take longer to load than the tests of these trees run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree of one line and one test."""
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "test_product.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


def test_a_line_whose_breaking_is_noticed_is_killed_and_mended(tree: Path) -> None:
    assert mutants.unbroken([BROKEN], tree) is None
    assert mutants.judge(BROKEN, tree).text == "killed"
    assert (tree / "product.py").read_text() == PRODUCT


def test_a_line_whose_breaking_nobody_notices_survives(tree: Path) -> None:
    # twice the same size and perhaps the same second: the file is read anew all the same
    unnoticed = dataclasses.replace(BROKEN, replace="4 + kilos")
    assert [mutants.judge(one, tree).text for one in (BROKEN, unnoticed)] == ["killed", "survived"]


def test_one_row_is_judged_by_its_own_tests_however_many_processes_there_are(tmp_path: Path) -> None:
    for name, text in (
        ("dask_hpc/product.py", PRODUCT),
        ("tests/test_product.py", TESTS),
        ("tests/test_other.py", "def test_that_no_row_names():\n    assert False\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["dask_hpc"]\n'),
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    row = dataclasses.replace(BROKEN, file="dask_hpc/product.py", tests="tests/test_product.py")
    assert mutants.run([row], 2, tmp_path) == 0


def test_tests_that_fail_anyway_or_do_not_run_judge_nothing(tree: Path) -> None:
    (tree / "product.py").write_text(PRODUCT.replace("3", "7"))
    said = mutants.unbroken([BROKEN], tree)
    assert said is not None
    assert "assert 14 == 6" in said
    assert mutants.judge(dataclasses.replace(BROKEN, tests="absent.py"), tree).text.startswith(
        "pytest ended with 4"
    )


def test_more_survivors_than_allowed_or_a_row_that_was_not_judged_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    killed, survived = (Verdict(BROKEN, text, 1.0) for text in ("killed", "survived"))
    assert mutants.summary([killed] * 48 + [survived] * 2) == 0
    assert "48 of 50 killed, 2 survived" in capsys.readouterr().out
    assert mutants.summary([killed] * 47 + [survived] * 3) == 1
    assert "- 3 * kilos\n+ 3 + kilos" in capsys.readouterr().out
    assert mutants.summary([killed] * 49 + [Verdict(BROKEN, "pytest ended with 4: no such file", 1.0)]) == 2
