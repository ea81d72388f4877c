"""Several users of one cluster: each submits at fixed times, whatever the cluster does meanwhile.

Open arrivals (Schroeder, Wierman and Harchol-Balter 2006, "Open versus closed: a cautionary tale"): nobody
waits for an answer before the next submission, so a scheduler that makes people wait is not spared their
work. Every user has a client and a thread of their own; who waits for an answer does so in another thread.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Client, Future, wait

import dask_hpc
from dask_hpc.demo.stage import in_background

#: From the moment when all users are connected to the time 0 of the arrivals.
_LEAD_S = 0.2
#: What a client asks every two seconds for its display logs an error when the client is closed meanwhile.
_CLIENT = {"distributed.client.scheduler-info-interval": "1 h"}
#: Two threads that build dataframes at once can wait for each other for ever: Dask's expressions are full of
#: cached properties, each of which has a lock for all its objects before Python 3.12.
_building = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What one user submits at a fixed time."""

    user: str
    #: Of the job; no two submissions of one run have the same.
    name: str
    #: Seconds since the beginning of the run.
    at_s: float
    #: Given the user's client, submits and returns the futures whose results are wanted. Must not block.
    submit: Callable[[Client], Future | Sequence[Future]]
    #: What somebody who knows all jobs would give it on stock Dask; larger is served first.
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A submission with its results and its times, in seconds since the beginning of the run."""

    user: str
    name: str
    #: When it was to be submitted, and when the call that submits it had returned.
    at_s: float
    submitted_s: float
    #: When the user's client knew that the last result is there.
    end_s: float
    #: One for each future, in the order of the futures.
    results: tuple[Any, ...]

    @property
    def turnaround_s(self) -> float:
        """From the time of arrival to the last result: a submission that takes long counts as waiting."""
        return self.end_s - self.at_s


def serve(
    cluster: Any,
    submissions: Iterable[Submission],
    *,
    managed: bool,
    policy: Any = None,
    priorities: bool = False,
    timeout_s: float = 300.0,
) -> dict[str, Served]:
    """Let users submit to a cluster at the times they have, and wait for all their results.

    Parameters
    ----------
    cluster
        A cluster, or the address of a scheduler.
    submissions
        Of any number of users, in any order.
    managed
        Whether each submission is a job that declares its name and nothing else. The runtime is installed
        where it is not yet, and stays. Otherwise it is plain Dask code.
    policy
        Of a managed run; None: what is configured, or what runs already.
    priorities
        Whether the submissions' priorities are set, as Dask's annotation.
    timeout_s
        A run that takes longer is given up.

    Returns
    -------
    dict
        What became of each submission, by its name, in order of arrival.

    Raises
    ------
    ValueError
        When two submissions have the same name.
    TimeoutError
        When results are missing after `timeout_s`; it names the submissions.
    Exception
        What a submission or one of its tasks raised, the first in order of arrival.
    """
    ordered = sorted(submissions, key=lambda submission: submission.at_s)
    names = [submission.name for submission in ordered]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"submissions share the name {min(twice)!r}; give each a name of its own")
    users = list(dict.fromkeys(submission.user for submission in ordered))
    address = cluster if isinstance(cluster, str) else cluster.scheduler_address
    with contextlib.ExitStack() as stack:
        with dask.config.set(_CLIENT):
            clients = {
                user: stack.enter_context(Client(address, set_as_default=False, name=user)) for user in users
            }
        runtimes: dict[str, Any] = {}
        for user, client in clients.items() if managed else ():
            runtimes[user] = dask_hpc.install(client, policy=policy)
            policy = None
        begin_s = time.perf_counter() + _LEAD_S
        run = _Run(begin_s, timeout_s, runtimes, priorities)
        # a process that is interrupted waits neither for users nor for what they wait for
        submitting = [
            in_background(run.submit_all, client, [each for each in ordered if each.user == user])
            for user, client in clients.items()
        ]
        for each in submitting:
            each.result()
        return run.outcome(names)


class _Run:
    """One run under way: the threads of its users write into it."""

    def __init__(
        self, begin_s: float, timeout_s: float, runtimes: Mapping[str, Any], priorities: bool
    ) -> None:
        self._begin_s = begin_s
        self._timeout_s = timeout_s
        #: Of every user of a managed run.
        self._runtimes = runtimes
        self._priorities = priorities
        #: By name; each is written by one thread and read when all have ended.
        self._ends: dict[str, Any] = {}

    def _now_s(self) -> float:
        return time.perf_counter() - self._begin_s

    def submit_all(self, client: Client, mine: Sequence[Submission]) -> None:
        """Submit what one user has, each at its time."""
        for submission in mine:
            time.sleep(max(0.0, submission.at_s - self._now_s()))
            try:
                futures = self._submit(client, submission)
            except Exception as error:  # the user's own code; `outcome` raises it
                self._ends[submission.name] = error
                continue
            submitted_s = self._now_s()
            self._ends[submission.name] = in_background(self._wait, client, submission, futures, submitted_s)

    def _submit(self, client: Client, submission: Submission) -> tuple[Future, ...]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(client.as_current())
            if self._priorities:
                stack.enter_context(dask.annotate(priority=submission.priority))
            runtime = self._runtimes.get(submission.user)
            if runtime is not None:
                stack.enter_context(runtime.job(submission.name, user=submission.user))
            with _building:
                futures = submission.submit(client)
        return (futures,) if isinstance(futures, Future) else tuple(futures)

    def _wait(
        self, client: Client, submission: Submission, futures: tuple[Future, ...], submitted_s: float
    ) -> Served:
        with client.as_current():
            wait(list(futures), timeout=max(0.0, self._timeout_s - self._now_s()))
            end_s = self._now_s()
            results = tuple(client.gather(list(futures)))
        return Served(
            user=submission.user,
            name=submission.name,
            at_s=submission.at_s,
            submitted_s=submitted_s,
            end_s=end_s,
            results=results,
        )

    def outcome(self, names: Sequence[str]) -> dict[str, Served]:
        """What became of each, when all threads of the users have ended."""
        ended: dict[str, Served] = {}
        errors: list[Exception] = []
        late: list[str] = []
        for name in names:
            end = self._ends[name]
            try:
                if isinstance(end, Exception):
                    raise end
                ended[name] = end.result()
            except TimeoutError:
                late.append(name)
            except Exception as error:  # raised below, when all have ended
                errors.append(error)
        if late:
            raise TimeoutError(f"not finished after {self._timeout_s:g} s: {', '.join(late)}")
        if errors:
            raise errors[0]
        return ended
