"""Coupling, seen from a client: methods that `Runtime` has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dask_hpc.channel import Channel
from dask_hpc_policies.codec import encode
from dask_hpc_policies.coupling import contract

if TYPE_CHECKING:
    from dask_hpc.client.coupling import Flow

#: Steps that a queue may hold.
_QUEUE = (1, 1024)


class CouplingMethods:
    """What a runtime's handle knows of programs outside Dask."""

    #: The way to the scheduler.
    channel: Channel

    def couple(self, name: str, fields: Any, *, queue: int = 2, when_full: str = "wait") -> Any:
        """Declare a flow: fields that a program outside Dask (`dask_hpc.Source`) hands over step by step.

        Parameters
        ----------
        name
            What producers know it by.
        fields
            ``{name: (dims, shape, dtype)}``, of all producers together, of up to 8 dimensions.
        queue
            Steps that may be in flight at once, from 1 to 1,024: taken, and not done for everybody who reads.
        when_full
            What becomes of a step beyond that: ``"wait"`` (its `Source.send` does), ``"drop-oldest"`` (the
            oldest in flight of which no analysis has begun makes room, else the oldest whose values nobody
            has read; while all are being analysed, it is left out) or ``"drop-newest"`` (it is left out).

        Returns
        -------
        dask_hpc.client.coupling.Flow
            ``analyse``, ``on_step``, ``results``, ``status``, ``close``.

        Raises
        ------
        ValueError
            For what is not allowed, and a name that an open flow has.
        """
        return self.channel.run(_couple, self.channel, name, fields, queue, when_full)

    def flows(self) -> Any:
        """One row a flow that is open: name, state, reason, sources, steps, bytes, analyses."""
        return self.channel.sync("flows")


async def _couple(channel: Channel, name: str, fields: Any, queue: int, when_full: str) -> Flow:
    # it needs arrays, and others do not
    from dask_hpc.client.coupling import Flow

    declared = contract.declared(fields)
    contract.checked_name(name)
    queue = contract.checked_number("queue", queue, *_QUEUE)
    contract.checked_choice("when_full", when_full, contract.WHEN_FULL)
    arguments = {"queue": queue, "when_full": when_full, "client": channel.client.id}
    fields = [encode(one) for one in declared]
    id = await channel.ask_or_undo("flow_close", "flow", "couple", name=name, fields=fields, **arguments)
    return Flow(channel, id, name, declared, queue, when_full)
