"""The release. A module of its own, so that nothing imports the package for it."""

from __future__ import annotations

__version__ = "0.1.0"


def package_version() -> str:
    """Version of this package where it is called (it is sent to workers)."""
    return __version__
