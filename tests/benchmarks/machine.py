"""A scheduler without a network, and an event loop that counts its turns.

The *state machine* is a real `distributed.Scheduler` (validation off) whose workers are fakes: what it
sends them is swallowed, and every task they get is answered by calling the scheduler's own
``task-finished`` handler. It runs in an asyncio loop, one turn per answer, so that work put off to the
next turn is done and counted.
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from dask._expr import Expr
from dask._task_spec import Task, TaskRef
from distributed import Scheduler, Status
from distributed import scheduler as scheduler_module
from distributed.comm import CommClosedError
from distributed.protocol import Serialized, serialize, to_serialize
from distributed.protocol.pickle import dumps
from distributed.scheduler import ClientState

from dask_hpc.config import Settings
from dask_hpc.scheduler.core.engine import Engine
from dask_hpc.scheduler.install import attach
from dask_hpc.scheduler.internals import remote
from dask_hpc.scheduler.tables.jobs import JobRecord
from dask_hpc.wire import ANNOTATION
from dask_hpc_policies import registry
from dask_hpc_policies.jobs.jobspec import job_spec

CLIENT, SEED = "Client-benchmark", 20240
#: The bytes of a small result.
NONE = dumps(None)
DEADLINE_S = 60.0  #: seconds after which a state that must come is given up
slower = 1.0  #: how many times as long everything takes here as elsewhere: under an instrument that counts


# ------------------------------------------------------------------------- loops


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that notes how much CPU each of its turns takes."""

    def __init__(self) -> None:
        super().__init__()
        #: CPU seconds of each turn since `turns` was last cleared; empty turns are left out.
        self.turns: list[float] = []

    def _run_once(self) -> None:
        began_s = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        took_s = time.thread_time() - began_s
        if took_s > 20e-6:
            self.turns.append(took_s)


async def fresh_turns() -> None:
    """Begin to count turns anew, with a turn that holds nothing of what came before."""
    await asyncio.sleep(0)
    turns().clear()


async def counted_turns() -> list[float]:
    """CPU seconds of the turns since the count began, the present one included."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return list(turns())


def run_async(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop of its own that counts its turns."""
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        return runner.run(main)


def turns() -> list[float]:
    """The list of turns of the running loop; clear it to begin anew."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TurnLoop)
    return loop.turns


async def until(condition: Callable[[], bool], what: str) -> None:
    """Give the loop turns until `condition` holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not come within {DEADLINE_S:g} s")
        await asyncio.sleep(0)


@contextmanager
def without_gc() -> Iterator[None]:
    """Collect garbage now and not again before the end of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ----------------------------------------------------------------- state machine


def _nothing(*args: Any) -> None:
    """What every task of the benchmarks would compute."""


class Graph(Expr):  # type: ignore[misc]
    """A graph that makes itself on the scheduler, so that little time goes into unpacking it.

    ``roots``: `count` tasks without dependencies. ``pairs``: half of them depend on one of the others.
    ``shared``: all of them depend on one more.
    """

    _parameters = ["kind", "count", "name"]  # noqa: RUF012

    def _layer(self) -> dict[Any, Any]:
        kind, count, name = self.operand("kind"), self.operand("count"), self.operand("name")
        if kind == "roots":
            return {key: Task(key, _nothing) for key in self.wanted()}
        if kind == "pairs":
            graph: dict[Any, Any] = {}
            for i in range(count // 2):
                root, after = f"{name}-root-{i}", f"{name}-after-{i}"
                graph[root] = Task(root, _nothing)
                graph[after] = Task(after, _nothing, TaskRef(root))
            return graph
        first = f"{name}-first"
        return {first: Task(first, _nothing), **{k: Task(k, _nothing, TaskRef(first)) for k in self.wanted()}}

    def __dask_keys__(self) -> list[Any]:
        return list(self.wanted())

    def wanted(self) -> list[str]:
        """Keys that the client keeps."""
        kind, count, name = self.operand("kind"), self.operand("count"), self.operand("name")
        if kind == "pairs":
            return [f"{name}-after-{i}" for i in range(count // 2)]
        return [f"{name}-task-{i}" for i in range(count)]


class _Registered(CommClosedError):
    """Ends the registration of a fake worker at the point where a real one would begin to listen."""


class _Greeting:
    """Stands for the connection of a worker that registers."""

    async def write(self, message: Any) -> None:
        raise _Registered


class _Outlet:
    """Stands for the stream to one worker or client; tasks sent there go to the inbox."""

    __slots__ = ("address", "machine")

    def __init__(self, address: str, machine: Machine) -> None:
        self.address = address
        self.machine = machine

    def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            if message["op"] == "compute-task":
                self.machine.inbox.append((message["key"], self.address, message["run_id"]))
            elif message["op"] == "steal-request":
                self.machine.recalls.append((message["key"], self.address, message["stimulus_id"]))

    def closed(self) -> bool:
        return True

    def abort(self) -> None:
        """Nothing is open."""


class _Outlets(dict[str, _Outlet]):
    """The scheduler's table of streams; whatever it opens becomes an outlet of ours."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __setitem__(self, address: str, stream: Any) -> None:
        super().__setitem__(address, _Outlet(address, self._machine))


class Machine:
    """A scheduler with fake workers. Use it in an ``async with`` block."""

    def __init__(self, workers: int, nthreads: int) -> None:
        self.size, self.nthreads = workers, nthreads
        #: Tasks that workers have got and not answered: (key, address, run id).
        self.inbox: deque[tuple[Any, str, int]] = deque()
        self.recalls: deque[tuple[Any, str, str]] = deque()
        self.engine: Engine
        self._number = 0
        #: What the engine does every so often: when next, in CPU seconds, how often, and what.
        self._due: dict[str, tuple[float, float, Callable[[], Any]]] = {}

    async def __aenter__(self) -> Machine:
        scheduler = self.scheduler = Scheduler(
            dashboard=False, dashboard_address=":0", validate=False, host="127.0.0.1"
        )
        scheduler.stream_comms = _Outlets(self)  # type: ignore[assignment]
        remote.ask = _tell
        # trying to connect to workers that are not there takes CPU of this thread
        scheduler.broadcast = _told  # type: ignore[method-assign]
        scheduler.clients[CLIENT] = ClientState(CLIENT, versions={})
        scheduler.client_comms[CLIENT] = _Outlet(CLIENT, self)  # type: ignore[assignment]
        scheduler.status = Status.running
        # Comparing the versions of every two workers is no part of what is measured
        compare = scheduler_module.version_module.error_message
        scheduler_module.version_module.error_message = lambda *args, **kwargs: {}
        try:
            for i in range(self.size):
                await self.add_worker(i)
        finally:
            scheduler_module.version_module.error_message = compare
        return self

    async def __aexit__(self, *error: Any) -> None:
        if hasattr(self, "engine"):
            await self.engine.stop()
        await self.scheduler.close()

    async def add_worker(self, number: int) -> str:
        """Connect one worker; its name is the number."""
        address = f"tcp://127.0.{number // 250 + 1}.{number % 250 + 1}:1000"
        try:
            await self.scheduler.add_worker(
                _Greeting(),  # type: ignore[arg-type]
                address=address,
                status="running",
                server_id=f"worker-{number}",
                nthreads=self.nthreads,
                name=number,
                resolve_address=False,
                now=time.time(),
                resources={},
                memory_limit=2**33,
                metrics={
                    "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
                    "digests_total_since_heartbeat": {},
                    "memory": 2**28,
                    "managed_bytes": 0,
                    "spilled_bytes": {"memory": 0, "disk": 0},
                },
                services={},
                local_directory="",
                versions={},
                nanny="",
                extra={},
                stimulus_id=f"join-{number}",
            )
        except _Registered:
            return address
        raise AssertionError("the scheduler did not greet its worker")

    # ------------------------------------------------------------------ jobs

    def install(self, policy: str = "fcfs", **settings: Any) -> Engine:
        """Install the runtime; nothing else happens until a job is opened."""
        self.engine = attach(self.scheduler, Settings(**settings), registry.create(policy)).engine
        return self.engine

    async def queue_job(self, name: str, **fields: Any) -> JobRecord:
        """Put a job into the queue."""
        job = self.engine.lifecycle.announce(job_spec(name, **fields), CLIENT, 0)
        await self.engine.open_job(job.id)
        return job

    async def open_job(self, name: str, **fields: Any) -> JobRecord:
        """Put a job into the queue and wait until it runs."""
        job = await self.queue_job(name, **fields)
        await until(lambda: job.state == "running", f"the start of {job}")
        return job

    async def end_job(self, job: JobRecord) -> None:
        """Close a job that has no tasks and wait until it has ended."""
        self.engine.lifecycle.close(job.id)
        await until(lambda: not job.active, f"the end of {job}")

    # ----------------------------------------------------------------- tasks

    async def submit(self, graph: Graph, job: JobRecord | None = None) -> list[str]:
        """Send a graph the way a client's stream does; returns the keys that are wanted."""
        wanted = graph.wanted()
        await self.scheduler.stream_handlers["update-graph"](
            client=CLIENT,
            expr_ser=Serialized(*serialize(to_serialize(graph), on_error="raise")),
            keys=set(wanted),
            span_metadata={"collections": []},
            internal_priority=_priorities(graph),
            submitting_task=None,
            annotations=None if job is None else {ANNOTATION: job.id},
        )
        return wanted

    def answer(self, key: Any, address: str, run_id: int) -> None:
        """A worker reports that it has computed a task."""
        self._number += 1
        self.scheduler.stream_handlers["task-finished"](
            key=key,
            worker=address,
            run_id=run_id,
            stimulus_id=f"task-finished-{self._number}",
            metadata={},
            nbytes=28,
            type=b"",
            typename="int",
            thread=1,
            startstops=({"action": "compute", "start": 0.0, "stop": 0.01},),
        )

    def give_back(self) -> None:
        """Workers answer requests to give tasks back: they had not started them."""
        while self.recalls:
            recalls, self.recalls = self.recalls, deque()
            asked = {(key, address) for key, address, _ in recalls}
            given = {task[:2] for task in self.inbox if task[:2] in asked}
            self.inbox = deque(task for task in self.inbox if task[:2] not in given)
            for key, address, stimulus_id in recalls:
                state = "ready" if (key, address) in given else None
                answer = self.scheduler.stream_handlers["steal-response"]
                answer(key=key, state=state, stimulus_id=stimulus_id, worker=address)

    async def compute(self, wanted: list[str]) -> None:
        """Workers compute, first come first served, until all that is wanted is in memory."""
        tasks = self.scheduler.tasks
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            if self.recalls:
                self.give_back()
            now_s = 0.0 if self.inbox and self._number % 32 else time.thread_time()  # as dear as a hook
            for name, (due_s, each_s, call) in self._due.items():
                if now_s >= due_s:
                    self._due[name] = (now_s + each_s, each_s, call)
                    call()
            if self.inbox:
                self.answer(*self.inbox.popleft())
            elif all(tasks[key].state == "memory" for key in wanted):
                return
            elif time.monotonic() > deadline_s:
                states = {tasks[key].state for key in wanted}
                raise TimeoutError(f"tasks are {sorted(states)} after {DEADLINE_S:g} s and no worker has one")
            await asyncio.sleep(0)

    def release(self, wanted: list[str]) -> None:
        """The client drops its futures."""
        self.scheduler.client_releases_keys(keys=wanted, client=CLIENT, stimulus_id="release")

    @contextmanager
    def _periods(self) -> Iterator[None]:
        """Let what the engine does every so often go by CPU time, as if the machine did nothing else."""
        callbacks = dict(self.engine._periodic._callbacks) if hasattr(self, "engine") else {}
        for name, callback in callbacks.items():
            callback.stop()
            each_s = callback.callback_time / 1000 * slower
            self._due[name] = (time.thread_time() + each_s, each_s, callback.callback)
        yield
        self._due.clear()
        for name, callback in callbacks.items():
            if self.engine._periodic._callbacks.get(name) is callback:
                callback.start()

    async def us_per_task(self, graphs: list[tuple[Graph, JobRecord | None]], kept: int = 0) -> float:
        """Submit, compute and release; microseconds of CPU of the loop's thread a task."""
        with without_gc(), self._periods():
            began_s = time.thread_time()
            wanted = [key for graph, job in graphs for key in await self.submit(graph, job)]
            await self.compute(wanted)
            self.release(wanted)
            took_s = time.thread_time() - began_s
        assert len(self.scheduler.tasks) == kept, f"{len(self.scheduler.tasks)} tasks are left, not {kept}"
        return took_s * 1e6 / sum(graph.operand("count") for graph, _ in graphs)


async def _told(**message: Any) -> dict[str, Any]:
    """All workers are told something, and have nothing to answer."""
    return {}


async def _tell(scheduler: Any, address: str, handler: str, timeout_s: float, **arguments: Any) -> bytes:
    """A worker is asked for the bytes of small results, which are None each."""
    count = len(arguments["keys"])
    return struct.pack("<i", len(NONE)) * count + NONE * count


def _priorities(graph: Graph) -> dict[Any, int]:
    """Order of the tasks, which a client's graph would have been given off the loop."""
    return {key: i for i, key in enumerate(graph._layer())}
