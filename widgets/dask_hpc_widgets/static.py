"""Static twins of the panel: what runtime, jobs, decisions, policies and clusters look like in a notebook.

Rules of the file: data in, a whole piece of HTML with its styles out; no widget, no cluster, no clock. Needs
nothing but what the views need. `dask_hpc.show` reaches it by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dask_hpc_policies.wording import counted
from dask_hpc_widgets import views
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.markup import Markup, element, strong
from dask_hpc_widgets.views import Picture, checkpoints, decisions, io, jobs

Rows = Sequence[Mapping[str, Any]]

#: This many of the latest decisions are shown beside other things.
_LATEST = 5


def jobs_html(rows: Rows, now_s: float | None) -> str:
    """Rows as `Runtime.jobs` gives them, at scheduler time `now_s` (None: that of the latest row)."""
    return markup.page(_jobs(rows, now_s))


def decisions_html(rows: Rows, now_s: float | None) -> str:
    """Rows as `Runtime.decisions` gives them, the latest of them, newest first."""
    hidden = len(rows) - decisions.MAX_ROWS
    more = f"{counted(hidden, 'earlier decision')} not shown." if hidden > 0 else ""
    return markup.page(_decisions(rows, now_s), _soft(more))


def checkpoints_html(sections: Mapping[str, Any]) -> str:
    """What is protected and what a loss now would cost, by sections of ``status``."""
    return markup.page(checkpoints.html(Picture(status=sections)))


def io_html(sections: Mapping[str, Any]) -> str:
    """What file systems gave and what jobs spend there, by the section ``io`` of ``status``."""
    return markup.page(io.html(Picture(status=sections)))


def policies_html(rows: Rows, now_s: float | None = None) -> str:
    """Rows as `dask_hpc.policies` gives them."""
    columns = (("Policy", False), ("What it does", False), ("Parameters", False))
    cells = (
        (
            strong(row["name"]),
            row.get("summary") or "",
            ", ".join(one["name"] for one in row.get("parameters", ())) or "none",
        )
        for row in rows
    )
    return markup.page(markup.table(columns, cells, "Policies"))


def runtime_html(address: str, known: Mapping[str, Any], notice: str = "") -> str:
    """A runtime: its policy, jobs, nodes and latest decisions, and what its other parts have to show.

    Parameters
    ----------
    known
        What is known of ``status``, ``jobs`` and ``decisions``, as the runtime gives them.
    notice
        Why that may be old or missing.
    """
    title = element("p", strong("Runtime"), f" of {address}")
    if "status" not in known:
        return markup.page(title, _soft(notice))
    status, rows = known["status"], known.get("jobs", ())
    picture = Picture(status=status, jobs=rows)
    parts = [*_policy(status, known.get("jobs")), _jobs(rows, status["now_s"])]
    parts += [element("h3", "Nodes"), views.nodes.html(picture)]
    if any(name in status for name in checkpoints.SECTIONS):
        parts += [element("h3", checkpoints.VIEW.title), checkpoints.VIEW.body(picture)]
    for view in views.registered():
        if view.section in status.get("sections", ()):
            parts += [element("h3", view.title), view.body(picture)]
    if latest := known.get("decisions", ())[-_LATEST:]:
        parts += [element("h3", "Latest decisions"), _decisions(latest, status["now_s"])]
    return markup.page(title, _soft(notice), *parts)


def cluster_html(known: Mapping[str, Any], notice: str = "") -> str:
    """What a cluster shows below Dask's own: policy, count of nodes, why `adapt` has as many, jobs."""
    if "status" not in known:
        return markup.page(_soft(notice))
    status = known["status"]
    idle = "" if status["idle_nodes"] is None else f", {status['idle_nodes']} idle"
    adapt = f"; adapt: {known['adapt']}" if known.get("adapt") else ""
    nodes = element("p", f"Nodes: {status['pool_nodes']}{idle}{adapt}")
    return markup.page(
        _soft(notice), *_policy(status, known["jobs"]), nodes, _jobs(known["jobs"], status["now_s"])
    )


def job_html(row: Mapping[str, Any], now_s: float | None, notice: str = "") -> str:
    """One job as `Job.status` gives it."""
    return markup.page(_soft(notice), jobs.one(row, _latest(("submit_s", "start_s", "end_s"), [row], now_s)))


def declared_html(title: str, fields: Mapping[str, Any], notice: str = "") -> str:
    """A job of which only what was asked for is known."""
    columns = (("Asked for", False), ("Value", False))
    rows = [(name, str(value)) for name, value in fields.items()]
    table = markup.table(columns, rows, "What was asked for") if rows else ""
    return markup.page(element("p", strong("Job"), f" {title}"), _soft(notice), table)


def _policy(status: Mapping[str, Any], rows: Rows | None) -> list[Markup]:
    policy = status["policy"]
    values = ", ".join(f"{name} {value}" for name, value in policy.get("params", {}).items())
    lines = [element("p", "Policy: ", strong(policy["policy"]), f" {values}")]
    if status["policy_failure"]:
        lines.append(markup.alert(f"the policy fails: {status['policy_failure']}"))
    if status.get("policy_dropped"):
        lines.append(markup.alert(status["policy_dropped"]))
    # of the table below: what was known last of both may be of two moments
    running, pending = status["jobs_running"], status["jobs_pending"]
    if rows is not None:
        states = Counter(row["state"] for row in rows if not row.get("is_default"))
        running, pending = states["running"] + states["adapting"], states["pending"]
    lines.append(element("p", f"Jobs: {running} running, {pending} waiting"))
    return lines


def _jobs(rows: Rows, now_s: float | None) -> Markup:
    now_s = _latest(("submit_s", "start_s", "end_s"), rows, now_s)
    return jobs.html(Picture(status={"now_s": now_s}, jobs=rows))


def _decisions(rows: Rows, now_s: float | None) -> Markup:
    return decisions.html(Picture(status={"now_s": _latest(("t_s",), rows, now_s)}, decisions=rows))


def _latest(fields: Sequence[str], rows: Rows, now_s: float | None) -> float:
    """`now_s`, else the latest time in the rows."""
    if now_s is not None:
        return now_s
    return max((row[name] for row in rows for name in fields if row[name] is not None), default=0.0)


def _soft(notice: str) -> str:
    return markup.soft(notice) if notice else ""
