"""Sizes at random under load: a few rounds (``churn.py`` runs as many as one likes)."""

from __future__ import annotations

from churn import churn


def test_every_result_is_right_and_nothing_is_lost_or_run_twice_whatever_the_size() -> None:
    report = churn(12, seed=1, most_s=0.15)
    print(f"seed {report.seed}: {dict(report.counts)}")
    assert (report.wrong, report.lost, report.twice) == ([], [], [])
    assert report.counts["workers left"] > 0
    assert report.counts["workers joined"] > 0
    assert report.counts["shuffles"] == 2
