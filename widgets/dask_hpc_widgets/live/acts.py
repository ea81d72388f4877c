"""Cancel and resize of a job that a person has chosen in the panel; what came of it is said in words.

Rules of the file: whether it can be done only the scheduler says. Nothing is cancelled, and no job loses
nodes, before a person has been told what is lost, and has agreed: of nodes as *Apply* asks (`live.effect`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dask_hpc.client.runtime import Runtime
from dask_hpc.errors import DaskHPCError
from dask_hpc_policies.params import ParameterError
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.base import background
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.forms.model import is_custom
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.live.assumed import DEFAULT_S
from dask_hpc_widgets.live.effect import Effect, effect, question

_ENDED = ("completed", "failed", "cancelled")


class Told(Protocol):
    """Given sentences about a job, a line each.

    `confirm`: what a person is asked to agree to, ``cancel`` or ``resize``; empty: to nothing. `came`:
    whether it is what came of an act, and shown whatever else was asked meanwhile. `nodes`: those of the
    resize that is asked about, as typed: a yes is about these.
    """

    def __call__(self, job: str, text: str, confirm: str = "", came: bool = False, nodes: str = "") -> None:
        """Tell it."""


class Acts:
    """What a person does to jobs.

    Parameters
    ----------
    runtime, link
        Of the cluster.
    told
        Given what came of it.
    assumed_s
        Gives how long a job takes of which nothing is known; raises `ParameterError` when that is no time.
    """

    def __init__(
        self, runtime: Runtime, link: Link, told: Told, assumed_s: Callable[[], float] = lambda: DEFAULT_S
    ) -> None:
        self._runtime, self._link, self._told, self._assumed_s = runtime, link, told, assumed_s
        #: What a person was asked about last: the job, the nodes typed for it, and what that would do.
        self._offered: tuple[str, str, Effect] | None = None

    def asked(self, content: Mapping[str, Any]) -> None:
        """Do what a message says: ``ask`` (cancel or resize), ``job``, ``agreed`` and ``nodes``."""
        job = str(content.get("job", ""))
        if content.get("ask") == "resize":
            self._resize(job, str(content.get("nodes", "")), content.get("agreed") is True)
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
                self._told(job, loss(row), confirm="cancel")

        self._link.ask(lambda: questions.job(self._runtime, job), seen)

    def _cancel(self, job: str) -> None:
        def done(row: Any) -> None:
            if isinstance(row, Exception):
                self._told(job, _failed("cancelled", job, row), came=True)
            else:
                self._told(job, f"{_called(row)} is {row['state']}: {row['reason']}.", came=True)

        self._link.ask(lambda: questions.cancel(self._runtime, job), done, patient=True)

    def _resize(self, job: str, text: str, agreed: bool) -> None:
        offered, self._offered = self._offered, None
        # a yes is about what was asked and nothing else
        before = offered[2] if agreed and offered is not None and offered[:2] == (job, text) else None
        try:
            assumed_s = self._assumed_s()
        except ParameterError as error:
            self._told(job, f"Nothing was resized: {error}", came=True)
            return

        def seen(row: Any) -> None:
            if isinstance(row, Exception):
                self._told(job, f"Nothing was resized: {row}", came=True)
            elif why := wrong(row, text):
                self._told(job, why, came=True)
            else:
                self._link.ask(lambda: questions.state(self._runtime), lambda answer: known(row, answer))

        def known(row: Mapping[str, Any], answer: Any) -> None:
            if isinstance(answer, Exception):
                self._told(job, f"Nothing was resized: {answer}", came=True)
                return
            spec = None if is_custom(answer.running) else answer.running
            # beside the loop: a policy is the user's code and may take its time
            background.Work(
                lambda _: effect(spec, answer.view, answer.rows, assumed_s, (row["id"], int(text))),
                lambda share: None,
                lambda now: decided(row, now),
            )

        def decided(row: Mapping[str, Any], now: Any) -> None:
            if self._link.closed:
                return
            if isinstance(now, Exception):
                self._told(job, f"Nothing was resized: {type(now).__name__}: {now}", came=True)
            elif asked := question(now, before):
                self._offered = job, text, now
                lines = [asked, *(one.text for one in now.takes), *([now.failure] if now.failure else [])]
                self._told(job, "\n".join(lines), confirm="resize", nodes=text)
            else:
                resize(row)

        def resize(row: Mapping[str, Any]) -> None:
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
