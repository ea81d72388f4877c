"""The configuration under which collections are rechunked and shuffled from worker to worker."""

from __future__ import annotations

P2P = {
    "array.rechunk.method": "p2p",
    "dataframe.shuffle.method": "p2p",
    "optimization.fuse.active": False,
}
