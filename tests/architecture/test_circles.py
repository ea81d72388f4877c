"""The import graph of the three packages, with imports for types alone counted: no circle, few rooms.

How rooms are counted: for the whole, a room is what lies directly in `dask_hpc`, a folder or a loose module
(its ``__init__`` too), and each of the two other packages. Within a package of rooms, a room is what lies
directly in that package. An arrow is an import between two rooms; the floor of a room is the length of the
longest way of arrows down from it, 1 where it imports no other room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGES = ("dask_hpc_widgets", "dask_hpc", "dask_hpc_policies")
MOST_ROOMS, MOST_FLOORS = 32, 11

#: What each module imports.
Imports = Mapping[str, set[str]]


def imports_of(*packages: str) -> Imports:
    graph = grimp.build_graph(*packages, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


@pytest.fixture(scope="module")
def imports() -> Imports:
    return imports_of(*PACKAGES)


def circle(imports: Imports) -> list[str]:
    """The modules of one circle, the first of them again at the end; empty when there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def whole(module: str) -> str:
    """The room of a module in the house as a whole."""
    top, *rest = module.split(".")
    return f"{top}.{rest[0]}" if top == "dask_hpc" and rest else top


def within(package: str) -> Callable[[str], str]:
    """The room of a module in `package`; empty for one that is not in it."""

    def room(module: str) -> str:
        inside = module.removeprefix(f"{package}.")
        return "" if inside == module else f"{package}.{inside.split('.')[0]}"

    return room


def rooms_of(imports: Imports, room: Callable[[str], str]) -> dict[str, set[str]]:
    """What each room imports."""
    found: dict[str, set[str]] = {name: set() for name in map(room, imports) if name}
    for module, imported in imports.items():
        if room(module):
            found[room(module)] |= {name for name in map(room, imported) if name} - {room(module)}
    return found


def floors_of(rooms: Imports) -> dict[str, int]:
    floors: dict[str, int] = {}
    for name in TopologicalSorter(rooms).static_order():
        floors[name] = 1 + max((floors[below] for below in rooms[name]), default=0)
    return floors


def test_no_modules_import_each_other(imports: Imports) -> None:
    assert circle(imports) == []


@pytest.mark.parametrize(
    "package", ["dask_hpc.scheduler", "dask_hpc.sim", "dask_hpc_policies", "dask_hpc_widgets"]
)
def test_no_rooms_of_a_package_import_each_other(imports: Imports, package: str) -> None:
    rooms = rooms_of(imports, within(package))
    assert len(rooms) > 5
    assert circle(rooms) == []


def test_the_house_has_few_rooms_over_few_floors(imports: Imports) -> None:
    rooms = rooms_of(imports, whole)
    assert circle(rooms) == []
    floors = floors_of(rooms)
    print(f"{len(rooms)} rooms, {max(floors.values())} floors, {sum(map(len, rooms.values()))} arrows")
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])
    assert floors["dask_hpc_policies"] == 1
    assert floors["dask_hpc.cli"] == max(floors.values())


def test_imports_for_types_and_within_functions_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "walkabout"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "here.py").write_text("def f():\n    from walkabout import there\n")
    (package / "there.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from walkabout.here import f\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle(imports_of("walkabout"))) == {"walkabout.here", "walkabout.there"}
