"""What a policy is: a pure function of a snapshot and its own state, with a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.decision import Decision, Hold, Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot, JobRequest, Trigger

#: Nodes that an action may name: the network takes no number without an end.
_MOST_NODES = 1_000_000_000


class UnknownPolicy(ValueError):
    """A name that no policy, library entry or guard has."""


class InvalidPolicy(ValueError):
    """A specification or an object that is no policy."""


@runtime_checkable
class Policy(Protocol):
    """Decides which jobs start, grow, shrink or wait.

    The contract, the same on a live cluster and in the simulator:

    * `decide` is pure: no clock (`view.now_s` is the only time), no randomness, no I/O, nothing kept
      between calls but the state that it returns. Called twice with equal arguments it answers equally.
    * Each call gets a fresh snapshot; what an earlier decision asked for may have been refused.
    * A job is in at most one Start, Expand, Shrink, Steal or Hold of a decision, and every action has a
      reason.
    * Starts and expansions together never take more than `view.of_role()` (the idle compute nodes) plus what
      the shrinks and the immediate steals of the same decision free.
    * The state is None or a frozen dataclass of type `state_type` that survives
      `codec.decode(state_type, codec.encode(state))`.

    Optional attributes that the registry uses when they exist: `parameters` (an iterable of
    `params.Parameter`), `params` (the present values; the constructor takes them by keyword) and
    `state_type`. A policy may also offer `session`; see `Session`. With a true `in_turn`, jobs that asked
    for no nodes of their own take turns on each other's slots, in the order of `rules.fair.turns`.
    With a true `brief`, the policy keeps no view of a job in its state, and answers brief snapshots
    (`model.ClusterSnapshot`) with the same starts, resizes and states as others. One that says that it never
    places analyses of coupled runs, with a false `places`, is not asked because of their steps. One with a
    true `beside` is for something else than which jobs run: behind others it starts none that these hold.
    """

    @property
    def name(self) -> str:
        """Lower-case name with hyphens."""
        ...

    def initial_state(self) -> Any:
        """State before the first call."""
        ...

    def decide(self, view: ClusterSnapshot, state: Any) -> tuple[Decision, Any]:
        """The decision for `view`, and the state for the next call."""
        ...


class Session(Protocol):
    """The incremental form of a policy; optional, for speed.

    `decide` of the policy is the reference: it sees everything, at every pass, and always works. A policy
    may have a method ``session(idle_nodes, kinds)`` besides: given the idle nodes of an empty machine and
    the kinds of jobs that will come, it returns such an object, or None when its present parameters or
    those kinds have no incremental form. The simulator then tells it what changes, in place of building
    snapshots, as long as nodes do not fail and adapting costs nothing. The rules:

    * asked at the same moments, it starts and resizes exactly the jobs that `decide` does, in the same
      order, to the same sizes (times are compared as they are: a snapshot's remaining times are rounded);
    * it is asked again at one moment until it answers nothing new, as `decide` is after a resize;
    * every start that it answers has been carried out; a resize has when `resized` is called;
    * it is plain data that `copy.deepcopy` copies, and it knows no clock.

    A job is known by a key: whole numbers, ascending in order of submission. A session with a true attribute
    `anytime` is used only when all jobs that can be resized may be at any moment.
    """

    @property
    def scans(self) -> int:
        """How often the waiting jobs behind the head have been looked through so far."""
        ...

    def submit(self, key: int, job: JobRequest, anytime: bool = True) -> None:
        """A job that was asked for by `job` waits from now on.

        Parameters
        ----------
        anytime
            Whether it could be resized at any moment, and not only at scheduling points (`at_point`).
        """
        ...

    def finish(self, key: int) -> None:
        """A started job has ended; its nodes are idle."""
        ...

    def resized(self, key: int, nodes: int) -> None:
        """A running job holds `nodes` nodes from now on."""
        ...

    def at_point(self, key: int, there: bool) -> None:
        """A running job has come to a scheduling point, or goes on from it (`there` is False).

        Only jobs that were said, when they were submitted, not to be resized at any time.
        """
        ...

    def decide(self, now_s: float, trigger: Trigger, key: int | None) -> Sequence[tuple[int, int]]:
        """Jobs and their sizes: to start when they wait, to resize when they run; shrinks before starts.

        Parameters
        ----------
        trigger, key
            What happened, and to which job; when several things did, the last of them.
        """
        ...


def state_type(policy: Policy) -> type | None:
    """Class of the policy's state; None for a policy without state.

    A policy that does not declare `state_type` has the class of its initial state.
    """
    if hasattr(policy, "state_type"):
        declared: type | None = policy.state_type
        return declared
    initial = policy.initial_state()
    return None if initial is None else type(initial)


def required(answer: Any) -> Decision:
    """What `decide` of a policy has answered, if that is a decision that can be carried out and recorded.

    Raises
    ------
    TypeError, ValueError
        When it is none; the message says what is wrong.
    """
    if not isinstance(answer, Decision):
        raise TypeError(f"decide returned {type(answer).__name__}, not a Decision")
    data = encode(answer)
    if isinstance(answer.actions, (tuple, list)):
        # of jobs that wait there may be hundreds, each time: rebuilding these takes longer than all else
        rows = zip(answer.actions, data["actions"], strict=True)
        data["actions"] = [row for action, row in rows if not _is_hold(action)]
    decode(Decision, data)
    reasons = [*[one.reason for one in answer.actions], *[one.reason for one in answer.suppressed]]
    asked = [*answer.actions, *[one.action for one in answer.suppressed]]
    sizes = [size for action in asked if isinstance(size := getattr(action, "nodes", 0), int)]
    if wild := [size for size in sizes if abs(size) > _MOST_NODES]:
        raise ValueError(f"an action with nodes={wild[0]}; allowed: at most {_MOST_NODES:_}")
    if strange := [why.code for why in reasons if not isinstance(why.code, ReasonCode)]:
        raise TypeError(f"the code of a reason is {strange[0]!r}, not a ReasonCode")
    return answer


def _is_hold(action: Any) -> bool:
    reason = action.reason if type(action) is Hold and type(action.job) is str else None
    return type(reason) is Reason and type(reason.code) is ReasonCode and type(reason.text) is str


def encode_state(state: Any) -> Any:
    """Plain JSON data for a policy's state."""
    return encode(state)


def decode_state(policy: Policy, data: Any) -> Any:
    """The state of `policy` that `data` (from `encode_state`) describes.

    Raises
    ------
    ValueError
        When `data` does not fit the policy's state.
    """
    kind = state_type(policy)
    if kind is None:
        if data is not None:
            raise ValueError(f"policy {policy.name!r} has no state, got {data!r}")
        return None
    return decode(kind, data)
