"""What would come of another policy, from the present state of a cluster on, beside what comes of this one.

Rules of the file: a snapshot and specifications in, runs of the simulator and markup out. No widget, no
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from dask_hpc.errors import WorkloadError
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.wording import counted
from dask_hpc_widgets import comparison
from dask_hpc_widgets.base import markup
from dask_hpc_widgets.base.background import Cancelled
from dask_hpc_widgets.base.markup import Markup
from dask_hpc_widgets.forms.model import is_custom, title
from dask_hpc_widgets.live.forecast import Forecast, forecast

if TYPE_CHECKING:
    from dask_hpc.sim.learned import Knowledge
    from dask_hpc.sim.run import Result
    from dask_hpc.sim.waiting import Waiting

#: Waiting jobs of which it is said why they wait, those first that have waited longest.
_MAX_WAITING = 3

#: Told the share that is done, 0 to 1; what it raises ends the run.
Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The outcome: runs by the title of their policy, the present one first; what is known of each job."""

    runs: Mapping[str, Result]
    knowledge: tuple[Knowledge, ...]
    #: The runs, for a picture.
    forecast: Forecast
    #: Sentences.
    notes: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()

    def html(self) -> Markup:
        """What came out. Made once: it is shown again when it is not of now any more."""
        return self._html

    @cached_property
    def _html(self) -> Markup:
        # late: most of the time of opening a panel would go to it
        from dask_hpc.sim.learned import guess

        about = {one.job: f"{one.confidence}: {one.text}" for one in self.knowledge}
        known = sum(one.confidence != "poor" for one in self.knowledge)
        sure = f"run times of {known} of {counted(len(about), 'job')} are learned from this cluster"
        return Markup().join(
            [
                markup.element("h3", "Predicted effect"),
                markup.soft(
                    f"From now to the end of all jobs of now; {sure}. {guess(self.knowledge)}".strip()
                ),
                comparison.metrics(self.runs),
                markup.room("When jobs end", comparison.jobs(self.runs, about)),
                *([_waiting(self.waiting)] if self.waiting else ()),
                *map(markup.soft, self.notes),
            ]
        )


def what_if(
    view: ClusterSnapshot,
    rows: Sequence[Mapping[str, Any]],
    present: Mapping[str, Any],
    chosen: Mapping[str, Any],
    assumed_s: float,
    progress: Progress = lambda share: None,
) -> WhatIf:
    """Run the simulator from the state `view` with both policies.

    Parameters
    ----------
    view, rows
        What ``Runtime.snapshot`` and ``Runtime.jobs`` give at one moment.
    present, chosen
        Specifications (`registry.spec_of`). A present policy that cannot be run here is left out, and a note
        says so.
    assumed_s
        How long a job takes of which nothing is known.

    Raises
    ------
    WorkloadError
        When there is no job or no node to go on from.
    SimulationError
        When the chosen policy goes round in circles. Whatever it raises is raised.
    ValueError
        When `assumed_s` is not above 0.
    """
    # late: most of the time of opening a panel would go to it
    from dask_hpc.sim.learned import learn
    from dask_hpc.sim.waiting import why_waiting
    from dask_hpc.sim.what_if import simulate_from, unknowns

    learned, knowledge = learn(view, rows, assumed_s)
    notes = left_out(view)
    specs = {}
    if is_custom(present):
        notes.append(f"{title(present)} is known to the cluster alone: it cannot be simulated here.")
    else:
        specs[f"{title(present)}, as it runs"] = present
    specs[f"{title(chosen)}, as chosen"] = chosen
    count = max(1, len(knowledge))
    runs: dict[str, Result] = {}
    share = 0.0
    for place, (name, spec) in enumerate(specs.items()):

        def told(ended: int, done: int = place) -> None:
            nonlocal share
            share = (done + min(1.0, ended / count)) / len(specs)
            progress(share)

        told(0)
        try:
            runs[name] = simulate_from(learned, spec, progress=told, name="this cluster")
        except (Cancelled, WorkloadError):
            raise
        except Exception as error:
            if spec is chosen:
                raise
            # it may be anybody's code, or be registered there alone: what is chosen is predicted without it
            notes.append(f"{title(present)} cannot be simulated here: {type(error).__name__}: {error}.")
    unknown = unknowns(next(iter(runs.values())).machine)
    if unknown:
        notes.append(f"{unknown.capitalize()}.")
    longest = sorted((job for job in view.jobs if not job.nodes), key=lambda job: job.submit_s)
    waiting = []
    for job in longest[:_MAX_WAITING]:
        # each is a run for every policy: it ends before any of them when it is to stop
        going_on = partial(progress, share)
        if (one := why_waiting(view, rows, present, job.id, assumed_s, going_on)) is not None:
            waiting.append(one)
    found = WhatIf(
        runs=runs,
        knowledge=knowledge,
        forecast=picture_of(runs, view),
        notes=tuple(notes),
        waiting=tuple(waiting),
    )
    # here, beside the loop of the kernel
    found.html()
    return found


def left_out(view: ClusterSnapshot) -> list[str]:
    """What no run from the state `view` has in it, in sentences."""
    return [
        f"Plain work (no job) is left out, with the {counted(plain.nodes)} that it uses: "
        f"{counted(plain.unfinished_tasks, 'task')} of it are left."
        for plain in view.jobs
        if plain.is_default
    ]


def picture_of(runs: Mapping[str, Result], view: ClusterSnapshot) -> Forecast:
    """Runs from the state `view` for a picture: the last is of what is chosen, one before of what runs."""
    found = list(runs.values())
    return forecast(found[0] if len(found) > 1 else None, found[-1], view.nodes)


def _waiting(found: Sequence[Waiting]) -> Markup:
    columns = (
        ("Job", False),
        ("Needs", True),
        ("Idle", True),
        ("Held by", False),
        ("As it runs", False),
        ("What would start it earlier", False),
    )
    from dask_hpc.sim.waiting import starts

    rows = [
        [
            markup.named(one.name, one.job),
            counted(one.needs_nodes),
            str(one.idle_nodes),
            ", ".join(f"{holder.name} {holder.nodes}" for holder in one.holders) or "nobody",
            starts(one.start_in_s),
            "; ".join(f"{when}: {' or '.join(texts)}" for when, texts in one.helps().items())
            or "nothing found",
        ]
        for one in found
    ]
    return markup.table(columns, rows, "Why jobs wait")
