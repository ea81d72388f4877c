"""What clients are told of power, as plain data."""

from __future__ import annotations

from typing import Any

from dask_hpc.scheduler.power.account import Account
from dask_hpc.scheduler.power.request import Wanted
from dask_hpc_policies.codec import encode
from dask_hpc_policies.power.view import PowerView


def told(
    now_s: float,
    asked: Wanted | None,
    account: Account,
    view: PowerView | None,
    most_ended: int | None = None,
) -> dict[str, Any]:
    """The row of ``rt.power()``.

    Parameters
    ----------
    most_ended
        Of jobs that draw nothing now at most so many have a row, the latest; None: all that are kept.

    Returns
    -------
    dict
        ``draw_w`` and ``label`` (measured, modelled, unavailable: then the watts are None); ``nodes`` and
        ``measured_nodes``; of the corridor ``mode`` (None: there is none), ``lower_w``, ``upper_w``,
        ``over_s``, ``ramp_w_s``, ``next_step`` ([seconds from now, lower, upper]), ``min_w`` and ``max_w``
        (expected at the present sizes), ``unexplained_w`` (of these, watts drawn steadily beyond all that is
        known of jobs and nodes), ``plan``; since it was set ``accounted_s``, ``energy_j`` (of all) and what
        it is made of, ``idle_j``, ``plain_j``, ``earlier_jobs_j`` and the rows of ``jobs``, those that draw
        now at the end, with ``more_jobs`` that have none; ``outside_ws`` and ``outside_s``.
    """
    last = account.last
    known = last is not None and last.label != "unavailable"
    step = None if asked is None else asked.bounds.at(now_s)
    later = () if asked is None else asked.bounds.after(now_s, 1)
    now_w = {} if last is None else last.jobs_w
    # a scrape may come from any thread while the loop adds to it
    kept, uses, used = asked is not None, account.uses, dict(account.uses.jobs)
    ended = [id for id in used if id not in now_w]
    more = 0 if most_ended is None else max(0, len(ended) - most_ended)
    return {
        "draw_w": account.draw_w,
        "label": "unavailable" if last is None else last.label,
        "nodes": 0 if last is None else last.nodes,
        "measured_nodes": 0 if last is None else last.measured_nodes,
        "mode": None if asked is None else asked.mode,
        "lower_w": None if step is None else step[1],
        "upper_w": None if step is None else step[2],
        "over_s": None if asked is None else asked.over_s,
        "ramp_w_s": None if asked is None else asked.ramp_w_s,
        "next_step": [later[0][0] - now_s, *later[0][1:]] if later else None,
        "min_w": None if view is None else view.min_w,
        "max_w": None if view is None else view.max_w,
        "unexplained_w": None if view is None or view.max_w is None else view.unexplained_w[1],
        "plan": None if view is None or view.plan is None else encode(view.plan),
        "accounted_s": account.known_s if kept else None,
        "energy_j": uses.total.energy_j if kept else None,
        "idle_j": uses.idle.energy_j if kept else None,
        "plain_j": uses.plain.energy_j if kept else None,
        "earlier_jobs_j": uses.earlier.energy_j if kept else None,
        "outside_ws": account.outside_ws if kept else None,
        "outside_s": account.outside_s if kept else None,
        "jobs": [
            {
                "job": id,
                "draw_w": now_w.get(id) if known else None,
                "energy_j": used[id].energy_j if id in used else 0.0,
            }
            for id in (*ended[more:], *now_w)
        ],
        "more_jobs": more,
    }
