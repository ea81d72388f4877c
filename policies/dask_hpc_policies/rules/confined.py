"""How many of the nodes that no job holds plain work may keep busy under a corridor.

Plain work says nothing of what it draws and asks for no nodes; what it has beyond the idle watts of its nodes
counts all the same. Jobs come first: what runs, and the first of those that wait for watts alone.

Rules of the file: pure. Plain work always has one node: it cannot starve.
"""

from __future__ import annotations

from math import floor

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.model import ClusterSnapshot
from dask_hpc_policies.power.allowed import is_above
from dask_hpc_policies.power.question import drawn_w
from dask_hpc_policies.power.view import PowerView
from dask_hpc_policies.power.watts import node_w
from dask_hpc_policies.rules.admission import needed_nodes
from dask_hpc_policies.wording import counted

#: A node is given back when there is room for it and this share of another one: figures tremble.
_SPARE = 0.25


def plain_nodes(
    view: ClusterSnapshot, power: PowerView, more_w: float, node_more_w: float, free: int, now: int
) -> tuple[int, Reason | None]:
    """Nodes for plain work, at least one, and why it has no more; None: it has all that are free.

    Parameters
    ----------
    more_w
        What plain work draws now beyond the idle watts of its nodes, which `power` contains.
    node_more_w
        What it draws so on one node.
    free
        Nodes that no job holds.
    now
        How many of these it may use now.
    """
    if not (power.acts and power.bounded and power.may("hold")) or node_more_w <= 0 or free <= 1:
        return free, None
    assert power.upper_w is not None
    room_w = power.upper_w - (drawn_w(view, power)[1] - more_w)
    for job in view.pending:
        need = None if job.is_default else needed_nodes(job)
        if need is not None and need <= view.idle_nodes:
            room_w -= need * (node_w(job, need, power.busy_w)[1] - power.idle_w)
            break
    nodes = floor(room_w / node_more_w + 1e-9)
    if nodes > now:
        nodes = max(now, floor(room_w / node_more_w - _SPARE))
    above = is_above(power, 0.0)
    if above:
        # whoever draws too much: nothing is added to it
        nodes = min(now, nodes)
    nodes = max(1, min(free, nodes))
    if nodes == free:
        return free, None
    text = (
        f"plain work has {counted(nodes)} of {free} that are free: one more would draw {node_more_w:.0f} W, "
        f"and {max(0.0, room_w):.0f} W of {power.upper_w:g} W are left for it"
    )
    if above:
        text += f"; while the draw is {power.draw_w:g} W it gets no more"
    data = {"nodes": nodes, "free_nodes": free, "room_w": room_w, "upper_w": power.upper_w}
    return nodes, Reason(ReasonCode.CORRIDOR, text, data)
