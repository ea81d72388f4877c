"""What is used of Dask's internals is checked before anything of ours is installed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from distributed import broker, spans
from distributed import scheduler as stock
from distributed.shuffle._core import SchedulerShuffleState

from dask_hpc.scheduler import internals
from dask_hpc.scheduler.internals import selfcheck

#: What the room `internals` calls things of Dask, and the class of each.
NAMES = {
    "scheduler": "Scheduler", "_scheduler": "Scheduler", "ts": "TaskState", "dts": "TaskState",
    "barrier": "TaskState", "ws": "WorkerState", "worker": "WorkerState", "victim": "WorkerState",
    "old": "WorkerState", "new": "WorkerState", "group": "TaskGroup", "prefix": "TaskPrefix",
    "kind": "TaskPrefix",
}  # fmt: skip


def attributes() -> set[tuple[str, str, str]]:
    """Class, attribute and file of what is used of objects that go by those names."""
    found = set()
    for path in Path(internals.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                owner = getattr(node.value, "id", getattr(node.value, "attr", None))
                if owner in NAMES:
                    found.add((NAMES[owner], node.attr, path.name))
    return found


def test_all_that_is_used_of_tasks_workers_and_the_scheduler_is_checked() -> None:
    named = {(owner.__name__, name) for owner, name in selfcheck._FUNCTIONS}
    named |= {(owner.__name__, name) for owner, names in selfcheck._FIELDS.items() for name in names}
    named |= {("Scheduler", name) for name in selfcheck._ATTRIBUTES}
    used = attributes()
    assert len(used) > 100
    assert {each for each in used if each[:2] not in named} == set()


def test_the_installed_release_is_as_expected() -> None:
    assert selfcheck.check() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (stock.Scheduler, "gather_on_worker"),
        (stock.ClientState, "wants_what"),
        (stock.TaskState, "who_wants"),
        (stock.WorkerState, "has_what"),
        (spans.SpansSchedulerExtension, "observe_tasks"),
        # objects alone have these: their class says so
        (broker.Topic, "subscribers"),
        (SchedulerShuffleState, "participating_workers"),
    ],
)
def test_what_a_release_has_no_more_is_named(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(owner, name, raising=False)
    said = {other: what for other, what in vars(owner)["__annotations__"].items() if other != name}
    monkeypatch.setattr(owner, "__annotations__", said)
    assert selfcheck.check() == [f"{owner.__name__}.{name} is missing"]


def test_an_event_log_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock.Scheduler, "log_event", lambda self, event: None)
    assert selfcheck.check() == ["Scheduler.log_event has no parameter topic, msg"]


def test_a_step_of_tasks_that_there_is_no_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock.Scheduler, "_TRANSITIONS_TABLE", dict(stock.Scheduler._TRANSITIONS_TABLE))
    del stock.Scheduler._TRANSITIONS_TABLE["waiting", "no-worker"]
    assert selfcheck.check() == ["the scheduler takes no task from waiting to no-worker in one step"]


def test_a_function_with_another_parameter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock.ClientState, "__init__", lambda self, name: None)
    assert selfcheck.check() == ["ClientState.__init__ has no parameter client"]
