"""Protected jobs as plain data, for those who look: what is written, when, and what a loss would cost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dask_hpc.scheduler.checkpoint.loss import Loss, of_results, of_state
from dask_hpc.scheduler.checkpoint.results import Results
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.state import State
from dask_hpc_policies.resilience.commit_times import History, Rule, due_in_s


def versions_row(
    state: State,
    record: JobRecord,
    history: History,
    whole_s: float | None,
    results: Results | None,
    saved: Collection[Any],
) -> dict[str, Any]:
    """What is known of the versions of a job.

    Parameters
    ----------
    whole_s
        When its newest whole version was begun; None: it has none.
    results
        What is wanted of it; None: the state of its program.
    saved
        Which of them a version has.
    """
    now_s = state.now_s()
    loss = _loss(state, record, whole_s, results, saved)
    return {
        "writes": "state" if results is None else "results",
        "version_age_s": None if whole_s is None else round(now_s - whole_s, 3),
        "under_way": history.under_way,
        "due_in_s": _due_in_s(state, record, history),
        "written_results": None if results is None else len(saved),
        "left_results": None if results is None else len(results.found),
        "unwritable_results": None if results is None else len(results.unwritable),
        "loss_core_s": round(loss.core_s, 3),
        "loss_is": loss.bound,
    }


def _due_in_s(state: State, record: JobRecord, history: History) -> float | None:
    """Until the next version is due by the settings; None: they do not say."""
    settings = state.settings
    if settings.checkpoint_every_s is None or not record.active or record.start_s is None:
        return None
    rule = Rule(settings.checkpoint_every_s, settings.checkpoint_node_mtbf_s)
    return round(due_in_s(state.now_s(), history, rule, state.nodes_up(record)), 3)


def _loss(
    state: State, record: JobRecord, whole_s: float | None, results: Results | None, saved: Collection[Any]
) -> Loss:
    if results is not None:
        return of_results(state.scheduler, results.wanted, saved)
    nodes = [node for node in state.nodes_of(record) if node.up]
    # one that has lost them all will have others
    nodes = nodes or [node for node in state.nodes.nodes.values() if node.up]
    threads = sum(node.facts.nthreads for node in nodes) / max(1, len(nodes))
    return of_state(record.sizes, whole_s, state.now_s(), threads)
