"""Work in processes of its own: a fresh interpreter, JSON lines over pipes.

Rules of the file: nothing of the caller's script is imported again, and nothing is pickled. What is called
is a function of an installed module, named ``package.module:function``; it takes one JSON object, and a
function that it tells its progress to, and returns JSON data. A process ends with the one that started it.

    with Process() as process:
        process.call("package.module:function", {"size": 3}, cpu_s=2.0)
"""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import queue
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dask_hpc.errors import DaskHPCError

#: Told how far a call is: any JSON value.
Tell = Callable[[Any], None]
#: Roots of the packages that a process has to find, whatever the working directory is.
_ROOTS = ("dask_hpc", "dask_hpc_policies", "dask_hpc_widgets")
#: Seconds beyond the budget after which a call that does not stop by itself is ended by the system.
_GRACE_S = 1
#: The lowest priority.
_LOWEST = 19
#: Read at once of what it says.
_READ_BYTES = 2**16
_END = "its process ended (was there enough memory?)"


class ProcessError(DaskHPCError):
    """A call in another process has come to nothing; the message says why."""


class OverBudget(ProcessError):
    """A call has used more processor time than it may."""


class Process:
    """One process that does calls, one after the other; made anew when it has ended.

    May be used from any thread; calls wait for one another.

    Parameters
    ----------
    niceness
        How much lower than the caller's its priority is, as of the command ``nice``.
    """

    def __init__(self, niceness: int = 0) -> None:
        self._niceness = niceness
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        *,
        cpu_s: float | None = None,
        wall_s: float | None = None,
        progress: Tell | None = None,
    ) -> Any:
        """What the function returns.

        Parameters
        ----------
        function
            ``package.module:function``, called with `arguments` and a `Tell`.
        cpu_s
            Processor time it may use; None: any.
        wall_s
            Seconds after which it is ended, whatever it does: one that is stopped, or waits for files, uses
            no processor time. None: never.
        progress
            Told what the function tells.

        Raises
        ------
        OverBudget
            When it has used more than `cpu_s` seconds.
        ProcessError
            When it raised, or the process ended or was ended (`cancel`, `close`).
        """
        with self._lock:
            try:
                request = json.dumps({"call": function, "arguments": arguments, "cpu_s": cpu_s})
            except (TypeError, ValueError) as error:
                raise ProcessError(f"what {function} is called with is not JSON: {error}") from None
            child = self._started()
            try:
                return self._answer(child, f"{request}\n".encode(), cpu_s, wall_s, progress)
            except TimeoutError:
                self._forget()
                raise ProcessError(f"it did not answer within {wall_s:g} s and was ended") from None

    def _answer(
        self,
        child: subprocess.Popen[bytes],
        request: bytes,
        cpu_s: float | None,
        wall_s: float | None,
        progress: Tell | None,
    ) -> Any:
        """What the process says to a request."""
        for line in _lines(child, request, wall_s):
            answer = json.loads(line)
            if "progress" in answer:
                if progress is not None:
                    progress(answer["progress"])
            elif "result" in answer:
                return answer["result"]
            else:
                kind = OverBudget if answer["kind"] == OverBudget.__name__ else ProcessError
                raise kind(answer["error"])
        raise self._over(cpu_s)

    def cancel(self) -> None:
        """End the call under way, if any; the next one has a process of its own."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and the call under way; no further call is taken."""
        self._closed = True
        child = self._child
        if child is not None:
            child.kill()
        with self._lock:
            self._forget()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ProcessError("the process is closed; make another one")
        if self._child is not None and self._child.poll() is not None:
            self._forget()
        if self._child is None:
            found = (where for name in _ROOTS for where in importlib.import_module(name).__path__)
            roots = dict.fromkeys(str(Path(where).parent) for where in found)
            path = os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
            try:
                self._child = subprocess.Popen(
                    # -P: what lies in the working directory is not imported
                    [sys.executable, "-P", "-m", "dask_hpc.processes", str(self._niceness)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    # threads of linear algebra would take cores beyond the one that is counted
                    env={"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
                )
            except OSError as error:
                raise ProcessError(f"no process can be started: {error.strerror or error}") from None
            if self._closed:
                # whoever closes waits for the end of this call
                self._child.kill()
        return self._child

    def _over(self, cpu_s: float | None) -> ProcessError:
        """What to raise when the process has ended amid a call."""
        child = self._child
        code = None if child is None else child.wait()
        self._forget()
        if code == -signal.SIGXCPU:
            return OverBudget(_over_text(cpu_s))
        return ProcessError(_END)

    def _forget(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()


def _lines(child: subprocess.Popen[bytes], request: bytes, wall_s: float | None) -> Iterator[bytes]:
    """What a process says while and after a request is written to it, line by line, until it ends.

    A line that it is ended amid is none. One thread waits for both: each further one takes the interpreter
    from the loop when it starts and ends. A request may be longer than a pipe takes, and a process that is
    stopped reads none of it.

    Raises
    ------
    TimeoutError
        When `wall_s` seconds have passed.
    """
    assert child.stdin is not None
    assert child.stdout is not None
    os.set_blocking(child.stdin.fileno(), False)
    end_s = math.inf if wall_s is None else time.monotonic() + wall_s
    todo, said = memoryview(request), b""
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdin, selectors.EVENT_WRITE)
        selector.register(child.stdout, selectors.EVENT_READ)
        while (left_s := end_s - time.monotonic()) > 0:
            for key, _ in selector.select(None if wall_s is None else left_s):
                if key.fileobj is child.stdin:
                    try:
                        todo = todo[os.write(key.fd, todo) :]
                    except OSError:
                        return
                    if not todo:
                        selector.unregister(child.stdin)
                    continue
                new = os.read(key.fd, _READ_BYTES)
                if not new:
                    return
                *lines, said = (said + new).split(b"\n")
                yield from lines
    raise TimeoutError


def call_all(
    function: str,
    todo: Sequence[Mapping[str, Any]],
    processes: int,
    done: Callable[[int, Any], None],
) -> None:
    """Call a function for each of `todo`, in so many processes.

    `done` is called in this thread, in the order in which they end, with the place in `todo` and the result,
    or the `ProcessError`. When it raises, and on Ctrl-C, everything ends.
    """
    ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    places: queue.SimpleQueue[int] = queue.SimpleQueue()
    for place in range(len(todo)):
        places.put(place)
    workers = [Process() for _ in range(min(processes, len(todo)))]

    def work(process: Process) -> None:
        while True:
            try:
                place = places.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((place, process.call(function, todo[place])))
            except ProcessError as error:
                ended.put((place, error))

    with ThreadPoolExecutor(max_workers=len(workers) or 1, thread_name_prefix="dask-hpc-process") as threads:
        try:
            for process in workers:
                threads.submit(work, process)
            for _ in todo:
                done(*ended.get())
        finally:
            while not places.empty():
                with suppress(queue.Empty):
                    places.get_nowait()
            for process in workers:
                process.close()


# --------------------------------------------------------------- in the process


def _over_text(cpu_s: float | None) -> str:
    return f"it has used its {cpu_s:g} s of processor time" if cpu_s is not None else _END


def _limit(cpu_s: float | None) -> None:
    """Let the present call use so much processor time; None: any."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s or 0.0)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if cpu_s is None:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
        return
    # compiled code that never comes back to Python hears no signal: the system ends the process
    used_s = time.process_time()
    soft = math.ceil(used_s + cpu_s) + _GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def _do(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    cpu_s = request["cpu_s"]

    def over(number: int, frame: Any) -> None:
        raise OverBudget(_over_text(cpu_s))

    signal.signal(signal.SIGPROF, over)
    try:
        module, _, name = request["call"].partition(":")
        function = getattr(importlib.import_module(module), name)
        _limit(cpu_s)
        try:
            result = function(request["arguments"], tell)
        finally:
            _limit(None)
        return {"result": result}
    except OverBudget as error:
        return {"error": str(error), "kind": OverBudget.__name__}
    except Exception as error:
        text = " ".join(str(error).split()) or "no message"
        return {"error": f"{type(error).__name__}: {text}", "kind": ProcessError.__name__}


def _requests(lines: Iterable[str]) -> queue.SimpleQueue[str]:
    """Lines as they come; when there are no more, whoever sent them has gone, and so does this process."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            found.put(line)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return found


@functools.cache
def load_solver() -> None:
    """Load the solver, once a process, before time is taken.

    HiGHS 1.16 greets on standard output, below Python, when it is made for the first time, whatever its
    options say; who asked for JSON must not get that.
    """
    from dask_hpc_policies.power import program_lp

    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        program_lp.load()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _step_back(niceness: int) -> None:
    """Run at that priority; at the lowest one whoever else wakes up goes first, where that can be had.

    That one also leaves half of the cores alone: what is moved from core to core is met on each of them.
    """
    os.nice(niceness)
    if niceness >= _LOWEST and hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cores[len(cores) // 2 :])


def main() -> None:
    """Do what is asked for on standard input, a line each, until that ends."""
    # Ctrl-C is the caller's
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _step_back(int(sys.argv[1]))
    # whatever is printed by what is called goes to the log
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = _requests(sys.stdin)

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    while True:
        request = json.loads(requests.get())
        answer = _do(request, lambda progress: say({"progress": progress}))
        try:
            say(answer)
        except (TypeError, ValueError) as error:
            say({"error": f"what it returned is not JSON: {error}", "kind": ProcessError.__name__})


if __name__ == "__main__":
    main()
