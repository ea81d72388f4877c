"""Results of the explorer are saved, drawn and shown, also as words; it is reached from the package."""

from __future__ import annotations

import json
import re
import sys
from html import unescape

import pytest
from markup import text

import dask_hpc
from dask_hpc.errors import InstallError
from dask_hpc.sim import results
from dask_hpc_widgets.explore import exploration

pytestmark = pytest.mark.usefixtures("no_figure")
EVIL = "<script>alert('x')</script>"
drawn = exploration._figures


def test_results_are_saved_and_not_overwritten_unasked(explorer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    explorer.run.click()
    explorer.path.value = "found.json"
    explorer.save.click()
    assert text(explorer.saved.value) == "Saved as found.json."
    saved = json.loads((tmp_path / "found.json").read_text())
    expected = [{"label": label, **one.to_json()} for label, one in explorer._outcome.runs.items()]
    assert saved == json.loads(json.dumps({"schema": 1, "kind": "comparison", "runs": expected}))
    assert [len(run["jobs"]) for run in saved["runs"]] == [4, 4]

    (tmp_path / "found.json").write_text("mine")
    explorer.save.click()
    said = text(explorer.saved.value)
    assert said.startswith("Error: not saved: found.json is there already: tick 'Replace the file'")
    assert (tmp_path / "found.json").read_text() == "mine"
    explorer.replace.value = True
    explorer.save.click()
    assert json.loads((tmp_path / "found.json").read_text()) == saved
    # the next one is asked for anew
    assert explorer.replace.value is False
    assert [path.name for path in tmp_path.iterdir()] == ["found.json"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("", "results file is '': give it a name that ends in .json"),
        ("found.txt", "results file is 'found.txt': give it a name that ends in .json"),
        ("nowhere/found.json", "No such file or directory"),
    ],
)
def test_where_results_cannot_be_saved(explorer, tmp_path, monkeypatch, path, said):
    monkeypatch.chdir(tmp_path)
    explorer.run.click()
    explorer.path.value = path
    explorer.save.click()
    assert text(explorer.saved.value).startswith("Error: not saved: ")
    assert said in text(explorer.saved.value)
    explorer.path.value = "another.json"
    assert explorer.saved.value == "", "an error goes when what it is about is changed"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_leaves_the_old_file(explorer, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    explorer.run.click()
    file = tmp_path / "found.json"
    file.write_text("mine")
    monkeypatch.setattr("os.replace", full)
    explorer.path.value, explorer.replace.value = str(file), True
    explorer.save.click()
    assert "No space left on device" in text(explorer.saved.value)
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


def test_the_figure_is_also_told_in_words(explorer, monkeypatch):
    monkeypatch.setattr(exploration, "_figures", drawn)
    explorer.run.click()
    image, waits = re.findall(r"<img[^>]*>", explorer.results.value)
    used, waited = (unescape(re.search(r'alt="([^"]*)"', one)[1]) for one in (image, waits))
    # 88 node-seconds of 10 nodes in 12 s, twice
    assert used == (
        "Nodes in use over time, of 10. fcfs: 7.33 on average for 12 s; easy: 7.33 on average for 12 s."
    )
    # they start at 0, 4, 4 and 8 s, and at 0, 4, 0 and 8 s
    assert waited == (
        "Jobs that wait over time, and how long. fcfs: at most 3 jobs at once, 4 s in the median, "
        "at most 8 s; easy: at most 2 jobs at once, 2 s in the median, at most 8 s."
    )
    assert 'src="data:image/png;base64,iVBORw0KGgo' in image
    assert image in explorer.html()
    assert EVIL not in drawn({EVIL: explorer._outcome.runs["easy"]})


def test_without_matplotlib_there_are_results_and_a_hint(explorer, monkeypatch):
    monkeypatch.setattr(exploration, "_figures", drawn)
    monkeypatch.setitem(sys.modules, "dask_hpc.sim.results.plots", None)
    monkeypatch.delattr(results, "plots", raising=False)
    explorer.run.click()
    assert "There is no figure: it needs matplotlib, pip install 'dask-hpc[plot]'." in text(
        explorer.results.value
    )
    assert "Mean wait 4 s 3 s" in text(explorer.results.value)


def test_what_a_notebook_shows_and_what_it_keeps(explorer):
    assert repr(explorer) == "<Explorer workload='figure-5-1' policies=2>"
    data = explorer._repr_mimebundle_()
    data = data[0] if isinstance(data, tuple) else data
    assert data["text/plain"] == repr(explorer)
    assert data["text/html"] == explorer.html()
    assert "application/vnd.jupyter.widget-view+json" in data


def test_it_is_reached_from_the_package(monkeypatch):
    explorer = dask_hpc.explore()
    assert repr(explorer) == "<Explorer workload='five-jobs' policies=2>"
    assert not explorer.run.disabled
    explorer.close()
    explorer = dask_hpc.explore("mine.swf", ["easy", "sfsj", {"policy": "easy", "compose": ["mtct"]}])
    assert repr(explorer) == "<Explorer workload='mine.swf' policies=3>"
    assert "Policy 3: easy + mtct" in text(explorer.policies.entries[2].head.value)
    explorer.close()
    monkeypatch.setitem(sys.modules, "dask_hpc_widgets.explorer", None)
    with pytest.raises(
        InstallError, match=r"the explorer needs ipywidgets .*pip install 'dask-hpc\[widgets\]'"
    ):
        dask_hpc.explore()


class Mine:
    """A policy that no data describes."""

    name = "mine"

    def initial_state(self):
        return None

    def decide(self, view, state):
        return None, state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workload": "builtin:esp10"}, "unknown workload 'esp10'.*did you mean 'esp-10'"),
        ({"policies": ["easy"]}, "1 policies to compare; give 2 to 6"),
        ({"policies": ["easy"] * 7}, "7 policies to compare; give 2 to 6"),
        ({"policies": ["easy", "eazy"]}, "eazy"),
        (
            {"policies": ["easy", Mine()]},
            "policy '.*:Mine' is an object: give a name, a file or a specification",
        ),
    ],
)
def test_what_it_cannot_begin_with(arguments, said):
    with pytest.raises(ValueError, match=said):
        dask_hpc.explore(**arguments)


def test_one_policy_and_a_number_are_no_list_and_no_workload():
    with pytest.raises(TypeError, match="policies is 'easy'; needed: a list of 2 to 6 policies"):
        dask_hpc.explore(policies="easy")
    with pytest.raises(TypeError, match="workload is None; needed: builtin:NAME, or the path of a file"):
        dask_hpc.explore(None)
