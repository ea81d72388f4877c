"""The tasks of coming steps of a flow: what waits for their blocks, and the values that are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dask._task_spec import Task, TaskRef
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Future

from dask_hpc.channel import Channel
from dask_hpc.client.turns import Analysis
from dask_hpc.worker.awaited import source
from dask_hpc.worker.coupling.blocks import analysed
from dask_hpc_policies.coupling.contract import Field, block_key, is_due, value_key


@dataclass(frozen=True, slots=True)
class Value:
    """A value that is due: at which turn, of which analysis, its key, and the turns of its window."""

    turn: int
    analysis: str
    key: str
    window: range


@dataclass(slots=True)
class StepGraph:
    """Tasks that are submitted at once: a submission costs as much as many tasks."""

    flow: str
    fields: Sequence[Field]
    places: int
    #: Tasks by where they run.
    tasks: dict[str, dict[str, Task]] = field(default_factory=dict)
    #: Keys of those that wait for blocks.
    sources: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def keys(self, turn: int) -> list[str]:
        """Keys of what the places have of a turn."""
        return [block_key(self.flow, turn, place) for place in range(self.places)]

    def add_sources(self, turns: Iterable[int]) -> None:
        """Add what waits for the blocks of turns."""
        self.sources += [key for turn in turns for key in self.keys(turn)]
        self._at("auto").update((key, Task(key, source, key)) for key in self.sources)

    def _at(self, where: str) -> dict[str, Task]:
        return self.tasks.setdefault(where, {})

    async def submit(self, channel: Channel) -> dict[str, Future]:
        """Submit the tasks; gives a future of each.

        Where all workers are gone that they are to run on, they run elsewhere.
        """
        if self.sources:
            await channel.ask("expect", keys=self.sources, client=channel.client.id)
        try:
            return await self._send(channel)
        except BaseException:  # a graph may be long under way
            await self.forget(channel)
            raise

    async def forget(self, channel: Channel) -> None:
        """Say that what waits for blocks does not come: nobody else knows."""
        with suppress(Exception):
            await channel.ask("unexpect", keys=self.sources)

    async def _send(self, channel: Channel) -> dict[str, Future]:
        workers: dict[str, list[str]] = {}
        if any(where != "auto" for where in self.tasks):
            workers = await channel.ask("flow_workers", flow=self.flow)
        layers = {
            where: MaterializedLayer(tasks, annotations=_on(workers.get(where)))
            for where, tasks in self.tasks.items()
        }
        keys = [key for tasks in self.tasks.values() for key in tasks]
        graph = HighLevelGraph(layers, {where: set() for where in layers})
        return dict(zip(keys, channel.client.get(graph, keys, sync=False), strict=True))

    def add_values(self, analysis: Analysis, turns: Iterable[int]) -> None:
        """Add the values that an analysis has at these turns."""
        for turn in turns:
            if is_due(turn, analysis.first, analysis.window, analysis.every):
                window = range(turn - analysis.window + 1, turn + 1)
                bundles = [TaskRef(key) for each in window for key in self.keys(each)]
                arguments: tuple[Any, ...] = (analysis.function, self.fields, *bundles)
                value = Value(turn, analysis.name, value_key(self.flow, turn, analysis.name), window)
                self._at(analysis.where)[value.key] = Task(value.key, analysed, *arguments)
                self.values.append(value)


def _on(workers: Sequence[str] | None) -> dict[str, Any] | None:
    return None if workers is None else {"workers": list(workers), "allow_other_workers": True}
