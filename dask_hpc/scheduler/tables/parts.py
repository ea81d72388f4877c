"""What a part of the runtime can take part in: protocols of one method each, asked from one place each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

#: What clients may call: plain data in, plain data out.
Method = Callable[..., Awaitable[Any]]
