"""What objects look like in a notebook: asking what there is to show, in time, and having it shown; and the
explorer. The one way up to the widgets.

Rules of the file: nothing here raises, nothing waits longer than `LIMIT_S`, and nothing waits at all in a
thread whose own loop would have to answer. The markup is static, the panel's (`dask_hpc_widgets.static`,
reached by name: imports go down only); where that is not installed there is none, and notebooks show the line
of text.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from markupsafe import Markup

from dask_hpc.errors import InstallError
from dask_hpc.report.looks import printable

#: Seconds that a cluster has to answer before it is said not to.
LIMIT_S = 2.0
#: Decisions that are asked for.
_LATEST = 5
_ENDED = ("closing", "closed", "failed")
_NOT_ASKED = "The client is asynchronous, so the cluster was not asked: `await {method}` asks it."

Known = Mapping[str, Any]


class _WouldBlock(Exception):
    """Whoever would have to answer waits for this very thread."""


def never_raises(method: Callable[..., str | None]) -> Callable[..., str | None]:
    """Have a `_repr_html_` tell what went wrong instead of raising it."""

    @functools.wraps(method)
    def told(self: Any, *args: Any, **kwargs: Any) -> str | None:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            told = Markup("<p>{} cannot be shown: {}</p>").format(type(self).__name__, _said(error))
            return printable(told)

    return told


def line(kind: str, **values: Any) -> str:
    """One line of text: ``<kind key=value ...>``."""
    return f"<{' '.join((kind, *(f'{key}={value!r}' for key, value in values.items())))}>"


def above(module: str, what: str) -> Any:
    """A module of the widgets, by name: the layer above, which needs what is not installed everywhere.

    Raises
    ------
    InstallError
        When it cannot be imported; `what` is needed for it.
    """
    try:
        return importlib.import_module(f"dask_hpc_widgets.{module}")
    except ImportError as error:
        raise InstallError(f"{what} needs ipywidgets ({error}): pip install 'dask-hpc[widgets]'") from error


def html(name: str, *arguments: Any) -> str | None:
    """What ``<name>_html`` of `dask_hpc_widgets.static` makes; None when that is not installed."""
    try:
        twins = above("static", "a table in a notebook")
    except InstallError:
        return None
    made: str = getattr(twins, f"{name}_html")(*arguments)
    return made


def runtime_html(runtime: Any) -> str | None:
    """State of the runtime, its jobs, nodes and latest decisions; what was known last when nobody answers."""

    channel = runtime.channel

    async def picture() -> Known:
        return {
            "status": await channel.ask("status"),
            "jobs": await channel.ask("jobs"),
            "decisions": await channel.ask("decisions", limit=_LATEST),
        }

    known, notice = _asked(channel, picture, "rt.status()")
    if known is None:
        known = channel.known
        notice += " This was known last:" if "status" in known else ""
    client = channel.client_or_none
    address = client.scheduler.address if client is not None and client.scheduler else "a closed client"
    return html("runtime", address, known, notice)


def job_html(job: Any) -> str | None:
    """The job's row, or what was asked for when there is none."""
    if job.id is None:
        return html("declared", job._spec["name"], job._declared(), "It is not submitted.")
    channel = job.channel
    answer, notice = _asked(channel, lambda: channel.ask_at("job", job=job.id), "job.status()")
    if answer is None:
        jobs = channel.known.get("jobs", ())
        answer = next(((row, jobs.now_s) for row in jobs if row["id"] == job.id), None)
        notice += " This was known last:" if answer else ""
    if answer is None:
        return html("declared", job.id, job._declared(), notice)
    return html("job", *answer, notice)


def cluster_html(cluster: Any, summary: Callable[[], Known]) -> str | None:
    """What a cluster shows below Dask's own: policy, nodes, why `adapt` has as many, jobs.

    Parameters
    ----------
    summary
        Called in the loop of the scheduler, which is the cluster's.
    """

    async def ask() -> Known:
        return summary()

    known: Known = {}
    notice = ""
    try:
        if (status := cluster.status.name) in _ENDED:
            raise ConnectionError(f"the cluster is {status}")
        here = cluster.loop.asyncio_loop is running_loop()
        known = summary() if here else _within_limit(cluster.loop.asyncio_loop, ask)
        adaptive = getattr(cluster, "_adaptive", None)
        if adaptive is not None and adaptive.state != "stopped":
            known = {**known, "adapt": getattr(adaptive, "reason", "")}
    except Exception as error:
        notice = f"There is no runtime to show: {_said(error)}."
    return html("cluster", known, notice)


def _asked(channel: Any, question: Callable[[], Coroutine[Any, Any, Any]], method: str) -> tuple[Any, str]:
    """The answer, or None and a sentence that says why there is none."""
    try:
        client = channel.client
        if client.status != "running":
            raise ConnectionError(f"the client is {client.status}")
        return _within_limit(client.loop.asyncio_loop, question), ""
    except _WouldBlock:
        return None, _NOT_ASKED.format(method=method)
    except Exception as error:
        what = "was not asked" if _closed(channel) else "does not answer"
        return None, f"The cluster {what}: {_said(error)}."


def _closed(channel: Any) -> bool:
    client = channel.client_or_none
    return client is None or client.status in _ENDED


def _within_limit(loop: asyncio.AbstractEventLoop, question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a loop of another thread answers."""
    if loop is running_loop():
        raise _WouldBlock
    if loop.is_closed() or not loop.is_running():
        raise ConnectionError("its event loop has ended")
    answer = asyncio.run_coroutine_threadsafe(question(), loop)
    try:
        return answer.result(LIMIT_S)
    except TimeoutError:
        answer.cancel()
        raise ConnectionError(f"nothing was heard for {LIMIT_S:g} s") from None


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


class Rows(list):
    """Rows of one kind, and when they were true.

    Parameters
    ----------
    rows
        Dicts.
    now_s
        Clock of the scheduler when it gave them; None when it did not say.
    """

    #: What the function is called that shows them.
    _kind: ClassVar[str]

    def __init__(self, rows: Iterable[dict[str, Any]] = (), now_s: float | None = None) -> None:
        super().__init__(rows)
        self.now_s = now_s

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return type(self)(found, self.now_s) if isinstance(index, slice) else found

    @never_raises
    def _repr_html_(self) -> str | None:
        return html(self._kind, self, self.now_s)


class Jobs(Rows):
    """What `Runtime.jobs` gives."""

    _kind = "jobs"


class Decisions(Rows):
    """What `Runtime.decisions` gives."""

    _kind = "decisions"


class Policies(Rows):
    """What `policies` gives."""

    _kind = "policies"


def policies() -> Policies:
    """Policies and ready-made settings by name: what each does and its parameters, one dict each.

    The same rows as ``dask hpc policies --json``.
    """
    # all of them, which nobody else needs
    from dask_hpc_policies import registry

    return Policies(registry.describe_all())


def explore(
    workload: str | Path = "builtin:five-jobs", policies: Sequence[Any] = ("easy", "pwma-fpsma")
) -> Any:
    """A Jupyter panel that compares policies on a workload in the simulator; no cluster is needed.

    Parameters
    ----------
    workload
        What is chosen at first: ``builtin:NAME``, or the path of a file (SWF, ElastiSim JSON, YAML, output of
        ``sacct``, a recorded trace).
    policies
        Likewise, two to six: names, YAML files or specifications. The first is the measure of the others.

    Returns
    -------
    dask_hpc_widgets.explorer.Explorer
        A widget; ``close()`` ends it.

    Raises
    ------
    InstallError
        When ipywidgets is not installed.
    TypeError, ValueError
        When there is no such builtin workload or policy, or the policies are no list, too few or too many.
    """
    return above("explorer", "the explorer").Explorer(workload, policies)
