"""Roles of nodes: jobs and plain work get compute nodes alone; others are there for what names them.

A worker says the role of its node as an abstract resource when it registers, before any task is placed; a
policy or a user may give the node another one, which lasts until the node is given yet another, also when
its workers start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.events import ActionEnded
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc.scheduler.tables.parts import Enactor, Method
from dask_hpc_policies.decision import Outcome, Reason, ReasonCode, SetRole
from dask_hpc_policies.model import COMPUTE, ROLES
from dask_hpc_policies.rules.roles import Standing, last_one, refusal


class Roles:
    """Gives nodes their roles, and keeps the runtime awake while any is not for computing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state

    def enactors(self) -> Mapping[type[Any], Enactor]:
        """It carries out what a policy says of roles."""
        return {SetRole: self.set}

    def methods(self) -> Mapping[str, Method]:
        """What clients and workers may call."""
        return {"set_role": self.ask, "see_roles": self.see}

    def needed(self) -> bool:
        """Whether stock would place tasks where none of them belongs."""
        state = self._state
        # also of nodes that are not there now: stock would know nothing of it when they come back
        given = any(role != COMPUTE for role in state.roles.values())
        return given or any(state.role_of(ws) != COMPUTE for ws in dict.values(state.scheduler.workers))

    async def see(self) -> None:
        """A worker whose node is not for computing has come: stock does not know what that means."""
        if self.needed() and not self._engine.leaving:
            await self._engine.wake()

    async def ask(self, node: str, role: str) -> dict[str, Any]:
        """Have a node play another role; gives the outcome when it does, or why it does not.

        Raises
        ------
        ValueError
            For a node or a role that there is not.
        """
        engine = self._engine
        if role not in ROLES:
            raise ValueError(f"role is {role!r}; allowed: {', '.join(ROLES)}")
        async with engine.kept_awake():
            known = self._state.nodes.nodes
            if node not in known:
                raise ValueError(
                    f"node is {node!r}; allowed: {', '.join(known) or 'none, there are no nodes'}"
                )
            action = SetRole(node=node, role=role, reason=Reason(ReasonCode.USER_REQUEST, "asked for"))
            ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            at_once = self._begin(action, ended.set_result)
            outcome = at_once or await ended
            engine.handle(ActionEnded(outcome, "request"))
        return {"result": outcome.result, "reason": outcome.reason.text}

    def set(self, action: SetRole) -> Outcome:
        """Carry out what a policy says: at once where nothing runs, else when that has ended."""
        at_once = self._begin(action, lambda outcome: self._engine.handle(ActionEnded(outcome, "request")))
        return at_once or Outcome(action=action, result="under way", reason=action.reason)

    def _begin(self, action: SetRole, ended: Callable[[Outcome], None]) -> Outcome | None:
        """Change a role at once, or refuse to; else drain the node, and call `ended` at the end of that."""
        outcome = self._refused(action) or self._at_once(action)
        if outcome is not None:
            return outcome
        node = self._state.nodes.nodes[action.node]

        def taken(drained: list[Node], why: Reason) -> None:
            # in the very call in which the node has fallen quiet
            # others have got another role, or have gone, while this one was drained
            kept = last_one(action, node.id, node.role, self._state.nodes.computing()) if drained else None
            if drained and kept is None:
                return ended(self._play(node, action))
            if kept is not None:
                self._state.give(drained, None)
                self._engine.admission.scan(*self._state.plain)
            return ended(Outcome(action=action, result="aborted", reason=kept or why))

        refusal = self._engine.rounds.withdraw([node], action.reason, taken, None)
        return None if refusal is None else Outcome(action=action, result="refused", reason=refusal)

    def _refused(self, action: SetRole) -> Outcome | None:
        node = self._state.nodes.nodes.get(action.node)
        why: Reason | None
        if self._engine.leaving:
            why = Reason(ReasonCode.WRONG_STATE, "dask_hpc was uninstalled")
        else:
            stands = (
                None if node is None else Standing(node.id, node.role, node.up, node.job, bool(node.reserved))
            )
            why = refusal(action, stands, self._state.nodes.computing())
        return None if why is None else Outcome(action=action, result="refused", reason=why)

    def _at_once(self, action: SetRole) -> Outcome | None:
        """Change the role of a node on which nothing runs, or on which nothing of jobs ever did."""
        node = self._state.nodes.nodes[action.node]
        scheduler = self._state.scheduler
        idle = not any(
            scheduler.workers[address].processing or reads.shuffles_on(scheduler, address)
            for address in node.workers
        )
        return self._play(node, action) if idle or node.role != COMPUTE else None

    def _play(self, node: Node, action: SetRole) -> Outcome:
        self._state.set_role(node, action.role)
        self._engine.admission.scan(*self._state.plain)
        if not self.needed():
            self._engine.rest()
        text = f"node {node.id} is for {action.role} now"
        return Outcome(action=action, result="done", reason=Reason(ReasonCode.DONE, text))
