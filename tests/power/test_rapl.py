"""The processors' counters: what overlaps is counted once, what wraps goes on, what is not known is not 0."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_trees import RANGE_UJ, Powercap

from dask_hpc.worker.power.figures import Counter, Figure, Meter, SensorError, spent_j
from dask_hpc.worker.power.rapl import Rapl

TWO = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1"}


def tree(root: Path, zones: dict[str, str], start_uj: dict[str, int] | None = None) -> Powercap:
    made = Powercap(root)
    for number, (id, name) in enumerate(zones.items()):
        # counters stand where they stand
        made.zone(id, name, (start_uj or {}).get(id, 7_000_000_000 + 1_234_567_890 * number))
    return made


def measured(root: Path, made: Powercap, watts: dict[str, float], seconds: float = 1.0) -> Figure:
    meter = Meter(Rapl(root))
    assert meter.sample(100.0).label == "unavailable"
    made.add({id: power * seconds for id, power in watts.items()})
    return meter.sample(100.0 + seconds)


def test_packages_and_their_memory_are_added_up_and_parts_of_packages_are_not(tmp_path: Path) -> None:
    parts = {"intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1:0": "dram"}
    made = tree(tmp_path, {**TWO, **parts})
    powers = {"intel-rapl:0": 60.0, "intel-rapl:1": 55.0}
    inner = {"intel-rapl:0:0": 40.0, "intel-rapl:0:1": 8.0, "intel-rapl:1:0": 7.0}
    found = measured(tmp_path, made, {**powers, **inner})
    assert found.label == "measured"
    assert found.watts == pytest.approx(130.0)
    assert found.energy_j == pytest.approx(130.0)


def test_a_platform_counts_alone(tmp_path: Path) -> None:
    made = tree(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram", "intel-rapl:1": "psys"})
    watts = {"intel-rapl:0": 20.0, "intel-rapl:0:0": 3.0, "intel-rapl:1": 45.0}
    assert measured(tmp_path, made, watts).watts == pytest.approx(45.0)


def test_a_platform_that_stands_still_does_not_hide_the_packages(tmp_path: Path) -> None:
    made = tree(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:1": "psys"})
    assert measured(tmp_path, made, {"intel-rapl:0": 20.0}).watts == pytest.approx(20.0)


def test_dies_that_show_one_counter_count_once_and_others_each(tmp_path: Path) -> None:
    dies = {f"intel-rapl:{die}": f"package-0-die-{die}" for die in (0, 1)}
    both = dict.fromkeys(dies, 68.0)
    mirrored = tree(tmp_path / "mirrored", dies, {"intel-rapl:0": 10**9, "intel-rapl:1": 10**9 + 200_000})
    assert measured(tmp_path / "mirrored", mirrored, both).watts == pytest.approx(68.0)
    apart = tree(tmp_path / "apart", dies)
    assert measured(tmp_path / "apart", apart, both).watts == pytest.approx(136.0)
    # at one value by chance, and then not
    met = tree(tmp_path / "met", dies, dict.fromkeys(dies, 10**9))
    found = measured(tmp_path / "met", met, {"intel-rapl:0": 30.0, "intel-rapl:1": 68.0})
    assert found.watts == pytest.approx(98.0)


def test_one_die_of_a_mirrored_pair_may_have_begun_again(tmp_path: Path) -> None:
    dies = {f"intel-rapl:{die}": f"package-0-die-{die}" for die in (0, 1)}
    made = tree(tmp_path, dies, {"intel-rapl:0": RANGE_UJ - 100_000, "intel-rapl:1": 100_000})
    assert measured(tmp_path, made, dict.fromkeys(dies, 68.0)).watts == pytest.approx(68.0)


@pytest.mark.parametrize("driver", ["intel-rapl-mmio", "intel-rapl-tpmi"])
def test_a_package_that_two_drivers_show_counts_once(tmp_path: Path, driver: str) -> None:
    made = tree(tmp_path, {"intel-rapl:0": "package-0", f"{driver}:0": "package-0"})
    watts = {"intel-rapl:0": 12.0, f"{driver}:0": 12.1}
    assert measured(tmp_path, made, watts).watts == pytest.approx(12.0)
    assert len(Rapl(tmp_path).read()) == 1


def test_zones_in_zones_are_found_and_a_copy_of_sys_alone_will_do(tmp_path: Path) -> None:
    made = tree(tmp_path, {"intel-rapl:0": "package-0", "intel-rapl:0:0": "dram"})
    (made.folder / "intel-rapl:0:0").rename(made.folder / "intel-rapl:0" / "intel-rapl:0:0")
    for root in (tmp_path, tmp_path / "sys", made.folder):
        assert set(Rapl(root).read()) == {"intel-rapl:0", "intel-rapl:0:0"}


@given(
    start=st.integers(0, RANGE_UJ - 1), watts=st.floats(0.1, 900), seconds=st.floats(0.1, 60),
)  # fmt: skip
def test_a_counter_that_begins_again_goes_on(start: int, watts: float, seconds: float) -> None:
    end_uj = (start + round(watts * seconds * 1e6)) % RANGE_UJ
    before, now = (Counter(value / 1e6, RANGE_UJ / 1e6, 2_000.0) for value in (start, end_uj))
    found_w = spent_j("package-0", before, now, seconds) / seconds
    assert found_w == pytest.approx(watts, rel=1e-3, abs=1e-3)


def test_counters_that_begin_again_at_other_times_are_followed_over_hours(
    tmp_path: Path,
) -> None:
    zones = {**TWO, "intel-rapl:0:0": "dram", "intel-rapl-mmio:0": "package-0"}
    powers = {"intel-rapl:0": 210.0, "intel-rapl:1": 95.0, "intel-rapl:0:0": 18.0, "intel-rapl-mmio:0": 211.0}
    made = tree(tmp_path, zones, {"intel-rapl:0": RANGE_UJ - 5, "intel-rapl-mmio:0": RANGE_UJ - 7})
    meter, found_j = Meter(Rapl(tmp_path)), 0.0
    meter.sample(0.0)
    # the first counter has 262 kJ: it begins again every 21 minutes, the second every 46
    for number in range(1, 241):
        made.add({id: 30 * watts for id, watts in powers.items()})
        found = meter.sample(30.0 * number)
        assert found.label == "measured"
        found_j += found.energy_j
    assert found_j == pytest.approx(7200 * (210 + 95 + 18), rel=0.03)


def test_a_counter_that_was_reset_is_no_wrap(tmp_path: Path) -> None:
    made = tree(tmp_path, {"intel-rapl:0": "package-0"}, {"intel-rapl:0": 100_000_000_000})
    meter = Meter(Rapl(tmp_path))
    meter.sample(0.0)
    (made.folder / "intel-rapl:0" / "energy_uj").write_text("5\n")
    found = meter.sample(1.0)
    assert (found.label, found.watts) == ("unavailable", None)
    assert "intel-rapl:0 was reset" in found.reason
    made.add({"intel-rapl:0": 30.0})
    assert meter.sample(2.0).watts == pytest.approx(30.0)


def test_a_package_that_is_unplugged_costs_one_figure(tmp_path: Path) -> None:
    made = tree(tmp_path, TWO)
    meter = Meter(Rapl(tmp_path))
    meter.sample(0.0)
    shutil.rmtree(made.folder / "intel-rapl:1")
    made.add({"intel-rapl:0": 60.0})
    gone = meter.sample(1.0)
    assert (gone.label, gone.watts, gone.energy_j) == ("unavailable", None, 0.0)
    assert "intel-rapl:1 came or went" in gone.reason
    made.add({"intel-rapl:0": 60.0})
    assert meter.sample(2.0).watts == pytest.approx(60.0)
    shutil.rmtree(made.folder / "intel-rapl:0")
    none = meter.sample(3.0)
    assert (none.label, none.watts) == ("unavailable", None)
    assert "no energy counter" in none.reason


def test_counters_that_stand_still_are_not_zero_watts(tmp_path: Path) -> None:
    found = measured(tmp_path, tree(tmp_path, TWO), {})
    assert (found.label, found.watts) == ("unavailable", None)
    assert "not measured" in found.reason


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of zones whose counters may not be read: mode bits do not stop root."""
    names: set[str] = set()
    real = os.open

    def opened(path: object, *more: object, **others: object) -> int:
        if str(path).endswith("energy_uj") and Path(str(path)).parent.name in names:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opened)
    return names


def test_what_may_not_be_read_is_said_with_the_remedy_and_no_part_stands_for_the_whole(
    tmp_path: Path, refusing: set[str]
) -> None:
    tree(tmp_path, TWO)
    for denied in (["intel-rapl:1"], ["intel-rapl:0", "intel-rapl:1"]):
        refusing.update(denied)
        with pytest.raises(SensorError) as said:
            Rapl(tmp_path).read()
        assert "permission denied" in said.value.reason
        assert "ask the administrator for read access" in said.value.remedy


def test_another_driver_that_may_be_read_stands_in(tmp_path: Path, refusing: set[str]) -> None:
    made = tree(
        tmp_path, {"intel-rapl:0": "package-0", "intel-rapl-mmio:0": "package-0", "intel-rapl:1": "psys"}
    )
    refusing.update({"intel-rapl:0", "intel-rapl:1"})
    watts = {"intel-rapl:0": 12.0, "intel-rapl-mmio:0": 12.1, "intel-rapl:1": 40.0}
    assert measured(tmp_path, made, watts).watts == pytest.approx(12.1)
    # the platform alone is enough
    refusing.symmetric_difference_update({"intel-rapl-mmio:0", "intel-rapl:1"})
    assert measured(tmp_path, made, watts).watts == pytest.approx(40.0)
