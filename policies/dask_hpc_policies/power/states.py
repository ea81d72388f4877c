"""What a node may be doing, as far as its power goes.

After Dauwe (2018, sections 3.4 and 5.3): a node that computes, one that saves or reads back, one that makes
lost work again. What its network card and its share of a switch draw comes on top of what the node does
(equations 3.6, 3.7 and 5.2): the share always, the card while it is in use.
"""

from __future__ import annotations

from typing import Literal

#: ``off``: it is not there. ``boot``: it starts. ``idle``: nothing executes on it, whoever holds it.
#: ``compute``: tasks execute. ``communicate``: none do, and data comes or goes. ``checkpoint``: it writes
#: what is to be saved. ``restart``: it reads back what was saved. ``recovery``: it makes lost results again.
NodeState = Literal["off", "boot", "idle", "compute", "communicate", "checkpoint", "restart", "recovery"]
NODE_STATES: tuple[NodeState, ...] = (
    "off", "boot", "idle", "compute", "communicate", "checkpoint", "restart", "recovery",
)  # fmt: skip
#: States in which its network card is in use.
NETWORKED: frozenset[NodeState] = frozenset({"communicate", "checkpoint", "restart"})
