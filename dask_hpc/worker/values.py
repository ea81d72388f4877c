"""Values that a worker holds, to be written somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Answers(dict[int, Any]):
    """What a worker says of blocks, by number. Dask sends it as one, and a dictionary value by value."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Instead of answers, or of one: nothing was written, for a reason that is none of the value.

    Said as an answer: of an error the worker would log where in the code it came from.
    """

    why: str


def read_values(worker: Any, keys: Mapping[int, Any], answers: dict[int, Any]) -> dict[int, Any]:
    """Values of those keys that the worker holds, by number; called on its event loop.

    Why one cannot be read is noted among the answers.
    """
    values: dict[int, Any] = {}
    for number, key in keys.items():
        if key in worker.data:
            try:
                values[number] = worker.data[key]
            except (
                Exception
            ) as error:  # what was spilled may not be readable, and types of users raise anything
                answers[number] = f"{type(error).__name__}: {error}"
    return values
