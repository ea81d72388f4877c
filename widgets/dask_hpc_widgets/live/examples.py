"""Two jobs to begin with: where nobody has declared any, a button starts them.

Rules of the file: they are plain jobs whose tasks sleep; they end with the panel, which holds their results.
"""

from __future__ import annotations

from typing import Any

from dask_hpc.client.runtime import Runtime
from dask_hpc_widgets.base import controls as widgets
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.link import Link
from dask_hpc_widgets.live import questions
from dask_hpc_widgets.live.questions import Example
from dask_hpc_widgets.views import Picture

#: Nodes and tasks of an example are no more than these, and a task takes so long.
_NODES, _TASKS, TASK_S = 8, 5_000, 0.2
#: How long each is to take on all the nodes that it may have.
_WIDE_S, _LATE_S = 30.0, 10.0


def examples(nodes: int, threads: int) -> tuple[Example, ...]:
    """A job that takes all the nodes there are, and a later one that needs half of them; none without nodes.

    Parameters
    ----------
    nodes
        Of the pool.
    threads
        Of one node.
    """
    if nodes < 1:
        return ()
    most = min(nodes, _NODES)
    half = max(1, most // 2)
    wide = {"min_nodes": 1, "max_nodes": most}
    return (
        Example(name="example-wide", fields=wide, tasks=_tasks(most * threads, _WIDE_S)),
        Example(name="example-late", fields={"nodes": half}, tasks=_tasks(half * threads, _LATE_S)),
    )


def _tasks(threads: int, seconds: float) -> int:
    return min(_TASKS, max(1, round(threads * seconds / TASK_S)))


class Examples:
    """The button, while it is of use.

    Parameters
    ----------
    runtime, link
        Of the cluster.

    Attributes
    ----------
    start
        The button.
    box
        It, and what came of it.
    """

    def __init__(self, runtime: Runtime, link: Link) -> None:
        self._runtime, self._link = runtime, link
        self._begun = False
        #: A task whose futures are gone is forgotten.
        self._held: list[Any] = []
        self._nodes = 0
        self.start = widgets.Button(
            description="Start two example jobs",
            tooltip="Their tasks sleep, for half a minute together; they end with this panel",
            layout={"width": "auto", "align_self": "flex-start", "display": None},
        )
        self.says = widgets.HTML(layout={"width": "auto"})
        self.box = widgets.HBox([self.start, self.says], layout={"width": "auto", "flex_flow": "row wrap"})
        self.start.on_click(lambda _: self._start())

    def report(self, picture: Picture) -> None:
        """Offer it while nobody has declared a job and there are nodes."""
        self._nodes = picture.status["pool_nodes"]
        known = picture.ended_jobs or any(not one.get("is_default") for one in picture.jobs)
        offered = not known and not self._begun and self._nodes > 0
        self.start.layout.display = None if offered else "none"
        if known:
            self.says.value = ""

    def close(self) -> None:
        """Give up what was started."""
        self._held.clear()

    def _jobs(self, threads: int) -> tuple[Example, ...]:
        """Those to start where nodes have so many threads together."""
        return examples(self._nodes, max(1, threads // self._nodes))

    def _start(self) -> None:
        if self._begun or not self._nodes:
            return
        self._begun, self.start.disabled = True, True

        def done(answer: Any) -> None:
            if isinstance(answer, Exception):
                self._begun, self.start.disabled = False, False
                self.says.value = markup.part(markup.alert(f"The examples were not started: {answer}"))
            elif self._link.closed:
                answer.clear()
            else:
                self._held.extend(answer)
                self.says.value = markup.part(markup.soft("Started: example-wide and example-late."))

        self._link.ask(lambda: questions.start(self._runtime, self._jobs, TASK_S), done, patient=True)
