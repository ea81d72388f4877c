"""Checkpoints of programs without collections: arrays of one process, or of several that go in step.

No scheduler, no cluster: a process writes what it has to the store itself, in the format of all checkpoints,
or to the memory of its host, whose manager outlives it.
The calls are those of iCheck's library (its sections 6.1.3 and 7.4); which are legal when is a table
(`dask_hpc_policies.states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import dask
import numpy as np

from dask_hpc.checkpoint.checksums import crc32c
from dask_hpc.checkpoint.labelled import TAKEN
from dask_hpc.checkpoint.names import checked_name, checked_variable
from dask_hpc.checkpoint.services import checked_services
from dask_hpc.checkpoint.store import Store
from dask_hpc.clock import stopwatch_s
from dask_hpc.errors import CheckpointError, CheckpointTypeError
from dask_hpc.session.commit import SessionCommit
from dask_hpc.session.going_back import Found
from dask_hpc.session.held import Held, checked_values, copied, held
from dask_hpc.session.places import Places, asked_levels
from dask_hpc.session.probing import SETTING, Probe, configured
from dask_hpc.session.ranks import Ranks
from dask_hpc_policies.params import Bool, Duration
from dask_hpc_policies.states import IllegalTransition, session_step

_TIMEOUT, _ON = Duration("timeout", 600.0, lo=0.01, hi=30 * 86400.0), Bool("on", True)


class CheckpointSession:
    """Checkpoints of arrays that a program has itself, in one process or in several that go in step.

    Each version is an xarray Dataset in the store: ``dask hpc checkpoint ls`` lists it, `dask_hpc.restore`,
    `dask_hpc.open_checkpoint` and, where blocks are regular, plain `xarray.open_zarr` read it. The last two
    stay. Of what is in the memories of hosts the newest stays, for ``hpc.checkpoint.linger`` after the
    program has ended, however it did. Nothing is ever unpickled. Calls that are out of order raise
    `CheckpointError`. For one thread.

    Parameters
    ----------
    name
        Of the checkpoint.
    store
        Its folder, on a file system that all processes see; None: ``hpc.checkpoint.store``, if it is set.
    rank, size
        Which of how many processes this is. All of them call `init`, `commit`, `restart`, `restart_all`,
        `probe_agents` and `finalize`, in the same order; a version is whole when all have written theirs. A
        run may have another size than the one that it goes on from.
    exchange
        Gives a list of what each process gives it, by rank, such as ``comm.allgather`` of mpi4py, after
        `enable_async` from another thread; None: they speak through files in the store.
    timeout
        How long processes wait for each other there, such as ``"10 min"``.
    services
        What is done to blocks on their way to the store, and by managers in memory, such as ``"compress"``;
        what the first process says holds. None: ``hpc.checkpoint.services``.
    levels
        Where versions are to be: ``"L1"``, the memory of the host of each process; ``"L2"``, parities of that
        in the memories of other hosts; ``"L3"``, the store. What is asked for in memory and cannot be had
        goes to the store, where there is one. None: the store, and without one the memories.

    Raises
    ------
    CheckpointValueError
        For a name, rank, size, services or levels that cannot be.
    ValueError
        When no store is named and one is needed, or `timeout` is none.

    Examples
    --------
    A run goes on where the one before it has ended:

    >>> import numpy as np, dask_hpc
    >>> def run(steps):
    ...     with dask_hpc.CheckpointSession("heat", store="store") as session:
    ...         field = session.add("field", np.zeros(1000))
    ...         session.restart_all()
    ...         first = session.values.get("step", 0)
    ...         for step in range(first, steps):
    ...             field += 1.0
    ...             if step % 10 == 9:
    ...                 session.commit(step=step + 1)
    ...         return first, float(field.mean())
    >>> run(25)
    (0, 25.0)
    >>> run(40)
    (20, 40.0)
    """

    def __init__(
        self,
        name: str,
        *,
        store: Any = None,
        rank: int = 0,
        size: int = 1,
        exchange: Callable[[Any], Sequence[Any]] | None = None,
        timeout: float | str = 600.0,
        services: str | None = None,
        levels: str | Sequence[str] | None = None,
    ) -> None:
        self.name = checked_name(name)
        served = checked_services(
            services if services is not None else dask.config.get("hpc.checkpoint.services", "plain")
        )
        self._ranks = Ranks(rank, size, exchange)
        said = None if store is not None else configured()
        store = store if store is not None else dask.config.get(SETTING, None)
        asked = asked_levels(self.name, levels, store)
        named = None if store is None else Store(store)
        self._places = Places(self.name, self._ranks, named, asked, served, said)
        self._timeout_s: float = _TIMEOUT.validate(timeout)
        self._state = "new"
        self._arrays: dict[str, Held] = {}
        self._found: Found | None = None
        self._asynchronous = False
        #: The newest commit that the program did not wait for, and what such ones are written from.
        self._last: SessionCommit | None = None
        self._copies: Mapping[str, Held] = {}

    def __repr__(self) -> str:
        store = self._places.store
        where = ", ".join(self._places.levels) if store is None else store.folder
        return f"<CheckpointSession {self.name!r} in {where}: {self._state}>"

    def __reduce__(self) -> Any:
        raise CheckpointTypeError("a CheckpointSession stays in its process: make one where the arrays are")

    def __enter__(self) -> CheckpointSession:
        return self.init() if self._state == "new" else self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is None and self._state != "ended":
            self.finalize()
        if kind is None or self._state == "ended" or self._ranks.forked:
            return
        try:
            self._settle()
        finally:
            self._ranks.give_up(f"{kind.__name__}: {error}")
            self._places.close()
            self._state = "ended"

    @property
    def state(self) -> str:
        """One of new, configuring, restoring, redistributing, idle, committing, closing, ended."""
        return self._state

    @property
    def values(self) -> dict[str, Any]:
        """What was given to `commit` for the version that was gone back to; empty when there was none."""
        return {} if self._found is None else self._found.values

    def init(self) -> CheckpointSession:
        """Look at the store, have managers on all hosts, and wait for the other processes; ``with`` does it.

        Gives the session.

        Raises
        ------
        CheckpointError
            When nothing can be written, another run of this name has its versions in memory, or the others do
            not come.
        """
        with self._during("init"):
            crc32c(b"")  # says now that it is not installed
            self._places.check()
            self._ranks.join(self._places.meeting, self._timeout_s)
            try:
                self._places.open()
            except BaseException:
                self._places.close()
                self._ranks.give_up("init has failed")
                raise
        return self

    def add(
        self, name: str, value: Any, *, dims: Sequence[str] | None = None, start: int | None = None
    ) -> np.ndarray:
        """Have an array in all versions from now on; added again, another one takes its place.

        Parameters
        ----------
        name
            Of the variable.
        value
            A NumPy array, or what shares its memory with one, such as a buffer: change it in place, and it
            is written as it is at each `commit`. Other values are copied once.
        dims
            Names of its dimensions; None: names of its own.
        start
            The array is a block: where it begins along the first dimension of the whole. Blocks of all
            processes make that up. None: it is whole, and all processes have the same.

        Returns
        -------
        numpy.ndarray
            The array that is written.

        Raises
        ------
        CheckpointTypeError
            For a value or dtype that cannot be stored.
        CheckpointValueError
            For a name, `dims` or `start` that cannot be.
        """
        with self._during("add"):
            made = held(checked_variable(name, TAKEN), value, dims, start)
            self._arrays[name] = made
        return made.value

    def commit(self, **values: Any) -> SessionCommit:
        """Write the arrays as one version, durable when this returns (see `enable_async`).

        Parameters
        ----------
        values
            Numbers and text that go with it, and lists and dicts of them: the step, the time. They become
            attributes of the Dataset, and come back as `values`.

        Raises
        ------
        CheckpointError
            When it cannot be written, or others have written versions of this name that this session has not
            gone on from; those before it are as they were, and the session may go on.
        CheckpointValueError
            When the arrays of all processes do not go together, or for a value that JSON does not have.
        """
        began_s = stopwatch_s()
        with self._during("commit"):
            if not self._arrays:
                raise CheckpointError("commit has nothing to write: add(name, array) first")
            told, commit = checked_values(values), SessionCommit(self.name)
            self._settle()
            waited_s = stopwatch_s()
            if self._asynchronous:
                self._copies = copied(self._arrays, self._copies)
                commit._row |= {"waiting_s": waited_s - began_s, "copying_s": stopwatch_s() - waited_s}
                self._last = commit
                commit._start(partial(self._places.write, self._copies, told))
            else:
                self._last = None
                commit._run(partial(self._places.write, self._arrays, told), False)
                commit.wait()
            commit._row["held_s"] = stopwatch_s() - began_s
        self._advance("done")
        return commit

    def restart(self, version: int | None = None) -> int | None:
        """Go back to the newest whole version, or the one asked for, before the first `commit`.

        Those after it are left once the next one is whole: nothing goes back to them by itself.
        Arrays stay as they are until `restore` is called.

        Returns
        -------
        int
            Its number; None: there is no version.

        Raises
        ------
        UnknownCheckpoint
            When there is no such version.
        CheckpointError
            When all versions are damaged.
        """
        with self._during("restart"):
            return self._go_back(version, {})

    def restart_all(self, version: int | None = None) -> int | None:
        """`restart`, then read all arrays that were added, in place; the version before if one is damaged.

        Raises
        ------
        UnknownCheckpoint, CheckpointError
            As `restart`; then arrays may have been read in part.
        CheckpointValueError
            When an array is not in the version, or has another shape or dtype there.
        """
        with self._during("restart_all"):
            if not self._arrays:
                raise CheckpointError("restart_all has nothing to read into: add(name, array) first")
            found = self._go_back(version, self._arrays)
        if found is not None:
            self._advance("done")
        return found

    def restore(self, name: str, box: tuple[int, int] | None = None) -> np.ndarray:
        """Read one array of the version that `restart` has gone back to.

        One that was added is read in place: of a block the same indices, whatever blocks the processes had
        that wrote it.

        Parameters
        ----------
        box
            First index along the first dimension, and the one behind the last: these are read into a new
            array.

        Raises
        ------
        CheckpointError
            When it is not what was written; restart the program, and go back to another version.
        CheckpointValueError
            When there is no such array, or it has another shape or dtype than the one that was added.
        """
        with self._during("restore"):
            assert self._found is not None
            return self._found.read(name, self._arrays.get(name), box)

    def probe_agents(self) -> Probe:
        """Look whether versions can be written, and whether they are to go elsewhere from now on.

        Managers that could not be had before are tried again.

        Files of the configuration are read again for that, unless the session was given its store. One that
        cannot be taken is not: then the old one stays, and ``problem`` says why.
        """
        with self._during("probe_agents"):
            self._settle()
            found = self._places.probe()
        self._advance("done")
        return found

    def enable_async(self, on: bool = True) -> None:
        """Have `commit` return as soon as the arrays are copied, and the version before is whole.

        The copy takes as much memory as the arrays. What goes wrong is logged, and raised by `wait` of the
        commit, and for the last one by `finalize`.
        """
        with self._during("enable_async"):
            self._asynchronous, self._copies = _ON.validate(on), {}

    def finalize(self, persist: bool = True) -> None:
        """End the session, when what is being written is; ``with`` does it. Of several processes, all do it.

        Parameters
        ----------
        persist
            Whether versions stay; all of this name up to the newest that this session has written or gone on
            from are removed otherwise, but for those that a cluster reads, which `dask hpc checkpoint gc`
            collects later.

        Raises
        ------
        CheckpointError
            When the last version could not be written, and it was not waited for.
        """
        persist = Bool("persist", True).validate(persist)
        self._advance("finalize")
        try:
            problem = self._settle()
            stay = any(self._ranks.together(lambda: persist))
            if not stay:
                self._places.remove()
        finally:
            self._ranks.close()
            self._places.close()
            self._advance("done")
        if stay and problem is not None:
            raise problem

    def _advance(self, event: str) -> None:
        self._ranks.check_process()
        try:
            self._state = session_step(self._state, event)
        except IllegalTransition as error:
            raise CheckpointError(f"session {self.name!r}: {error}") from None

    @contextmanager
    def _during(self, event: str) -> Iterator[None]:
        """The state after an event; that before it again when something is raised."""
        before = self._state
        self._advance(event)
        try:
            yield
        except BaseException:
            self._state = before
            raise

    def _settle(self) -> BaseException | None:
        """Wait for the version that is being written; what went wrong with it."""
        return None if self._last is None else self._last._problem()

    def _go_back(self, version: int | None, targets: Mapping[str, Held]) -> int | None:
        self._found = self._places.go_back(version, targets)
        if self._found is None:
            self._advance("done")
            return None
        if self._found.ranks != self._ranks.size:
            self._advance("resize")
        return self._found.manifest.version
