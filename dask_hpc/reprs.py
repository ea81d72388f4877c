"""What objects look like in a notebook: asking what there is to show, in time, and having it shown.

Rules of the file: nothing here raises, nothing waits longer than `LIMIT_S`, and nothing waits at all in a
thread whose own loop would have to answer. The markup is static, the panel's (`dask_hpc_widgets.static`,
reached by name: imports go down only); where that is not installed there is none, and notebooks show the line
of text.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dask_hpc.report_svg import escape

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
            return f"<p>{escape(type(self).__name__)} cannot be shown: {escape(_said(error))}</p>"

    return told


def line(kind: str, **values: Any) -> str:
    """One line of text: ``<kind key=value ...>``."""
    return f"<{' '.join((kind, *(f'{key}={value!r}' for key, value in values.items())))}>"


def html(name: str, *arguments: Any) -> str | None:
    """What ``<name>_html`` of `dask_hpc_widgets.static` makes; None when that is not installed."""
    try:
        twins = importlib.import_module("dask_hpc_widgets.static")
    except ImportError:
        return None
    made: str = getattr(twins, f"{name}_html")(*arguments)
    return made


def runtime_html(runtime: Any) -> str | None:
    """State of the runtime, its jobs, nodes and latest decisions; what was known last when nobody answers."""

    async def picture() -> Known:
        return {
            "status": await runtime._ask("status"),
            "jobs": await runtime._ask("jobs"),
            "decisions": await runtime._ask("decisions", limit=_LATEST),
        }

    known, notice = _asked(runtime, picture, "runtime.status()")
    if known is None:
        known = runtime._known
        notice += " This was known last:" if "status" in known else ""
    client = runtime._client()
    address = client.scheduler.address if client is not None and client.scheduler else "a closed client"
    return html("runtime", address, known, notice)


def job_html(job: Any) -> str | None:
    """The job's row, or what was asked for when there is none."""
    if job.id is None:
        return html("declared", job._spec["name"], job._declared(), "It is not submitted.")
    runtime = job._runtime
    answer, notice = _asked(runtime, lambda: runtime._ask_at("job", job=job.id), "job.status()")
    if answer is None:
        jobs = runtime._known.get("jobs", ())
        answer = next(((row, jobs.now_s) for row in jobs if row["id"] == job.id), None)
        notice += " This was known last:" if answer else ""
    if answer is None:
        return html("declared", job.id, job._declared(), notice)
    return html("job", *answer, notice)


def cluster_html(cluster: Any, summary: Callable[[], Known]) -> str | None:
    """What a cluster shows below Dask's own: policy, nodes, jobs.

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
        here = cluster.loop.asyncio_loop is _running()
        known = summary() if here else _within_limit(cluster.loop.asyncio_loop, ask)
    except Exception as error:
        notice = f"There is no runtime to show: {_said(error)}."
    return html("cluster", known, notice)


def _asked(runtime: Any, question: Callable[[], Coroutine[Any, Any, Any]], method: str) -> tuple[Any, str]:
    """The answer, or None and a sentence that says why there is none."""
    try:
        client = runtime.client
        if client.status != "running":
            raise ConnectionError(f"the client is {client.status}")
        return _within_limit(client.loop.asyncio_loop, question), ""
    except _WouldBlock:
        return None, _NOT_ASKED.format(method=method)
    except Exception as error:
        return None, f"The cluster does not answer: {_said(error)}."


def _within_limit(loop: asyncio.AbstractEventLoop, question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a loop of another thread answers."""
    if loop is _running():
        raise _WouldBlock
    if loop.is_closed() or not loop.is_running():
        raise ConnectionError("its event loop has ended")
    answer = asyncio.run_coroutine_threadsafe(question(), loop)
    try:
        return answer.result(LIMIT_S)
    except TimeoutError:
        answer.cancel()
        raise ConnectionError(f"nothing was heard for {LIMIT_S:g} s") from None


def _running() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
