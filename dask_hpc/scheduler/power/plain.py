"""Nodes that are withheld from plain work while the corridor has no watts for them; jobs may have them.

Rules of the file: nothing that executes is interrupted: a withheld node gets nothing new. How many there are
is the rule's (`dask_hpc_policies.rules.confined`).
"""

from __future__ import annotations

from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.power.draw import Sample
from dask_hpc.scheduler.tables.nodes import Node
from dask_hpc_policies.decision import ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.load_curve import LoadCurve
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.rules.confined import plain_nodes


class PlainNodes:
    """Withholds nodes from plain work, and gives them back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state
        #: Why nodes are withheld; empty: none is.
        self.reason = ""

    def look(self, view: ClusterSnapshot, power: PowerView, last: Sample, curve: LoadCurve) -> None:
        """Withhold as many as the corridor needs, after a decision about `view`."""
        if not power.acts and not self.reason:
            return
        free = self._state.nodes.free()
        # all its threads may execute soon, whatever it draws now
        a_node_w = max(curve.busy_w, last.plain_w / last.plain_nodes if last.plain_nodes else 0.0)
        more_w = last.plain_w - last.plain_nodes * curve.idle_w
        now = len(free) if not self.reason else sum([1 for node in free if not node.withheld])
        nodes, why = plain_nodes(view, power, more_w, a_node_w - curve.idle_w, len(free), now)
        if why is None:
            if self.reason:
                self.end()
                self._engine.controller.note("", ReasonCode.CORRIDOR, "plain work has all free nodes again")
            return
        if nodes != now:
            self._have(free, nodes)
        if nodes != now or not self.reason:
            self._engine.controller.note("", ReasonCode.CORRIDOR, why.text)
        self.reason = why.text

    def end(self) -> None:
        """Give all back."""
        self.reason = ""
        self._set([node for node in self._state.nodes.nodes.values() if node.withheld], withheld=False)

    def told(self) -> list[str]:
        """Nodes that are withheld."""
        return [node.id for node in self._state.nodes.free() if node.withheld]

    def _have(self, free: list[Node], count: int) -> None:
        """Leave plain work `count` of the free nodes, those first on which it executes something."""
        workers = self._state.scheduler.workers

        def order(node: Node) -> tuple[bool, bool]:
            busy = any(workers[address].processing for address in node.workers if address in workers)
            return not busy, node.withheld

        ranked = sorted(free, key=order)
        self._set([node for node in ranked[count:] if not node.withheld], withheld=True)
        self._set([node for node in ranked[:count] if node.withheld], withheld=False)

    def _set(self, nodes: list[Node], *, withheld: bool) -> None:
        for node in nodes:
            node.withheld = withheld
        # of a job's node it counts once that is free
        if changed := [node for node in nodes if node.job is None and not node.reserved and node.workers]:
            self._state.change(changed)
            self._engine.admission.scan(*self._state.plain)
