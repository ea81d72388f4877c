"""Records of versions in memory: what is read is what was written, and leads nowhere else."""

from __future__ import annotations

import itertools
import json
import uuid
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from dask_hpc.checkpoint import manifest as manifests
from dask_hpc.checkpoint import record as records
from dask_hpc.checkpoint.blobs import Blob, Group, Home, Part, Stripe
from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.describe import describe
from dask_hpc.checkpoint.manifest import Manifest
from dask_hpc.checkpoint.record import Record, dump, parse, read_records, record_path, write_record
from dask_hpc.checkpoint.repair import adoptions
from dask_hpc.errors import CheckpointError
from dask_hpc.worker.saved import copies_of
from dask_hpc_policies.resilience.redundancy_sets import Scheme, form_sets, part_bounds

PAGE = 4096


def homes(count):
    return [
        Home(f"tcp://10.0.0.{number}:40{number:03d}", f"/dev/shm/dask-hpc-1000-{number:016x}")
        for number in range(count)
    ]


def drawn():
    return uuid.uuid4().hex


def grouped(hosts, segments, scheme):
    """The sets that hosts form, as the scheduler makes them, for a segment on each."""
    blobs = {home: Blob(home, ((segment, 3 * PAGE),)) for home, segment in zip(hosts, segments, strict=True)}
    of = {home.address: home for home in hosts}
    found = []
    for each in form_sets({home.address: home.address for home in hosts}, scheme).sets:
        there = tuple(blobs[of[host]] for host in each.hosts)
        bounds = {host: part_bounds(3 * PAGE, each.parts) for host in each.hosts}
        places = {host: place for place, host in enumerate(each.hosts)}
        stripes = tuple(
            Stripe(
                tuple(Part(places[part.host], *bounds[part.host][part.number]) for part in stripe.parts),
                tuple((of[holder], drawn()) for holder in stripe.holders),
            )
            for stripe in each.stripes()
        )
        found.append(Group(there, stripes))
    return tuple(found)


def made(scheme=None, hosts=4):
    """A version of a labelled array of eight blocks, two on each of four hosts."""
    field = xr.DataArray(da.ones(80, chunks=10), dims="x", coords={"x": np.arange(80.0)}, name="t")
    plan, _ = describe(field, "field")
    assert plan.files
    where, segments = homes(hosts), [drawn() for _ in range(hosts)]
    places = tuple(number % hosts for number in range(8))
    found = Manifest(
        plan=plan,
        version=3,
        created_s=1.5e9,
        levels=("L1",),
        files={path: (len(content), crc32c(content)) for path, content in plan.files.items()},
        blocks=tuple((number // hosts * 80, 80, number) for number in range(8)),
        digests={},
        packs={str(number): segments[place] for number, place in enumerate(places)},
        bytes=640,
    )
    groups = () if scheme is None else grouped(where, segments, scheme)
    return Record(drawn(), found, dict(plan.files), tuple(where), places, groups)


def test_a_record_comes_back_as_it_was_with_where_each_block_is(tmp_path, monkeypatch):
    record = made(Scheme("partner"))
    write_record(str(tmp_path), record.id, dump(record))
    (path,) = records.records(str(tmp_path))
    assert Path(path).stat().st_mode & 0o077 == 0
    # others are dropped meanwhile
    monkeypatch.setattr(records, "records", lambda folder: [f"{folder}/{drawn()}.version", path])
    (text,) = read_records(str(tmp_path))
    back = parse(text)
    assert back.files == record.files
    assert back.segments() == record.segments()
    for number, copy in enumerate(copies_of(back)):
        assert copy.home == record.homes[number % 4]
        assert copy.written == record.manifest.written(number)
        assert copy.group is not None
        assert copy.group.blobs[copy.blob].home == copy.home
    # also those that hold parities alone
    assert replace(back, homes=back.homes[:1]).all_homes == set(back.homes)


def test_a_manager_that_listens_elsewhere_does_so_wherever_a_record_names_it():
    record = made(Scheme("partner"))
    first, *others = record.homes
    moved = Home("tcp://elsewhere:1", first.folder)
    now = record.at({first: moved})
    assert now.homes == (moved, *others)
    assert set(now.segments()) == now.all_homes == {moved, *others}
    assert {blob.home for group in now.groups for blob in group.blobs} == {moved, *others}
    # what it holds is read, and what another one holds is made again of it
    for lost in now.homes:
        assert now.readable({moved, *others} - {lost})


@pytest.mark.parametrize("scheme", [None, Scheme("partner"), Scheme("xor", 4), Scheme("reed-solomon", 4)])
def test_what_can_be_read_is_what_the_scheme_promises_and_one_more_is_too_many(scheme):
    record = made(scheme)
    everywhere = set(record.homes)
    promised = {None: 0, "partner": 1, "xor": 1, "reed-solomon": 2}[scheme and scheme.name]
    for lost in range(promised + 1):
        for gone in itertools.combinations(record.homes, lost):
            assert record.readable(everywhere - set(gone))
    if scheme is None or scheme.name != "partner":
        for gone in itertools.combinations(record.homes, promised + 1):
            assert not record.readable(everywhere - set(gone))
    assert not record.readable(set())
    # of four hosts with as much each: a copy, one part in three, one in one
    ratio = {None: 1.0, "partner": 2.0, "xor": 4 / 3, "reed-solomon": 2.0}[scheme and scheme.name]
    assert (record.losses_survived, record.storage_ratio) == (promised, pytest.approx(ratio, rel=0.1))
    if scheme is not None:
        # one that is in no group is lost with its memory
        alone = replace(record, homes=(*record.homes, homes(5)[-1]))
        assert alone.losses_survived == 0
        # so many as the part with the fewest parities
        first, *rest = record.groups[0].stripes
        fewer = Group(record.groups[0].blobs, (replace(first, parities=first.parities[1:]), *rest))
        assert replace(record, groups=(fewer, *record.groups[1:])).losses_survived == promised - 1


@pytest.mark.parametrize("scheme", [Scheme("partner"), Scheme("xor", 4), Scheme("reed-solomon", 4)])
def test_hosts_that_have_nothing_of_a_version_do_not_make_it_less_safe(scheme):
    record = made(scheme)
    first = record.homes[0]
    # the scheduler has no parities made of no bytes
    groups = []
    for group in record.groups:
        blobs = tuple(blob if blob.home == first else Blob(blob.home, ()) for blob in group.blobs)
        stripes = []
        for stripe in group.stripes:
            parts = tuple(
                part if blobs[part.blob].segments else replace(part, start=0, stop=0) for part in stripe.parts
            )
            left = Stripe(parts, stripe.parities)
            stripes.append(left if left.nbytes else replace(left, parities=()))
        groups.append(Group(blobs, tuple(stripes)))
    alone = replace(record, homes=(first,), places=(0,) * 8, groups=tuple(groups))
    for gone in itertools.combinations(record.homes, scheme.parities):
        assert alone.readable(set(record.homes) - set(gone))
    assert alone.losses_survived == scheme.parities


def edited(record, change):
    content = json.loads(dump(record))["content"]
    change(content)
    return manifests.seal(records.SCHEMA, content).decode()


def leads_elsewhere(content):
    content["homes"][0]["folder"] = "/dev/shm/dask-hpc-1000-0/../../../etc"


BAD = {
    "a folder of somebody else": lambda told: told["homes"][0].update(folder="/etc"),
    "a folder outside": leads_elsewhere,
    "no address": lambda told: told["homes"][0].update(address="file:///etc/passwd"),
    "a name outside": lambda told: told["manifest"]["plan"].update(name="../field"),
    "a segment outside": lambda told: told["manifest"]["packs"].update({"0": "../../x"}),
    "a version outside": lambda told: told.update(id="../x"),
    "a host that there is not": lambda told: told["places"].__setitem__(0, 9),
    "a manager that is none": lambda told: told["homes"][0].update(address="http://10.0.0.1:40001"),
    "a folder of nobody": lambda told: told["homes"][0].update(folder="/dev/shm/dask-hpc-me-0"),
    "a segment too many": lambda told: told["manifest"]["packs"].update({"8": "0" * 32}),
    "a part backwards": lambda told: told["groups"][0]["stripes"][0]["parts"][0].update(start=9, stop=1),
    "a block too few": lambda told: told["places"].pop(),
    "less than nothing": lambda told: told["groups"][0]["blobs"][0]["segments"][0].__setitem__(1, -1),
    "no segment": lambda told: told["manifest"]["packs"].pop("0"),
    "another file": lambda told: told["files"].update(more="AAAA"),
    "no base64": lambda told: told["files"].update(dict.fromkeys(told["files"], "?")),
    "a parity outside": lambda told: told["groups"][0]["stripes"][0]["parities"][0].__setitem__(1, "../x"),
    "a part of no host": lambda told: told["groups"][0]["stripes"][0]["parts"][0].update(blob=7),
    "nothing": dict.clear,
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_record_that_was_made_to_lead_elsewhere_is_refused(change):
    with pytest.raises(CheckpointError, match="no record of a version in memory"):
        parse(edited(made(Scheme("partner")), change))


def test_a_block_is_with_a_host_of_its_record():
    with pytest.raises(CheckpointError, match="a block is with no host of it"):
        parse(edited(made(), lambda told: told["places"].__setitem__(0, -1)))


@given(data=st.data())
def test_a_record_that_was_cut_or_changed_is_refused(data):
    text = dump(made())
    at = data.draw(st.integers(0, len(text) - 1))
    other = text[:at] if data.draw(st.booleans()) else text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
    with pytest.raises(CheckpointError, match="no record of a version in memory"):
        parse(other)


@pytest.mark.parametrize("name", ["../x", "", "x" * 32, None, "0" * 31])
def test_no_file_but_that_of_a_version_is_written(tmp_path, name):
    with pytest.raises(CheckpointError, match="32 hexadecimal digits"):
        record_path(str(tmp_path), name)


def test_a_host_that_held_nothing_has_no_heir():
    record = made(Scheme("partner"))
    lost, *there = record.homes
    assert [each.lost for each in adoptions(record, there)] == [lost]
    groups = [
        replace(
            group, blobs=tuple(Blob(blob.home, ()) if blob.home == lost else blob for blob in group.blobs)
        )
        for group in record.groups
    ]
    assert adoptions(replace(record, groups=tuple(groups)), there) == []


def test_what_lost_hosts_held_is_shared_out_among_those_that_hold_least():
    record = made(Scheme("partner"), 6)  # the first two of the hosts have two blocks, the others one
    _, _, lost, third, fourth, also = record.homes
    there = set(record.homes) - {lost, also}
    assert [each.heir for each in adoptions(record, there)] == [third, fourth]
