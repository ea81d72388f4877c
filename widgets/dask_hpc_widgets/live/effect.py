"""What a policy, or a resize, would do at once if the cluster were given it now: nobody is shrunk unasked.

Rules of the file: pure. The policy is asked as the scheduler asks a policy that it has just been given: about
the state of now, with the policy's initial memory; after a resize, about the state that this leaves. A
scheduler asks again as soon as jobs have been resized, so the simulator goes on from there until nobody is
resized any more, or a job ends: what is told of a job is the size that it comes to, or where that is the one
it has, the size that was decided first. What happens later, as jobs come and go, is no part of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask_hpc.errors import WorkloadError
from dask_hpc_policies import registry
from dask_hpc_policies.decision import (
    Action,
    Decision,
    Expand,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Steal,
)
from dask_hpc_policies.model import ClusterSnapshot, JobView
from dask_hpc_policies.rules.feasible import Facts, refusal
from dask_hpc_policies.wording import counted
from dask_hpc_widgets.live.assumed import DEFAULT_S

#: What a person is told of a resize where the policy cannot be asked. Always the same words: a failure may
#: read otherwise each time, and a yes would never be one.
_NOT_KNOWN = "Whether other jobs lose nodes by it is not known."


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
    #: Why the policy cannot decide; empty when it can. A resize is done all the same.
    failure: str = ""
    #: What is lost besides, or may be, a sentence: a person is asked about it before, too.
    more: str = ""

    def within(self, agreed: Effect) -> bool:
        """Whether nobody would lose more than was `agreed` to."""
        least = {loss.job: loss.nodes for loss in agreed.takes}
        nodes = all(loss.job in least and loss.nodes >= least[loss.job] for loss in self.takes)
        # a yes about nodes is none about what was not said then
        return nodes and self.more in ("", agreed.more)


def question(now: Effect, agreed: Effect | None = None) -> str:
    """What a person is asked before that happens; empty: nothing is lost, or it was agreed to.

    Parameters
    ----------
    agreed
        What the person has agreed to before; None: was not asked yet.
    """
    if agreed is not None and now.within(agreed):
        return ""
    jobs = "A job loses" if len(now.takes) == 1 else f"{len(now.takes)} jobs lose"
    lost = [*([now.more] if now.more else []), *([f"{jobs} nodes at once."] if now.takes else [])]
    again = "The cluster has changed meanwhile. " if agreed is not None else ""
    return f"{again}{' '.join(lost)} Go ahead?" if lost else ""


def effect(
    spec: Mapping[str, Any] | None,
    view: ClusterSnapshot,
    rows: Sequence[Mapping[str, Any]] = (),
    assumed_s: float = DEFAULT_S,
    resize: tuple[str, int] | None = None,
) -> Effect:
    """What the policy that `spec` describes would do at once in the state `view`.

    A policy is anybody's code: when it raises, that is its `Effect.failure` and no error.

    Parameters
    ----------
    spec
        None: the policy is not known here, which with a `resize` leaves what that does by itself; the rest
        is said not to be known.
    rows, assumed_s
        As `dask_hpc.sim.learned.learn` takes them.
    resize
        A job and the nodes that a person asks for it: that is done first, whatever the policy says.

    Raises
    ------
    ValueError
        When `spec` is no policy that can be made from data.
    """
    # late: most of the time of opening a panel would go to it
    from dask_hpc.sim.learned import learn

    heard = _Heard(None if spec is None else registry.create(spec))
    if not view.jobs:
        return Effect()
    sizes: dict[str, int] = {}
    failure = "The policy cannot be asked here: only the cluster has it." if spec is None else ""
    try:
        if resize is None:
            decision, _ = heard.decide(replace(view, trigger="settings"), heard.initial_state())
        else:
            decision = heard.hear(Decision(actions=_asked_for(view, *resize)))
            if not decision.actions:
                return Effect()
            rows = [_under_way(row, *resize) for row in rows]
        for action in decision.actions:
            sizes |= _sizes(action)
        if spec is not None:
            sizes |= _at_rest(view, learn(view, rows, assumed_s)[0], heard, assumed_s)
    except WorkloadError:
        # nothing to go on from, such as plain work alone: what is decided first is all that can be said
        pass
    except Exception as error:
        # a resize is done also where the policy fails on what it leaves
        failure = f"{type(error).__name__}: {error}"
        if resize is None:
            return Effect(failure=failure)
        failure = f"The policy fails on what that leaves: {failure}"
    takes, gives = [], []
    for job in view.jobs:
        nodes = sizes.get(job.id, job.nodes)
        if nodes == job.nodes or job.is_default or job.id not in heard.said:
            continue
        text = _sentence(job, nodes, heard.said[job.id])
        if nodes < job.nodes:
            takes.append(Loss(job.id, nodes, text))
        else:
            gives.append(text)
    return Effect(
        takes=tuple(takes), gives=tuple(gives), failure=failure, more=_NOT_KNOWN if failure else ""
    )


@dataclass(slots=True)
class _Heard:
    """A policy, and by job the sizes that it gave it, each with the reason."""

    policy: Any
    said: dict[str, dict[int, str]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def decide(self, view: ClusterSnapshot, state: Any) -> Any:
        """As the policy does."""
        decision, after = self.policy.decide(view, state)
        if not isinstance(decision, Decision):
            raise TypeError(f"decide returned {type(decision).__name__}, not a Decision")
        return self.hear(decision), after

    def hear(self, decision: Decision) -> Decision:
        """Note what is decided of sizes, and why."""
        for action in decision.actions:
            for job, nodes in _sizes(action).items():
                self.said.setdefault(job, {})[nodes] = action.reason.text
        return decision


def _asked_for(view: ClusterSnapshot, job: str, nodes: int) -> tuple[Action, ...]:
    """What the scheduler does when a person asks for so many nodes; empty where it refuses that for good."""
    asked = next((one for one in view.jobs if one.id == job), None)
    if asked is None or not asked.nodes or nodes - asked.nodes > max(0, view.idle_nodes):
        return ()
    reason = Reason(ReasonCode.USER_REQUEST, f"the user asked for {counted(nodes)}", {"nodes": nodes})
    kind: type[Shrink] | type[Expand] = Shrink if nodes < asked.nodes else Expand
    action = kind(job=job, nodes=nodes, reason=reason)
    # as though no round were under way: that may have ended by when a person has agreed
    facts = Facts(id=job, request=asked, state="running", nodes=asked.nodes, is_default=asked.is_default)
    return () if refusal(action, facts, locked=False) else (action,)


def _under_way(row: Mapping[str, Any], job: str, nodes: int) -> Mapping[str, Any]:
    return {**row, "target_nodes": nodes} if row["id"] == job else row


def _sizes(action: Any) -> dict[str, int]:
    """The job that an action resizes, and the nodes that it has then."""
    if isinstance(action, (Start, Expand, Shrink)):
        return {action.job: action.nodes}
    return {action.job: 0} if isinstance(action, Steal) else {}


def _at_rest(now: ClusterSnapshot, view: ClusterSnapshot, policy: Any, assumed_s: float) -> dict[str, int]:
    """Nodes of the jobs that the policy resizes from `view` on, once it resizes nobody any more.

    Those that come to what they have `now` are left out.

    Raises
    ------
    WorkloadError
        When there is nothing to go on from.
    """
    from dask_hpc.sim.what_if import engine_from

    before = {job.id: job.nodes for job in view.jobs}
    engine = engine_from(view, policy, default_s=assumed_s)
    world, sizes = engine.world, before
    for _ in engine.moments():
        if world.table.rows:
            break
        active = world.active.values()
        sizes = {one.job.id: one.nodes for one in active}
        if all(one.target is None and one.round is None for one in active):
            break
    present = {job.id: job.nodes for job in now.jobs}
    return {id: nodes for id, nodes in sizes.items() if nodes not in (before[id], present[id])}


def _sentence(job: JobView, nodes: int, said: Mapping[int, str]) -> str:
    """What becomes of a job, and why: what was said of that size, or else at last."""
    named = f"{job.id} ({job.name})" if job.name and job.name != job.id else job.id
    if not nodes:
        what = f"is interrupted and loses its {counted(job.nodes)}"
    elif not job.nodes:
        what = f"starts on {counted(nodes)}"
    else:
        word = "shrinks" if nodes < job.nodes else "grows"
        # a size on the other side is not on the way there
        way = sum(size < job.nodes if nodes < job.nodes else size > job.nodes for size in said)
        steps = f", in {way} steps" if way > 1 else ""
        what = f"{word} from {job.nodes} to {counted(nodes)}{steps}"
    return f"{named} {what}: {said.get(nodes) or [*said.values()][-1]}"
