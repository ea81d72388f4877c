"""Whoever reads values: a loop that has ended is not waited for."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from dask_hpc.client.readers import Reader
from dask_hpc.errors import CouplingError


def test_a_reader_is_gone_whose_loop_has_ended_though_somebody_keeps_its_error() -> None:
    class Channel:
        def run(self, function: Any) -> Any:
            if stopped:
                function().close()
                raise KeyboardInterrupt
            return asyncio.run(function())

    class Gives:
        outcome = "it has failed"

        async def changes(self) -> None:
            await asyncio.Event().wait()

        def taken(self) -> None: ...

    def read(timeout_s: float | None, error: BaseException | None = None) -> BaseException:
        reader = Reader(Channel(), gives, 0, timeout_s)  # type: ignore[arg-type]
        if error is not None:
            reader.put(0, 0, None, error)
        there = weakref.ref(reader)
        try:
            next(reader)
        except BaseException as found:
            del reader
            kept.append(found)
        assert there() is None
        return kept[-1]

    kept: list[BaseException] = []
    stopped, gives = False, Gives()
    assert isinstance(read(None), CouplingError)
    assert isinstance(read(None, ZeroDivisionError()), ZeroDivisionError)
    # whoever reads would take these for the end
    for error in (StopIteration(), StopAsyncIteration()):
        assert isinstance(read(None, error), RuntimeError)
    gives.outcome = None  # type: ignore[assignment]
    assert isinstance(read(0.01), TimeoutError)
    stopped = True
    assert isinstance(read(None), KeyboardInterrupt)
