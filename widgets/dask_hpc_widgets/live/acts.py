"""Cancel and resize of a job that a person has chosen in the panel; what came of it is said in words.

Rules of the file: whether it can be done only the scheduler says. Nothing is cancelled before a person has
been told what is lost, and has agreed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dask_hpc.client.runtime import Runtime
from dask_hpc.errors import DaskHPCError
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.live import questions

_ENDED = ("completed", "failed", "cancelled")


class Told(Protocol):
    """Given sentences about a job, a line each.

    `confirm`: whether a person is asked to agree to a cancel. `came`: whether it is what came of an act, and
    shown whatever else was asked meanwhile.
    """

    def __call__(self, job: str, text: str, confirm: bool = False, came: bool = False) -> None:
        """Tell it."""


class Acts:
    """What a person does to jobs.

    Parameters
    ----------
    runtime, link
        Of the cluster.
    told
        Given what came of it.
    """

    def __init__(self, runtime: Runtime, link: Link, told: Told) -> None:
        self._runtime, self._link, self._told = runtime, link, told

    def asked(self, content: Mapping[str, Any]) -> None:
        """Do what a message says: ``ask`` (cancel or resize), ``job``, ``agreed`` and ``nodes``."""
        job = str(content.get("job", ""))
        if content.get("ask") == "resize":
            self._resize(job, str(content.get("nodes", "")))
        elif content.get("agreed") is True:
            self._cancel(job)
        else:
            self._ask(job)

    def _ask(self, job: str) -> None:
        def seen(row: Any) -> None:
            if isinstance(row, Exception):
                self._told(job, f"Nothing was cancelled: {row}", came=True)
            elif row["state"] in _ENDED:
                self._told(job, f"{_called(row)} is {row['state']}: there is nothing to cancel.", came=True)
            else:
                self._told(job, loss(row), confirm=True)

        self._link.ask(lambda: questions.job(self._runtime, job), seen)

    def _cancel(self, job: str) -> None:
        def done(row: Any) -> None:
            if isinstance(row, Exception):
                self._told(job, _failed("cancelled", job, row), came=True)
            else:
                self._told(job, f"{_called(row)} is {row['state']}: {row['reason']}.", came=True)

        self._link.ask(lambda: questions.cancel(self._runtime, job), done, patient=True)

    def _resize(self, job: str, text: str) -> None:
        def seen(row: Any) -> None:
            if isinstance(row, Exception):
                self._told(job, f"Nothing was resized: {row}", came=True)
            elif why := wrong(row, text):
                self._told(job, why, came=True)
            else:
                self._told(job, f"Waiting until {_called(row)} has {counted(int(text))}.")
                self._link.ask(
                    lambda: questions.resize(self._runtime, job, int(text)),
                    lambda outcome: done(row, outcome),
                    patient=True,
                    # it may take as long as a task: what is shown goes on meanwhile
                    beside=True,
                )

        def done(row: Mapping[str, Any], outcome: Any) -> None:
            if isinstance(outcome, Exception):
                self._told(job, _failed("resized", job, outcome), came=True)
            else:
                self._told(job, came_of(row, int(text), outcome), came=True)

        self._link.ask(lambda: questions.job(self._runtime, job), seen)


def loss(row: Mapping[str, Any]) -> str:
    """What is lost when the job of a row is cancelled now, a line a sentence."""
    left, now = row["unfinished_tasks"], row["processing_tasks"]
    lines = [f"Cancel {_called(row)}? It cannot be taken back."]
    if row["nodes"]:
        lines.append(f"It gives up its {counted(row['nodes'])}.")
    if left:
        half = f", {now} of them on workers, which begin anew when they are wanted again" if now else ""
        lines.append(f"{counted(left, 'task')} of it will not be finished{half}.")
    else:
        lines.append("No task of it is left unfinished.")
    lines.append("Results that are there stay as long as somebody holds them.")
    return "\n".join(lines)


def wrong(row: Mapping[str, Any], text: str) -> str:
    """Why a job cannot have as many nodes as a person has typed, whatever the cluster has; empty: it may."""
    low, high = row["min_nodes"], row["max_nodes"]
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if low <= number <= high:
        return ""
    return (
        f"{_called(row)} was not resized: nodes is {text[:40]!r}; allowed: a whole number from {low} "
        f"(its min_nodes) to {high} (its max_nodes)."
    )


def came_of(row: Mapping[str, Any], nodes: int, outcome: Mapping[str, Any]) -> str:
    """What came of a resize, in words."""
    if outcome["result"] == "done":
        return f"{_called(row)} has {counted(nodes)} now; it had {row['nodes']}."
    if outcome["result"] == "aborted":
        return f"The resize of {_called(row)} to {counted(nodes)} was taken back: {outcome['reason']}."
    return f"{_called(row)} was not resized to {counted(nodes)}: {outcome['reason']}."


def _failed(what: str, job: str, error: Exception) -> str:
    if isinstance(error, (ValueError, DaskHPCError)):
        return f"{job} was not {what}: {error}"
    return f"Whether {job} was {what} is not known: {error}"


def _called(row: Mapping[str, Any]) -> str:
    name, id = row["name"], row["id"]
    return f"{name} ({id})" if name and name != id else str(id)
