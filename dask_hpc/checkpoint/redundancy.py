"""Parities of parts of data, and parts made again from them: copies, XOR and Reed-Solomon codes.

All are one code: a parity is a sum of the parts, each times a coefficient from a finite field, and as many
parts may be lost as there are parities, because the coefficients are a Cauchy matrix. A sum is XOR. A product
is XOR, too, when the bits of an element lie in different places (Blömer et al. 1995): a block is four
packets, packet b has bit b of elements of GF(16), and a coefficient is a matrix of 4 x 4 bits that says which
packets are added to which. So NumPy's XOR does all the work, over blocks that stay in the processor's cache.
A single parity is the XOR of the parts, the parity of a single part its copy: all their coefficients are 1.

What is damaged gives damaged results and no error: the caller keeps a crc32c of each part and each parity,
and hands over only those that have theirs. Parts may have different lengths; they are as if zeros followed,
which nobody stores. The caller keeps the lengths.

Where memory is short, parts and parities are coded in segments: what lies between two multiples of
`BLOCK_BYTES` is coded as it is in the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from dask_hpc_policies.resilience.redundancy_sets import parity_bytes

#: Of each part at a time; a multiple of 4. Smaller ones cost calls, larger ones leave the cache.
BLOCK_BYTES = 2**20
#: Elements of the field of codes with several parities: the most parts and parities.
_ELEMENTS = 16

#: Rows of coefficients: a row for each sum, with a coefficient for each of its terms.
_Matrix = tuple[tuple[int, ...], ...]


def encode(parts: Sequence[Any], parity: int, into: Sequence[Any] | None = None) -> list[np.ndarray]:
    """Parities of parts.

    Parameters
    ----------
    parts
        Contiguous buffers of any length. At most 16 with their parities, unless there is but one of either.
    parity
        Number of parities, at least 1.
    into
        Writable buffers for the parities, `dask_hpc_policies.resilience.redundancy_sets.parity_bytes` long;
        without them, memory is allocated.

    Returns
    -------
    list
        Arrays of bytes.

    Raises
    ------
    ValueError
        For numbers of parts and parities that no code has; for a buffer of `into` of another length.
    """
    matrix = _coefficients(len(parts), parity)
    sources = [_bytes(part) for part in parts]
    length = parity_bytes([len(source) for source in sources], parity)
    if into is None:
        sums = [np.empty(length, np.uint8) for _ in range(parity)]
    else:
        sums = [_bytes(each) for each in into]
        if [len(each) for each in sums] != [length] * parity:
            found = ", ".join(str(len(each)) for each in sums)
            raise ValueError(f"parities are to go into {found} bytes; allowed: {parity} times {length}")
    _add_up(matrix, sources, sums, length, _packets(len(parts), parity))
    return sums


def recover(
    parts: Mapping[int, Any], parities: Mapping[int, Any], lengths: Sequence[int], parity: int
) -> dict[int, np.ndarray]:
    """Parts that are not there, from those that are.

    Parameters
    ----------
    parts
        Those that are there, by their number.
    parities
        Those that are there, by their number; more than are needed may be.
    lengths
        Of all parts, in bytes.
    parity
        Number of parities that were made.

    Returns
    -------
    dict
        Arrays of bytes by the number of the part.

    Raises
    ------
    ValueError
        When fewer parities are there than parts are missing: the message names what is. When something cannot
        be what it is said to be: its number, its length.
    """
    count = len(lengths)
    matrix = _coefficients(count, parity)
    known = _checked("part", parts, lengths)
    helpers = _checked("parity", parities, [parity_bytes(lengths, parity)] * parity)
    missing = [i for i in range(count) if i not in known]
    found = {i: np.empty(lengths[i], np.uint8) for i in missing}
    wanted = [i for i in missing if lengths[i]]
    if len(helpers) < len(wanted):
        gone = [i for i in range(parity) if i not in helpers]
        raise ValueError(
            f"of {count} parts {_list(wanted)} are missing, of {parity} parities {_list(gone)}; at most "
            f"{parity} of all may be"
        )
    if not wanted:
        return found
    # each parity less what the known parts give to it is a sum of the wanted ones; solved for those
    used = sorted(helpers)[: len(wanted)]
    inverse = _inverse([[matrix[p][i] for i in wanted] for p in used])
    rows = tuple((*row, *(_dot(row, [matrix[p][i] for p in used]) for i in known)) for row in inverse)
    sources = [*(helpers[p] for p in used), *known.values()]
    sums = [found[i] for i in wanted]
    _add_up(rows, sources, sums, parity_bytes(lengths, parity), _packets(count, parity))
    return found


def _add_up(
    matrix: _Matrix, sources: Sequence[np.ndarray], sums: Sequence[np.ndarray], length: int, packets: int
) -> None:
    """Write each row's sum of the sources times its coefficients, block by block.

    Sources and sums may be shorter than `length`, the end of the last block: they are as if zeros followed.
    """
    terms = [
        [
            [(i, bit) for i, factor in enumerate(row) for bit in _bits(factor)[packet]]
            for packet in range(packets)
        ]
        for row in matrix
    ]
    for start in range(0, length, BLOCK_BYTES):
        size = min(BLOCK_BYTES, length - start)
        stop = start + size
        given = {
            i: _padded(source[start:stop], size).reshape(packets, -1)
            for i, source in enumerate(sources)
            if len(source) > start
        }
        for row, target in zip(terms, sums, strict=True):
            wanted = target[start:stop]
            if not len(wanted):
                continue
            # one that ends here: what lies beyond is computed and dropped
            block = wanted if len(wanted) == size else np.empty(size, np.uint8)
            for out, pairs in zip(block.reshape(packets, -1), row, strict=True):
                _xor([given[i][bit] for i, bit in pairs if i in given], out)
            if block is not wanted:
                wanted[:] = block[: len(wanted)]


def _xor(terms: Sequence[np.ndarray], out: np.ndarray) -> None:
    if len(terms) < 2:
        out[:] = terms[0] if terms else 0
        return
    np.bitwise_xor(terms[0], terms[1], out)
    for term in terms[2:]:
        np.bitwise_xor(out, term, out)


def _padded(content: np.ndarray, size: int) -> np.ndarray:
    if len(content) == size:
        return content
    return np.concatenate([content, np.zeros(size - len(content), np.uint8)])


def _packets(parts: int, parity: int) -> int:
    """Bits of an element: 1 where all coefficients are 1, else those of GF(16)."""
    return 1 if 1 in (parts, parity) else 4


@cache
def _coefficients(parts: int, parity: int) -> _Matrix:
    """Of each part in each parity. No square part of the matrix is singular.

    A Cauchy matrix, its columns divided by their first elements. Each one among the bits of a coefficient is
    an XOR: columns with the fewest come first (Plank and Xu 2006).
    """
    if parts < 1 or parity < 1 or (min(parts, parity) > 1 and parts + parity > _ELEMENTS):
        raise ValueError(
            f"no code has {parts} parts and {parity} parities; allowed: 1 or more of each, at most "
            f"{_ELEMENTS} together unless there is but one of either"
        )
    if 1 in (parts, parity):
        return ((1,) * parts,) * parity
    columns = [[_INVERSES[x ^ y] for x in range(parity)] for y in range(parity, _ELEMENTS)]
    columns = [[_times(_INVERSES[column[0]], each) for each in column] for column in columns]
    columns.sort(key=lambda column: sum(len(bits) for factor in column for bits in _bits(factor)))
    return tuple(zip(*columns[:parts], strict=True))


def _inverse(matrix: Sequence[Sequence[int]]) -> list[list[int]]:
    """Of a square matrix over GF(16) without a singular square part, by elimination."""
    size = len(matrix)
    rows = [[*row, *(int(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for i in range(size):
        # never 0: it is a quotient of determinants of square parts
        scale = _INVERSES[rows[i][i]]
        rows[i] = [_times(scale, each) for each in rows[i]]
        for j in range(size):
            if j != i:
                factor = rows[j][i]
                rows[j] = [a ^ _times(factor, b) for a, b in zip(rows[j], rows[i], strict=True)]
    return [row[size:] for row in rows]


def _dot(left: Sequence[int], right: Sequence[int]) -> int:
    total = 0
    for a, b in zip(left, right, strict=True):
        total ^= _times(a, b)
    return total


def _times(a: int, b: int) -> int:
    """Product in GF(16), modulo x^4 + x + 1."""
    product = 0
    for bit in range(4):
        if b >> bit & 1:
            product ^= a << bit
    for bit in (6, 5, 4):
        if product >> bit & 1:
            product ^= 0b10011 << bit - 4
    return product


_INVERSES = {a: b for a in range(1, _ELEMENTS) for b in range(1, _ELEMENTS) if _times(a, b) == 1}


@cache
def _bits(factor: int) -> tuple[tuple[int, ...], ...]:
    """Which bits of an element are added to each bit of its product with a factor."""
    columns = [_times(factor, 1 << bit) for bit in range(4)]
    return tuple(tuple(bit for bit in range(4) if columns[bit] >> row & 1) for row in range(4))


def _bytes(buffer: Any) -> np.ndarray:
    return np.frombuffer(buffer, np.uint8)


def _checked(what: str, given: Mapping[int, Any], lengths: Sequence[int]) -> dict[int, np.ndarray]:
    """What is there as bytes, in the order of the numbers."""
    found = {}
    for i in sorted(given):
        if not 0 <= i < len(lengths):
            raise ValueError(f"there is no {what} {i}; allowed: 0 to {len(lengths) - 1}")
        found[i] = _bytes(given[i])
        if len(found[i]) != lengths[i]:
            raise ValueError(f"{what} {i} has {len(found[i])} bytes; it was written with {lengths[i]}")
    return found


def _list(numbers: Collection[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"
