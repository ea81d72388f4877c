"""Which hosts protect which: sets of hosts that hold parities of each other's data, in memory.

All schemes but ``single`` are one. The n hosts of a set are in n failure domains, and there are n stripes. Of
each stripe m hosts, the next ones in turn, hold a parity; the other n - m give one part of their data to it.
Every host so gives each of its n - m parts to another stripe and holds m parities (the rotation of RAID 5,
Patterson, Gibson and Katz 1988, section 11). Any m hosts of a set may be lost. A copy by a partner is n = 2
and m = 1. What the parities are made of is said in `dask_hpc.checkpoint.redundancy`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dask_hpc_policies.decision import Reason, ReasonCode
from dask_hpc_policies.ranges import MOST_HOSTS, SCHEMES, SchemeName
from dask_hpc_policies.wording import counted

#: Of a stripe. With one more, hosts that are left over could make a set too large.
MOST_PARITIES = MOST_HOSTS // 2 - 1


@dataclass(frozen=True, slots=True)
class Scheme:
    """How much may be lost, and among how many hosts.

    Raises
    ------
    ValueError
        For an unknown name; for a size of sets or a number of parities that the scheme cannot have.
    """

    #: ``single``: nothing outside a host. ``partner``: a copy. ``xor``: one parity a set. ``reed-solomon``:
    #: several.
    name: SchemeName = "partner"
    #: Hosts in a set, about; of ``xor`` and ``reed-solomon`` alone.
    set_size: int = 8
    #: Parities of a stripe, of ``reed-solomon`` alone.
    parity: int = 2

    def __post_init__(self) -> None:
        if self.name not in SCHEMES:
            raise ValueError(f"scheme {self.name!r} is not known; allowed: {', '.join(SCHEMES)}")
        if self.name in ("xor", "reed-solomon"):
            _check("set_size", self.set_size, 2, MOST_HOSTS)
        if self.name == "reed-solomon":
            _check("parity", self.parity, 1, min(MOST_PARITIES, self.set_size - 1))

    @property
    def hosts(self) -> int:
        """Hosts in a set, n, where their number and their failure domains allow it."""
        return {"single": 1, "partner": 2}.get(self.name, self.set_size)

    @property
    def parities(self) -> int:
        """Parities of a stripe, m: hosts of a set that may be lost."""
        return {"single": 0, "partner": 1, "xor": 1}.get(self.name, self.parity)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the equal parts of what a host protects."""

    host: str
    #: From 0; `part_bounds` says which bytes it has.
    number: int


@dataclass(frozen=True, slots=True)
class Stripe:
    """Parts of different hosts, and who holds the parities of them."""

    #: In the order in which the code takes them.
    parts: tuple[Part, ...]
    #: Who holds parity 0, 1, ...
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RedundancySet:
    """Hosts, no two in one failure domain, that hold parities of each other's data.

    Raises
    ------
    ValueError
        When a host is in it twice, or it has not more hosts than parities, or no parity.
    """

    hosts: tuple[str, ...]
    #: Parities of each stripe: hosts that may be lost.
    parity: int

    def __post_init__(self) -> None:
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError(f"a host is twice in the set {', '.join(self.hosts)}; allowed: each once")
        _check("parity", self.parity, 1, len(self.hosts) - 1)

    @property
    def parts(self) -> int:
        """Number of parts that the data of each host is cut in."""
        return len(self.hosts) - self.parity

    @property
    def storage_ratio(self) -> float:
        """Bytes of parities a byte of data when all hosts have the same amount."""
        return self.parity / self.parts

    def stripes(self) -> tuple[Stripe, ...]:
        """All stripes, one a host."""
        given = dict.fromkeys(self.hosts, 0)
        found = []
        n = len(self.hosts)
        for first in range(n):
            holders = tuple(self.hosts[(first + i) % n] for i in range(self.parity))
            parts = tuple(Part(host, given[host]) for host in self.hosts if host not in holders)
            for part in parts:
                given[part.host] += 1
            found.append(Stripe(parts, holders))
        return tuple(found)

    def held_bytes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Bytes of parities that each host holds when each protects so many bytes (0 where none is named).

        Parities are as long as the longest part of their stripe: a host with more than the others costs them
        as if all had as much.
        """
        held = dict.fromkeys(self.hosts, 0)
        for stripe in self.stripes():
            lengths = []
            for part in stripe.parts:
                start, stop = part_bounds(sizes.get(part.host, 0), self.parts)[part.number]
                lengths.append(stop - start)
            for holder in stripe.holders:
                held[holder] += parity_bytes(lengths, self.parity)
        return held


@dataclass(frozen=True, slots=True)
class Grouping:
    """Sets of hosts, and the hosts that are in none."""

    sets: tuple[RedundancySet, ...]
    unprotected: tuple[str, ...] = ()
    #: Why hosts are in no set, or sets are smaller than asked for; None: all is as asked for.
    reason: Reason | None = None

    @property
    def losses_survived(self) -> int:
        """Hosts that may be lost at once, whichever they are."""
        return 0 if self.unprotected else min((each.parity for each in self.sets), default=0)

    def storage_ratio(self, sizes: Mapping[str, int]) -> float:
        """Bytes of parities a byte that is protected by them; 0 where nothing is.

        Parameters
        ----------
        sizes
            Bytes of data by host.
        """
        held = sum(sum(each.held_bytes(sizes).values()) for each in self.sets)
        protected = sum(sizes.get(host, 0) for each in self.sets for host in each.hosts)
        return held / protected if protected else 0.0


def part_bounds(nbytes: int, parts: int) -> tuple[tuple[int, int], ...]:
    """Where each part of so many bytes begins and ends; all as long as the first, but for the last ones."""
    length = -(-nbytes // parts)
    return tuple((min(i * length, nbytes), min((i + 1) * length, nbytes)) for i in range(parts))


def parity_bytes(lengths: Collection[int], parity: int) -> int:
    """Length of each parity of parts of these lengths: the longest, up to 3 bytes more where it is neither a
    copy nor an XOR.
    """
    longest = max(lengths, default=0)
    return longest if 1 in (len(lengths), parity) else -(-longest // 4) * 4


def form_sets(domains: Mapping[str, str], scheme: Scheme) -> Grouping:
    """Put hosts into sets of about the size of the scheme, none with two hosts of one failure domain.

    As many hosts as can be are in a set. Sizes of sets differ by one at most; where the hosts are no multiple
    of the scheme's size, sets have up to half as many more or a quarter fewer. A host without a partner so
    makes a set of three with one parity: any one may be lost as before, for half the memory of copies.

    The same hosts make the same sets, in whatever order they are named. One more or less may change them all:
    what was written belongs to the sets that it was written with. So amounts of data, which change from
    version to version, do not count.

    Parameters
    ----------
    domains
        Failure domain by host.
    scheme
        What is asked for.
    """
    hosts = tuple(sorted(domains))
    if not hosts:
        return Grouping(())
    if scheme.name == "single":
        text = "scheme single keeps nothing outside a host; allowed besides: " + ", ".join(SCHEMES[1:])
        return Grouping((), hosts, Reason(ReasonCode.UNSUPPORTED, text))
    by_domain: dict[str, list[str]] = defaultdict(list)
    for host in hosts:
        by_domain[domains[host]].append(host)
    # the largest domain first: when one is too large, its hosts are counted before others
    members = [by_domain[name] for name in sorted(by_domain, key=lambda name: (-len(by_domain[name]), name))]
    count = _count(members, scheme)
    if not count:
        return Grouping((), hosts, _too_few(hosts, by_domain, scheme))
    # dealt out in turn: hosts of one domain are next to each other, and no more than there are sets
    dealt = [host for each in members for host in each[:count]]
    sets = tuple(RedundancySet(tuple(dealt[i::count]), scheme.parities) for i in range(count))
    unprotected = tuple(sorted(set(hosts).difference(dealt)))
    if unprotected:
        return Grouping(sets, unprotected, _too_many(hosts, unprotected, by_domain, count))
    return Grouping(sets, (), _smaller(sets, len(by_domain), scheme))


def _count(members: Collection[Collection[str]], scheme: Scheme) -> int:
    """Number of sets; 0: there can be none.

    A set takes at most one host of a domain, so n sets hold min(n, its hosts) of each. Divided by n, that
    never grows with n: the numbers of sets that leave each more hosts than parities are those up to a
    greatest.
    """
    total = sum(map(len, members))

    def placed(count: int) -> int:
        return sum(min(count, len(each)) for each in members)

    wished = max(1, (2 * total + scheme.hosts) // (2 * scheme.hosts), -(-total // MOST_HOSTS))
    count = max(wished, *map(len, members))
    while count and placed(count) < count * (scheme.parities + 1):
        count -= 1
    return count


def _too_few(hosts: Collection[str], by_domain: Collection[str], scheme: Scheme) -> Reason:
    wanted = scheme.parities + 1
    found = f"the {counted(len(hosts), 'host')} {'is' if len(hosts) == 1 else 'are'} in {len(by_domain)}"
    text = (
        f"scheme {scheme.name} with parity {scheme.parities} needs {wanted} failure domains, and {found}"
        "; add hosts, or say which fail together with hpc.node.domain"
        + (", or ask for a lower parity" if len(by_domain) > 1 else "")
    )
    return Reason(ReasonCode.NOT_ENOUGH_NODES, text, {"domains": len(by_domain), "needed": wanted})


def _too_many(
    hosts: Collection[str], left: Collection[str], by_domain: Mapping[str, Collection[str]], count: int
) -> Reason:
    large = [f"{name} ({len(each)})" for name, each in by_domain.items() if len(each) > count]
    text = (
        f"{len(left)} of {counted(len(hosts), 'host')} are in no set: too many are in the failure "
        f"{'domain' if len(large) == 1 else 'domains'} {', '.join(large)}, and each of the "
        f"{counted(count, 'set')} takes one of a domain; add hosts of other domains"
    )
    return Reason(ReasonCode.NOT_ENOUGH_NODES, text, {"unprotected": len(left), "sets": count})


def _smaller(sets: Collection[RedundancySet], domains: int, scheme: Scheme) -> Reason | None:
    sizes = sorted({len(each.hosts) for each in sets})
    if sizes[0] >= scheme.hosts:
        return None
    most = max(each.storage_ratio for each in sets)
    wished = scheme.parities / (scheme.hosts - scheme.parities)
    text = (
        f"sets have {' to '.join(map(str, sizes))} hosts, not {scheme.hosts}, with "
        f"{sum(len(each.hosts) for each in sets)} hosts in {domains} failure domains; their parities take up "
        f"to {most:.2f} bytes a byte, not {wished:.2f}"
    )
    return Reason(ReasonCode.CLAMPED, text, {"sizes": sizes, "asked": scheme.hosts})


def _check(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r}; allowed: a whole number from {least} to {most}")
