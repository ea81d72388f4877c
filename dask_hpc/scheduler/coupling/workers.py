"""Workers for flows: those that blocks come to, and those that analyses run on."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from dask_hpc.errors import CouplingError
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.coupling.flow import Flow
from dask_hpc.scheduler.internals import reads
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.scheduler.tables.nodes import node_id
from dask_hpc_policies.jobs.constraints import is_legal
from dask_hpc_policies.model import COMPUTE

#: Role of nodes for analyses in transit.
STAGING = "staging"
#: Who has this role is looked up no more often, in seconds: all workers are gone through for it.
APART_S = 0.1


class Workers:
    """The running workers of one scheduler, by the role of their nodes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._staging: list[str] = []
        #: Nodes for staging that compute meanwhile, and those that still stage and get no more to do.
        self.lent: set[str] = set()
        self.leaving: set[str] = set()
        self._looked_s = -APART_S

    def of_role(self, role: str) -> list[str]:
        """Addresses of those whose nodes have a role."""
        engine = self._engine
        return [ws.address for ws in engine.scheduler.running if engine.state.role_of(ws) == role]

    def hosts(self, client: str) -> dict[str, list[str]]:
        """The host of each that blocks of a client's flow may go to; `CouplingError` when there is none.

        Those where nothing of that client runs, and those that are wanted for something else, only where
        there is no other.
        """
        workers, found = self._engine.scheduler.workers, self.of_role(COMPUTE)
        held = self._of_others(client)
        drained = {address for address in found if self._drained(address)}
        # what is lent is wanted again
        for avoided in held, drained, set(self.of_nodes(self.lent)):
            found = [address for address in found if address not in avoided] or found
        if not found:
            raise CouplingError("no worker is there that blocks could go to; add workers")
        return {address: [workers[address].host] for address in found}

    def by_where(self, flow: Flow) -> dict[str, list[str]]:
        """Addresses of those that analyses run on, by where; those with none are left out.

        As long as there are any, others are used than nodes that are being drained, or that an exclusive job
        of another client holds.
        """
        there = self._engine.scheduler.workers
        inside = [address for address in flow.places if address in there]
        if not flow.inside:
            # what runs there is waited for, and steps come as long as the program runs; or it waits there
            held = self._of_others(flow.client)
            fit = [one for one in inside if not (one in held or self._drained(one))]
            inside = fit or self._next(flow, inside)
        found = {"in-situ": inside, "in-transit": self.staging()}
        return {where: addresses for where, addresses in found.items() if addresses}

    def _of_others(self, client: str) -> set[str]:
        """Addresses of those on nodes that exclusive jobs of other clients hold."""
        jobs = [job for job in self._engine.state.jobs.named if job.request.exclusive]
        return set(self.of_nodes([id for job in jobs if client not in job.clients for id in job.nodes]))

    def _drained(self, address: str) -> bool:
        node = self._engine.state.nodes.at.get(address)
        return node is not None and bool(node.reserved)

    def _next(self, flow: Flow, inside: Collection[str]) -> list[str]:
        """Those of a flow's workers that its blocks would come to now, else all others that they would."""
        if not inside:
            return []
        with suppress(CouplingError):
            others = self.hosts(flow.client)
            return [one for one in inside if one in others] or list(others)
        return list(inside)

    def moves(self, flow: Flow, address: str) -> bool:
        """Whether blocks leave a worker: an exclusive job of another client has its node, and not all."""
        return address in self._of_others(flow.client) and self.has_next(flow, address)

    def has_next(self, flow: Flow, address: str) -> bool:
        """Whether blocks would not come to a worker now, but to another one."""
        with suppress(CouplingError):
            return address not in self.hosts(flow.client)
        return False

    def staging(self) -> list[str]:
        """Addresses of those that analyses in transit run on, as of a moment ago."""
        now_s = self._engine.state.now_s()
        if now_s - self._looked_s >= APART_S:
            leaving = set(self.of_nodes(self.leaving)) if self.leaving else set()
            self._staging = [address for address in self.of_role(STAGING) if address not in leaving]
            self._looked_s = now_s
        return self._staging

    def may_stage(self) -> list[str]:
        """Addresses of those whose nodes stage, or may again: no job holds them."""
        nodes = self._engine.state.nodes.nodes if self.lent else {}
        free = [id for id in self.lent if id in nodes and nodes[id].job is None]
        return [*self.of_role(STAGING), *self.of_nodes(free)]

    def look(self) -> None:
        """Look again at who has which role."""
        self._looked_s = -APART_S

    def left(self, address: str) -> None:
        """A worker has gone."""
        self._staging = [one for one in self._staging if one != address]

    def node_threads(self, addresses: Collection[str]) -> tuple[int, int]:
        """Number of the nodes of these workers, and the threads that each of them has at least."""
        threads = [sum(its.values()) for its in self.by_node(addresses).values()]
        return len(threads), min(threads, default=0)

    def of_nodes(self, nodes: Collection[str]) -> list[str]:
        """Addresses of the workers of these nodes, those that are gone left out."""
        there = self._engine.state.nodes.nodes
        return [address for id in dict.fromkeys(nodes) if id in there for address in there[id].workers]

    def threads(self, addresses: Collection[str]) -> int:
        """Threads of all these workers together."""
        return sum(sum(its.values()) for its in self.by_node(addresses).values())

    def node_bytes(self, addresses: Collection[str]) -> float | None:
        """Memory that each node of these workers has at least; None: it is not limited, or there is none."""
        limits = [sum(its.values()) for its in self.by_node(addresses, "memory_bytes").values()]
        return float(min(limits)) if limits and all(limits) else None

    def job(self, flow: Flow) -> JobRecord | None:
        """The job of a flow's program, whose nodes take its blocks; None: it keeps those that it has."""
        state = self._engine.state
        nodes = state.nodes.nodes
        ids = [id for id in self.by_node(flow.places) if id in nodes] if flow.inside else []
        job = state.jobs.active.get(nodes[ids[0]].job or "") if ids else None
        if job is None or job.request.kind != "malleable":
            return None
        return job if job.request.min_nodes < job.request.max_nodes else None

    def sizes(self, flow: Flow) -> list[int]:
        """Numbers of nodes that a flow's program may have, ascending; empty: it keeps those that it has."""
        if (job := self.job(flow)) is None:
            return []
        request = job.request
        there = sum(node.up and node.role == COMPUTE for node in self._engine.state.nodes.nodes.values())
        counts = range(request.min_nodes, min(request.max_nodes, there) + 1)
        return [count for count in counts if is_legal(request.constraint, count)]

    @property
    def bandwidth_bytes_s(self) -> float:
        """What workers have got from each other in a second, by Dask's own measure."""
        return float(self._engine.scheduler.bandwidth)

    def by_node(self, addresses: Collection[str], fact: str = "nthreads") -> dict[str, dict[str, int]]:
        """A number of each of these workers, its threads or ``memory_bytes``, by node and address."""
        found: dict[str, dict[str, int]] = {}
        there = self._engine.scheduler.workers
        for address in addresses:
            if (ws := there.get(address)) is not None:
                facts = reads.worker_facts(ws)
                node = node_id(self._engine.state.nodes.by, facts["name"], facts["host"])
                found.setdefault(node, {})[address] = int(facts[fact] or 0)
        return found

    def check(self, analysis: str, where: str) -> None:
        """Raise `CouplingError` when an analysis cannot run where it is said to."""
        if where == "in-transit" and not (self.of_role(STAGING) or self.lent):
            raise CouplingError(
                f"where of {analysis!r} is {where!r}; no node has the role {STAGING!r}, give it to one"
            )
