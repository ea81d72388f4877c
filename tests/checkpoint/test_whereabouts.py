"""Where managers are, in a store: what one scheduler has written the next one reads, and nothing else."""

from __future__ import annotations

import errno
import logging
import os

import pytest

from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.manifest import seal
from dask_hpc.checkpoint.store import Store
from dask_hpc.checkpoint.whereabouts import SCHEMA, Whereabouts, forget, load, save
from dask_hpc_policies.codec import encode

HOME = Home("tls://10.0.0.1:4001", "/dev/shm/dask-hpc-1000-0123456789abcdef")


def test_each_scheduler_has_one_file_which_is_no_checkpoint(tmp_path):
    store = str(tmp_path / "store")
    assert load(store) == []
    first, second = (Whereabouts(name, "tcp://10.0.0.9:8786", (HOME,)) for name in ("one", "two/../../x"))
    for told in (first, second, first):
        save(store, told)
    assert sorted(load(store), key=lambda each: each.cluster) == [first, second]
    assert Store(store).names() == []
    forget(store, "two/../../x")
    forget(store, "three")
    assert load(store) == [first]
    assert [path.name.startswith(".managers-") for path in (tmp_path / "store").iterdir()] == [True]


@pytest.mark.parametrize(
    "home",
    [
        Home("file:///etc/passwd", HOME.folder),
        Home("tcp://10.0.0.1", HOME.folder),
        Home(HOME.address, "/etc"),
        Home(HOME.address, "/dev/shm/../../etc/dask-hpc-1000-0"),
        Home(HOME.address, "dask-hpc-1000-0"),
    ],
)
def test_what_leads_elsewhere_or_was_edited_is_passed_over(tmp_path, home, caplog):
    store = str(tmp_path)
    good = Whereabouts("good", "tcp://10.0.0.9:8786", (HOME,))
    save(store, good)
    (folder,) = tmp_path.iterdir()
    content = seal(SCHEMA, encode(Whereabouts("bad", "tcp://10.0.0.9:8786", (home,))))
    (folder / "bad.json").write_bytes(content)
    (folder / "cut.json").write_bytes(content[:-3])
    (folder / "link.json").symlink_to(folder / "bad.json")
    with caplog.at_level(logging.WARNING):
        assert load(store) == [good]
    assert len(caplog.records) == 3
    folder.chmod(0o777)  # anybody may have written there
    assert load(store) == []
    with pytest.raises(PermissionError, match="not a folder of this user alone"):
        save(store, good)


def test_nothing_is_left_of_what_a_full_store_has_not_taken(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save(str(tmp_path), Whereabouts("one", "tcp://10.0.0.9:8786", (HOME,)))
    (folder,) = tmp_path.iterdir()
    assert not list(folder.iterdir())
