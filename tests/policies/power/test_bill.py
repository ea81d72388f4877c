"""The bill of a run, by hand: what is not known is not 0, and the parts are the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc_policies.power import bill as rules
from dask_hpc_policies.power.bill import NodeUses, Uses, bill


def test_a_bill_by_hand() -> None:
    uses = Uses()
    uses.add(1800.0, 1000.0, {"a": 700.0}, 0.0, 300.0, measured=False, measured_jobs=("a",))
    uses.add(1800.0, 3000.0, {"a": 900.0, "b": 1900.0}, 100.0, 100.0, measured=True)
    found = bill(uses, price=200.0, carbon=400.0)
    total, first, second = found["total"], found["jobs"]["a"], found["jobs"]["b"]
    assert (total["energy_kwh"], total["least_w"], total["mean_w"], total["most_w"]) == (2, 1000, 2000, 3000)
    assert total["energy_delay_js"] == 7.2e6 * 3600
    assert (total["cost"], total["carbon_g"]) == (pytest.approx(0.4), pytest.approx(800))
    assert (first["label"], second["label"], total["label"]) == ("measured", "measured", "modelled")
    assert second["known_s"] == 1800
    plain = bill(uses)["plain"]
    assert (plain["cost"], plain["carbon_g"], plain["energy_j"]) == (None, None, 180_000)


def test_what_is_not_known_is_not_0() -> None:
    found = bill(Uses(), price=1.0, carbon=1.0)
    assert found["jobs"] == {}
    for who in ("total", "idle", "plain", "earlier_jobs"):
        assert found[who].pop("label") == "unavailable"
        assert set(found[who].values()) == {None}


@given(st.lists(st.tuples(st.floats(0.1, 99), st.integers(0, 30), st.floats(1, 900)), min_size=1))
def test_jobs_idle_nodes_and_plain_work_are_the_total(rows: list[tuple[float, int, float]]) -> None:
    uses = Uses()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "JOBS_KEPT", 5)
        patch.setattr(rules, "NODES_KEPT", 3)
        for length_s, number, watts in rows:
            # a node comes with each job, and goes with it
            states_w, jobs_w = {"compute": watts + 10.0, "idle": 20.0}, {str(number): watts}
            there = ["x", str(number)], [30.0, watts]
            uses.add(length_s, watts + 30.0, jobs_w, 10.0, 20.0, True, (), states_w, *there)
        found = bill(uses)
    assert len(uses.jobs) <= 5
    jobs = [*found["jobs"].values(), *(found[who] for who in ("idle", "plain", "earlier_jobs"))]
    nodes = [*found["nodes"].values(), found["earlier_nodes"]]
    assert len(nodes) <= 4
    for parts in (jobs, found["states"].values(), nodes):
        energy_j = sum(use["energy_j"] or 0.0 for use in parts)
        assert energy_j == pytest.approx(found["total"]["energy_j"], rel=1e-3)


def test_nodes_of_now_are_never_among_the_earlier_ones() -> None:
    uses, names = Uses(), [str(number) for number in range(1200)]
    for _ in range(3):
        uses.add(10.0, 120_000.0, {}, 0.0, 120_000.0, True, (), {}, names, [100.0] * 1200)
        found = bill(uses)
    assert {use["energy_j"] for use in found["nodes"].values()} == {3000.0}
    assert (len(found["nodes"]), found["earlier_nodes"]["energy_j"]) == (1200, None)


def test_a_node_has_its_watts_while_others_come_and_go() -> None:
    nodes = NodeUses()
    for number in range(6):
        # b moves, c is there for a while and comes back
        drawn = {"a": 50.0, "b": 100.0 + 10 * number} | ({"c": 70.0} if number in (1, 4, 5) else {})
        nodes.add(2.0, list(drawn), list(drawn.values()), number != 1)
        if number == 3:
            assert nodes.uses()["a"].energy_j == 50.0 * 8
    told = {name: (use.energy_j, use.known_s, use.least_w, use.most_w) for name, use in nodes.uses().items()}
    assert told == {
        "a": (600.0, 12.0, 50.0, 50.0),
        "b": (1500.0, 12.0, 100.0, 150.0),
        "c": (420.0, 6.0, 70.0, 70.0),
    }
    assert not any(use.measured for use in nodes.uses().values())
