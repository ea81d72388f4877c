"""What is refused leaves all that is stored as it was, to the byte."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def stored(folder: str | os.PathLike[str]) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a folder, by its path; links are not followed."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in sorted(Path(folder).rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            content = os.fsencode(os.readlink(path))
        else:
            content = path.read_bytes() if stat.S_ISREG(mode) else b""
        found[str(path.relative_to(folder))] = mode, content
    return found


@contextmanager
def unchanged(folder: str | os.PathLike[str], *, drafts: bool = True) -> Iterator[None]:
    """Holds that nothing below a folder was changed meanwhile.

    Parameters
    ----------
    drafts
        Whether that goes for what is being written, under hidden names, too.
    """

    def now() -> dict[str, tuple[int, bytes]]:
        return {
            path: about
            for path, about in stored(folder).items()
            if drafts or not any(part.startswith(".") for part in Path(path).parts)
        }

    before = now()
    yield
    assert now() == before
