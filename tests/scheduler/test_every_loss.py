"""Every redundancy scheme and every set of hosts that may be lost, then one more; and bytes that changed.

Managers are processes of their own, and all is read through them, as other hosts do. Who is lost listens
nowhere.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from distributed import wait
from hosts import HOSTS, before, five_hosts, places

import dask_hpc
from dask_hpc.checkpoint.blobs import Home
from dask_hpc.checkpoint.record import dump, parse, record_path
from dask_hpc.errors import CheckpointError
from dask_hpc.scheduler.rpc.service import of
from dask_hpc.worker.fetching import is_silent
from dask_hpc.worker.saved import copies_of

#: Hosts that may be lost at once.
PROMISED = {"single": 0, "partner": 1, "xor": 1, "reed-solomon": 2}
#: Blocks of different lengths, none of them whole pages.
LENGTHS = (700, 3000, 1, 911, 40_000, 2, 1500)


@pytest.fixture(scope="module")
def cluster(memory_of_file):
    # nothing of other tests is taken over
    with five_hosts() as client:
        before(lambda: set(places(client)) == set(HOSTS), "all hosts are there")
        yield client


def content():
    return [np.arange(length) * 7.0 + number for number, length in enumerate(LENGTHS)]


def version(client, scheme):
    """The record of a version of all hosts' blocks, and where it is read."""
    rt = dask_hpc.install(client)
    rt.update(checkpoint_redundancy=scheme, checkpoint_set_size=4)
    addresses = [address for _, _, address in places(client).values()]
    data = [
        client.scatter([block], workers=[addresses[number % len(addresses)]], hash=False)[0]
        for number, block in enumerate(content())
    ]
    wait(data)
    levels = rt.checkpoint(data, "data", levels=("L1", "L2")).status()["levels"]
    assert levels == (["L1"] if scheme == "single" else ["L1", "L2"])
    text = client.run_on_scheduler(record_of)
    return text, {"workers": [addresses[0]]}, data


def record_of(dask_scheduler):
    (text,) = map(dump, of(dask_scheduler).commits._memory.records.values())
    return text


async def read(text, gone, dask_worker):
    """All blocks, or why each cannot be read; managers at some addresses are to be found elsewhere."""
    record = parse(text)
    for address in gone.values():
        # so that not every block waits for it
        is_silent(address)
    seen = record.at({h: Home(gone.get(h.address, h.address), "/elsewhere") for h in record.all_homes})
    found = []
    for copy in copies_of(seen):
        try:
            found.append(copy.value(await copy.content(dask_worker.rpc), True))
        except (OSError, ValueError, CheckpointError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("scheme", PROMISED)
def test_every_promised_set_of_hosts_may_be_lost_and_beyond_that_it_is_said(cluster, scheme):
    text, where, data = version(cluster, scheme)
    homes = sorted(home.address for home in parse(text).all_homes)
    assert len(homes) == len(HOSTS)
    assert parse(text).losses_survived == PROMISED[scheme]
    # sets of four hosts at most, which have unlike amounts: parities are as long as the longest part
    assert 1 + PROMISED[scheme] / 4 <= parse(text).storage_ratio <= 1 + 4 * PROMISED[scheme]
    with ExitStack() as stack:
        gone = {}
        for address in homes:
            nobody = stack.enter_context(socket.socket())
            nobody.bind(("127.0.0.1", 0))
            gone[address] = f"tcp://127.0.0.1:{nobody.getsockname()[1]}"
        expected, refused = content(), 0
        for count in range(PROMISED[scheme] + 2):
            for lost in combinations(homes, count):
                (found,) = cluster.run(read, text, {each: gone[each] for each in lost}, **where).values()
                for value, block in zip(found, expected, strict=True):
                    if isinstance(value, str):
                        assert count > PROMISED[scheme], (lost, value)
                        assert "is missing, of" in value or "are missing, of" in value or scheme == "single"
                        refused += 1
                    else:
                        np.testing.assert_array_equal(value, block)
    assert refused > 0, "one more than is promised may be one too many"
    del data


@pytest.mark.slow
def test_a_byte_that_has_changed_in_any_file_of_memory_is_never_another_value(cluster):
    text, where, data = version(cluster, "xor")
    record, chance, expected = parse(text), random.Random(9), content()
    files = [
        (home, Path(home.folder) / f"{segment}.segment")
        for home, segments in record.segments().items()
        for segment in segments
    ]
    assert len(files) > len(HOSTS)
    read_otherwise = 0
    for home, path in files:
        raw = path.read_bytes()
        for place in {0, len(raw) // 2, chance.randrange(len(raw))}:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(8)
            path.write_bytes(changed)
            (found,) = cluster.run(read, text, {}, **where).values()
            np.testing.assert_equal(found, expected, err_msg=f"{path} at {place}")
            # with another host lost, too: right, or said
            others = [each for each in record.all_homes if each != home]
            lost = {chance.choice(others).address: "tcp://127.0.0.1:1"}
            (found,) = cluster.run(read, text, lost, **where).values()
            for value, block in zip(found, expected, strict=True):
                if isinstance(value, str):
                    assert "is not what was written" in value or "missing" in value, value
                    read_otherwise += 1
                else:
                    np.testing.assert_array_equal(value, block)
        path.write_bytes(raw)
    assert read_otherwise > 0
    for home in record.all_homes:
        path = Path(record_path(home.folder, record.id))
        raw = path.read_bytes()
        assert raw.decode() == text
        for place in [chance.randrange(len(raw)) for _ in range(20)]:
            changed = bytearray(raw)
            changed[place] ^= 1 << chance.randrange(7)
            with pytest.raises(CheckpointError, match="is no record of a version in memory"):
                parse(changed.decode())
    del data
