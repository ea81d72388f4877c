"""The arbiter: what of a decision may be, when guards have a say.

Rules of the file: pure, the same live and simulated, for decisions of a policy, of a solver and of a user. A
decision is judged as a whole, by the states that it leads to (see `outlook`), never action by action. The
present state is always allowed: what is outside already may stay so, and a decision may pass when it leads no
further outside. So holding never breaks a guard, and there is always an answer.

What breaks a guard gives way, until all guards hold:

* a veto drops the action; a bound or a sum cuts an expansion, a shrink or a moldable start to the nearest
  legal size that does, and drops it when there is none;
* what is served last gives way first: nodes go to jobs below their minimum, then to jobs that start, then to
  jobs that grow, each in the order of service of the snapshot; a shrink is worth what it makes room for;
* what depends on it is dropped as well: a start or an expansion whose shrinks were dropped or cut, and a
  shrink or a steal for a job that gets nothing after all; where nodes are not freed that nobody was named
  for, what is served last is cut or dropped. A decision that is `whole` is refused as a whole. Nothing is
  half applied, and nothing that was dropped comes back.

Guards of higher rank are satisfied first. The order of guards does not matter, nor that of resizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from dask_hpc_policies.combine import cutting
from dask_hpc_policies.combine.breaches import Breach, foremost
from dask_hpc_policies.combine.limits import (
    RANKS,
    AnyGuard,
    BoundGuard,
    Rank,
    SumGuard,
    VetoGuard,
    cause,
    in_order,
)
from dask_hpc_policies.combine.outlook import Move, Outlook, resized
from dask_hpc_policies.decision import (
    RESIZES,
    Action,
    Decision,
    Expand,
    Hold,
    Reason,
    ReasonCode,
    Shrink,
    Start,
    Steal,
    Suppressed,
    beneficiary,
)
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.wording import counted


def arbitrate(view: ClusterSnapshot, decision: Decision, guards: Sequence[AnyGuard]) -> Decision:
    """`decision` as far as `guards` let it through; what is refused or cut is suppressed, with the reason.

    A reason names the guard and its figures; a job that does not start after all gets it as a `Hold`.
    Arbitrated again the result stays as it is.

    Raises
    ------
    ValueError
        When two guards have one name, a rank is unknown, or an amount is not finite.
    """
    if not guards or all(isinstance(action, Hold) for action in decision.actions):
        return decision
    return _Case(view, decision, in_order(guards)).verdict()


class _Case:
    """One decision before the guards. Its actions are known by their places in it."""

    def __init__(self, view: ClusterSnapshot, decision: Decision, guards: tuple[AnyGuard, ...]) -> None:
        self.view = view
        self.decision = decision
        self.guards = guards
        self.outlook = Outlook(view)
        acting = {i: action for i, action in enumerate(decision.actions) if not isinstance(action, Hold)}
        #: What is still to be done, and why the rest is not, or not as it was asked.
        self.kept: dict[int, Move] = {i: self.outlook.move(action) for i, action in acting.items()}
        self.refused: dict[int, Reason] = {}
        self.ranks = {i: RANKS.index(cause(action)) for i, action in acting.items()}
        #: What gives a job nodes, and what makes room for it.
        self.gives: dict[str, int] = {}
        self.rooms: dict[str, list[int]] = {}
        resized: set[str] = set()
        for i, action in acting.items():
            if isinstance(action, RESIZES) and action.job in resized:
                why = f"the decision resizes {action.job} already"
                self._drop(i, Reason(ReasonCode.CONFLICT, why, {"guard": "decision"}))
                continue
            if isinstance(action, RESIZES):
                resized.add(action.job)
            if isinstance(action, (Start, Expand)):
                self.gives[action.job] = i
            elif (job := beneficiary(action)) is not None:
                self.rooms.setdefault(job, []).append(i)
        self.service = _service(view, acting, self.gives)
        #: Nodes that the decision lacks as it is: that is for the enactor to say.
        self._lacked = self._lacking()

    def verdict(self) -> Decision:
        self._settle()
        for rank in RANKS:
            while self._give_way(rank):
                self._settle()
        if self.decision.whole and self.refused:
            root = min(self.refused)
            for i in list(self.kept):
                self._follow(i, root, "the decision is refused as a whole")
        return self._answer() if self.refused else self.decision

    def _answer(self) -> Decision:
        actions: list[Action] = []
        for i, action in enumerate(self.decision.actions):
            if i in self.kept:
                actions.append(self.kept[i].action)
            elif i not in self.refused:
                actions.append(action)
        held = {action.job for action in actions if isinstance(action, Hold)}
        suppressed = list(self.decision.suppressed)
        for i, why in sorted(self.refused.items()):
            action = self.decision.actions[i]
            suppressed.append(Suppressed(action=action, reason=why))
            if isinstance(action, Start) and i not in self.kept and action.job not in held:
                actions.append(Hold(job=action.job, reason=why))
        return replace(self.decision, actions=tuple(actions), suppressed=tuple(suppressed))

    # ------------------------------------------------------------------ what is refused

    def _drop(self, i: int, why: Reason) -> None:
        del self.kept[i]
        self.refused[i] = why

    def _cut(self, i: int, nodes: int | None, why: Reason) -> None:
        """Let an action have `nodes` nodes only; None: drop it."""
        job = self.kept[i].job
        if nodes is None or job is None:
            self._drop(i, why)
            return
        asked = cast(Start | Expand | Shrink, self.decision.actions[i])
        guard = why.data["guard"]
        text = f"{asked.reason.text}; {counted(nodes)} in place of {asked.nodes}: {guard}"
        reason = replace(asked.reason, text=text, data={**asked.reason.data, "guard": guard})
        self.kept[i] = resized(replace(asked, nodes=nodes, reason=reason), job, nodes)
        self.refused[i] = why

    def _follow(self, i: int, root: int, text: str, nodes: int | None = None) -> None:
        """Drop an action, or cut it to `nodes`, because another one is refused or cut."""
        why = self.refused[root]
        self._cut(i, nodes, Reason(ReasonCode.INCOMPLETE, f"{text}: {why.text}", why.data))

    def _lacking(self) -> int:
        """Nodes that are given out and neither idle nor freed."""
        return max(0, sum([move.taken for move in self.kept.values()]) - self.outlook.idle_nodes)

    def _settle(self) -> None:
        """Drop what has lost its nodes or its purpose, and what that leaves without them, and so on."""
        while self._drop_dependent():
            pass

    def _drop_dependent(self) -> bool:
        for job, rooms in self.rooms.items():
            give = self.gives.get(job)
            if give is None:
                continue
            broken = [i for i in rooms if i in self.refused]
            if give in self.kept and broken:
                self._follow(give, broken[0], "the nodes for it are not freed")
                return True
            # what happens for a reason of higher rank has its purpose in itself
            vain = [i for i in rooms if i in self.kept and self.ranks[i] >= self.ranks[give]]
            if give not in self.kept and vain:
                self._follow(vain[0], give, f"{job} gets no nodes after all")
                return True
        grants = [i for i in self.gives.values() if i in self.kept]
        lacking = self._lacking() - self._lacked
        if lacking <= 0 or not grants:
            return False
        roots = [i for i in self.refused if isinstance(self.decision.actions[i], (Shrink, Steal))]
        last = max(grants, key=self.service.__getitem__)
        size = cutting.at_most(self.kept[last], self.kept[last].size - lacking)
        text = f"{counted(lacking)} for it are not freed"
        self._follow(last, min(roots or self.refused), text, size if self._divisible(last) else None)
        return True

    # ------------------------------------------------------------------ guards

    def _give_way(self, rank: Rank) -> bool:
        """Drop or cut what breaks a guard among the actions of `rank`; False when they break none."""
        level = RANKS.index(rank)
        mine = [i for i in self.kept if self.ranks[i] == level]
        if not mine:
            return False
        guards = [guard for guard in self.guards if RANKS.index(guard.rank) <= level]
        given = [move for i, move in self.kept.items() if self.ranks[i] < level]
        return self._judge_each(mine, given, guards) or self._judge_sums(mine, given, guards)

    def _judge_each(self, mine: list[int], given: list[Move], guards: list[AnyGuard]) -> bool:
        """Apply vetoes and bounds, all at the state that the actions lead to together."""
        single = [guard for guard in guards if not isinstance(guard, SumGuard)]
        after = self.outlook.after([*given, *(self.kept[i] for i in mine)]) if single else {}
        found: dict[int, tuple[VetoGuard | BoundGuard, Reason]] = {}
        for i in mine:
            for guard in single:
                why = None if i in found else self._against(guard, i, after)
                if why is not None:
                    found[i] = guard, why
        for i, (guard, why) in found.items():
            self._cut(i, self._bounded(guard, i) if isinstance(guard, BoundGuard) else None, why)
        return bool(found)

    def _against(self, guard: VetoGuard | BoundGuard, i: int, after: dict[str, int]) -> Reason | None:
        move = self.kept[i]
        why = None
        if isinstance(guard, VetoGuard):
            why = guard.refuses(self.view, move.action, after)
        elif move.job is not None:
            limit = guard.limit(self.view, move.job)
            why = None if limit is None or cutting.within(move, limit) else limit.reason
        if why is None:
            return None
        return Reason(why.code, f"{guard.name}: {why.text}", {**why.data, "guard": guard.name})

    def _bounded(self, guard: BoundGuard, i: int) -> int | None:
        """The size within the bounds to which an action can be cut; None when there is none."""
        move = self.kept[i]
        limit = None if move.job is None else guard.limit(self.view, move.job)
        if limit is None or not self._divisible(i):
            return None
        return cutting.bounded(move, limit)

    def _judge_sums(self, mine: list[int], given: list[Move], guards: list[AnyGuard]) -> bool:
        """Let one action give way when a sum is outside."""
        moves = [*given, *(self.kept[i] for i in mine)]
        sums = [guard for guard in guards if isinstance(guard, SumGuard)]
        breaches = foremost(self.outlook, sums, given, moves)
        if not breaches:
            return False
        for i in sorted(mine, key=self.service.__getitem__, reverse=True):
            others = [move for move in moves if move is not self.kept[i]]
            own = [b for b in breaches if b.eased(self.outlook.amount(b.guard, others, b.state))]
            if own:
                size = self._mending(i, own, others) if self._divisible(i) else None
                self._cut(i, size, own[0].reason)
                return True
        # None of them does it alone: all of them together do.
        self._drop(max(mine, key=self.service.__getitem__), breaches[0].reason)
        return True

    def _mending(self, i: int, breaches: list[Breach], others: list[Move]) -> int | None:
        """The size to which an action can be cut so that `breaches` are none; None when there is none."""
        move = self.kept[i]
        assert move.job is not None
        job = move.job

        def mends(nodes: int) -> bool:
            moves = [*others, resized(move.action, job, nodes)]
            return all(b.mended(self.outlook.amount(b.guard, moves, b.state)) for b in breaches)

        return cutting.nearest(move, mends)

    def _divisible(self, i: int) -> bool:
        """Whether an action may be cut. A job for which too few nodes are freed would get none at all."""
        action = self.kept[i].action
        gives = self.gives.get(beneficiary(action) or "")
        return not self.decision.whole and gives not in self.kept and cutting.divisible(self.kept[i])


def _service(
    view: ClusterSnapshot, acting: Mapping[int, Action], gives: Mapping[str, int]
) -> dict[int, tuple[int, int, int]]:
    """Sort keys of actions: smaller is served first, and gives way last."""
    places = {job.id: i for i, job in enumerate(view.jobs)}
    below = {job.id for job in view.jobs if job.nodes < job.min_nodes}
    keys: dict[int, tuple[int, int, int]] = {}
    for i, action in acting.items():
        if not isinstance(action, RESIZES):
            keys[i] = (0, i, i)
        elif isinstance(action, Start):
            keys[i] = (2, places.get(action.job, 0), i)
        elif isinstance(action, Expand):
            keys[i] = (1 if action.job in below else 3, places.get(action.job, 0), i)
    for i, action in acting.items():
        if isinstance(action, (Shrink, Steal)):
            give = gives.get(beneficiary(action) or "")
            # A reduction for nobody in particular: the job that is served first keeps its nodes longest.
            keys[i] = (4, -places.get(action.job, 0), i) if give is None else (*keys[give][:2], i)
    return keys
