"""What a policy would do first if the cluster were given it now, so that nobody is shrunk unasked.

Rules of the file: pure. The policy is asked as the scheduler asks a policy that it has just been given: about
the state of now, with the policy's initial memory. What it does later, as jobs come and go, is for the
simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dask_hpc_policies import registry
from dask_hpc_policies.decision import Decision, Expand, Shrink, Start, Steal
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.wording import counted


@dataclass(frozen=True, slots=True)
class Loss:
    """A job that would lose nodes."""

    job: str
    #: What it would have left.
    nodes: int
    #: A sentence, with the reason.
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a policy would do at once."""

    #: What a person is asked about before.
    takes: tuple[Loss, ...] = ()
    #: Sentences about jobs that would start or grow.
    gives: tuple[str, ...] = ()
    #: Why the policy cannot decide; empty when it can.
    failure: str = ""

    def within(self, agreed: Effect) -> bool:
        """Whether nobody would lose more than was `agreed` to."""
        least = {loss.job: loss.nodes for loss in agreed.takes}
        return all(loss.job in least and loss.nodes >= least[loss.job] for loss in self.takes)


def effect(spec: Mapping[str, Any], view: ClusterSnapshot) -> Effect:
    """What the policy that `spec` describes would do at once in the state `view`.

    A policy is anybody's code: when it raises, that is its `Effect.failure` and no error.

    Raises
    ------
    ValueError
        When `spec` is no policy that can be made from data.
    """
    policy = registry.create(spec)
    if not view.jobs:
        return Effect()
    try:
        decision, _ = policy.decide(replace(view, trigger="settings"), policy.initial_state())
        if not isinstance(decision, Decision):
            raise TypeError(f"decide returned {type(decision).__name__}, not a Decision")
    except Exception as error:
        return Effect(failure=f"{type(error).__name__}: {error}")
    jobs = {job.id: job for job in view.jobs}
    takes: list[Loss] = []
    gives: list[str] = []
    for action in decision.actions:
        job = jobs.get(getattr(action, "job", ""))
        if job is None:
            continue
        named = f"{job.id} ({job.name})" if job.name and job.name != job.id else job.id
        if isinstance(action, Shrink):
            text = f"{named} shrinks from {job.nodes} to {counted(action.nodes)}: {action.reason.text}"
            takes.append(Loss(job.id, action.nodes, text))
        elif isinstance(action, Steal):
            text = f"{named} is interrupted and loses its {counted(job.nodes)}: {action.reason.text}"
            takes.append(Loss(job.id, 0, text))
        elif isinstance(action, Start):
            gives.append(f"{named} starts on {counted(action.nodes)}: {action.reason.text}")
        elif isinstance(action, Expand):
            gives.append(f"{named} grows from {job.nodes} to {counted(action.nodes)}: {action.reason.text}")
    return Effect(takes=tuple(takes), gives=tuple(gives))
