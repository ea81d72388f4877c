"""The client side: installing the runtime, declaring jobs, asking what happens.

Every method has the form of the client it belongs to: with an ordinary client it blocks and returns
the result, with an asynchronous one it returns an awaitable.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future

from dask_hpc import capabilities
from dask_hpc._version import __version__
from dask_hpc.channel import Channel, raise_error
from dask_hpc.client import checkpoints, methods, notices, timelines
from dask_hpc.client.arguments import client_of, job_of, path_of, policy_arguments, text_of, texts_of
from dask_hpc.client.couple import CouplingMethods
from dask_hpc.client.job import Job as Job
from dask_hpc.client.job import ask_cancel
from dask_hpc.client.power import PowerMethods
from dask_hpc.config import find
from dask_hpc.errors import InstallError
from dask_hpc.scheduler.bootstrap import bootstrap, require_version
from dask_hpc.show import above, line, never_raises, runtime_html
from dask_hpc.worker.awaited import source
from dask_hpc_policies.codec import decode, encode
from dask_hpc_policies.jobs.jobspec import job_spec_from_mapping
from dask_hpc_policies.jobs.sbatch import job_fields
from dask_hpc_policies.model import ClusterSnapshot

_runtimes: weakref.WeakKeyDictionary[Client, Runtime] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def install(client: Client, policy: Any = None, **params: Any) -> Any:
    """Switch the runtime on for the cluster of `client`.

    Parameters
    ----------
    client
        A connected client.
    policy
        Name of a policy or policy set, path of a YAML file, or a policy object. None: what is
        configured (``hpc.policy``), or what runs already.
    **params
        Parameters of the policy, or settings (``tick_s=0.5``).

    Returns
    -------
    Runtime

    Raises
    ------
    InstallError
        When scheduler or workers lack the package, differ in version, or Dask's internals are not as
        expected. The cluster is left as it was. Or when the client is closed.
    TypeError, ValueError
        For what is no client; an unknown policy or a parameter out of range.
    """
    return client_of(client).sync(_install, client, policy, params)


def runtime(client: Client) -> Any:
    """The `Runtime` of a cluster on which it is installed (by a client, a preload, a cluster class).

    Raises
    ------
    InstallError
        When it is not, or is that of another version.
    """
    return client_of(client).sync(_runtime, client)


async def _install(client: Client, policy: Any, params: dict[str, Any]) -> Runtime:
    arguments = policy_arguments(policy, params)
    try:
        answer = await client.run_on_scheduler(bootstrap, __version__, **arguments)
    except (ImportError, AttributeError) as error:
        raise InstallError(
            f"the scheduler cannot import dask_hpc {__version__} ({error}); install it in the "
            "scheduler's environment. Dask goes on as usual without it."
        ) from error
    raise_error(answer)
    return _made(client)


async def _runtime(client: Client) -> Runtime:
    found = _made(client)
    require_version(__version__, (await found.channel.ask("status"))["versions"]["dask_hpc"])
    return found


def _made(client: Client) -> Runtime:
    capabilities.load()
    with _lock:
        found = _runtimes.get(client)
        if found is None:
            found = _runtimes[client] = Runtime(client)
        return found


class Runtime(PowerMethods, CouplingMethods):
    """The runtime of one cluster, seen from one client. Made by `install` or `runtime`."""

    def __init__(self, client: Client) -> None:
        #: The way to the scheduler, for whatever belongs to this runtime.
        self.channel = Channel(client)
        notices.listen(self.channel)

    def __repr__(self) -> str:
        client = self.channel.client_or_none
        address = client.scheduler.address if client and client.scheduler else None
        return line("Runtime", scheduler=address, client="closed" if client is None else client.status)

    @never_raises
    def _repr_html_(self) -> str | None:
        return runtime_html(self)

    @property
    def client(self) -> Client:
        """The client it belongs to."""
        return self.channel.client

    def __getattr__(self, name: str) -> Any:
        # asked only for what the class does not have
        method = methods.added.get(name)
        if method is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(method, self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *methods.added})

    def job(self, name: str | dict[str, Any], *, resume: bool | None = None, **fields: Any) -> Job:
        """Declare a job: a context; everything submitted in it belongs to the job.

        Entering it (``with``, or ``async with`` for an asynchronous client) queues the job and never
        waits for nodes. Leaving it closes the job: it completes when its tasks are done, frees its
        nodes and keeps its results. An exception inside cancels it. Without a ``with`` block:
        `Job.activate` and `Job.close`; these also reach what other threads submit.

        What clients want of a job that says ``protect`` (of one with a `Job.program`: that program's state)
        is written to ``hpc.checkpoint.store`` every ``hpc.checkpoint.every`` and when it has ended.

        Parameters
        ----------
        name
            What the user calls it; or a mapping of all fields, as read from YAML.
        resume
            True: what an earlier run of a job that says ``protect`` has left is read, not computed, when
            it is asked for by the same keys (as of collections and pure functions); what you have pickled
            is loaded. False: this run replaces it. None: refused when there is any.
        **fields
            ``nodes`` (start size), ``min_nodes``, ``max_nodes``, ``constraint`` (any, even, odd, pof2,
            square, cube), ``walltime`` ("30 min", seconds or a `datetime.timedelta`), ``priority`` (larger is
            served first), ``min_power_w``, ``max_power_w`` (per node), ``io_intensity`` (0 to 1), ``rigid``,
            ``exclusive`` (neither lend nor borrow idle threads), ``deadline``, ``soft_deadline``, ``value``,
            ``protect`` (True, or another name for its versions), its ``services`` (see `checkpoint`),
            ``resilience``, ``user`` (this client when it is not said), ``weight`` (the setting
            ``hpc.share.weight`` when it is not said), ``measure_io`` (see `io`); see `jobspec.job_spec`.
            `nodes` with bounds starts at exactly `nodes`; bounds alone start at the largest legal size that
            fits; `nodes` alone is rigid; nothing is 1 to the pool's size.

        Raises
        ------
        InvalidJob, ValueError
            For values that cannot be, and `resume` or `services` without ``protect``; nothing is queued then.
        """
        weight = find("share.weight").check(dask.config.get("hpc.share.weight", 1.0))
        said = name if isinstance(name, dict) else {"name": name}
        declared = {"weight": weight, **said, **fields}
        services = declared.pop("services", None)
        return Job(self.channel, encode(job_spec_from_mapping(declared)), resume, services)

    def batch_job(self, script: str | os.PathLike[str], **fields: Any) -> Job:
        """Declare a job by the ``#SBATCH`` lines of a batch script.

        Parameters
        ----------
        script
            Path of the script; it is read here and not run.
        **fields
            Fields of `job` that are not in the script, or other than there.

        Raises
        ------
        InvalidJob
            For values that cannot be; the message has the line.
        OSError, UnicodeDecodeError
            When the file cannot be read as UTF-8 text.
        """
        path = Path(path_of("script", script))
        return self.job(job_fields(path.read_text(encoding="utf-8"), name=path.stem), **fields)

    def expect(self, names: Sequence[str]) -> Any:
        """Futures whose data somebody on a worker will provide (`dask_hpc.provide`), by these names.

        What depends on them can be submitted at once, in a job or as plain work, and runs when the data
        is there. Until then nothing counts them as work, and no time limit holds for them. Data that is
        lost with its worker is awaited again.

        Raises
        ------
        TypeError, ValueError
            For anything but a list of names; for one that another task has, or that is given twice.
        """
        return self.channel.run(self._expect, texts_of("names", names, "['step-0', 'step-1']"))

    async def _expect(self, names: list[str]) -> list[Future]:
        await self.channel.ask("expect", keys=names, client=self.client.id)
        futures: list[Future] = self.client.map(source, names, key=names, pure=False)
        return futures

    def checkpoint(
        self,
        obj: Any,
        name: str,
        *,
        store: str | os.PathLike[str] | None = None,
        levels: Sequence[str] | None = None,
        every: float | str | None = None,
        services: str | None = None,
        wait: bool = True,
    ) -> Any:
        """Write a version of a checkpoint, and protect its results from then on.

        A protected result that is lost with its worker is read back, not computed again; scattered data
        comes back, too. The version is a Zarr group: stock ``xarray.open_zarr`` reads labelled data and
        arrays whose chunks are regular, `dask_hpc.open_checkpoint` all kinds, and `dask_hpc.restore` has it
        back on another cluster. The last two versions of a name are kept.

        Parameters
        ----------
        obj
            A persisted array, data frame, bag or xarray object, a future, a list or dict of futures,
            scattered data. What is not computed yet is written when it is.
        name
            What it is called: letters, digits, ``.``, ``_`` and ``-``.
        store
            A folder that the scheduler and all workers can write to. None: ``hpc.checkpoint.store``.
        levels
            Where copies are. ``"L1"``: in the memory of each worker's host while somebody holds the results,
            and ``hpc.checkpoint.linger`` longer. ``"L2"`` (with L1): in those of other failure domains
            (``hpc.checkpoint.redundancy``). ``"L3"``: in the store. None: there, or L1 and L2 (it warns).
        every
            For a call after each step of a loop: nothing is written before so much (seconds, or text such as
            ``"10 min"``) has passed since the last version of this name ended, whatever became of it.
        services
            What is done to blocks, such as ``"compress"``. None: ``hpc.checkpoint.services``.
        wait
            Whether to wait until the version is whole, if this call has begun one; who interrupts that gives
            it up. False: nor for the answer of the cluster; ``wait()`` raises what it refuses. The client
            stays open until ``status()`` tells.

        Returns
        -------
        Commit
            ``version``, ``path``, ``wait()``, ``status()``; of the last one if this call has begun none.

        Raises
        ------
        CheckpointError
            When it cannot be written; earlier versions are as they were.
        ConfigError
            When ``"L3"`` is asked for and no store is named.
        TypeError, ValueError
            For what cannot be written, is not on the cluster, or a name that is not allowed.
        """
        return checkpoints.begin(self.channel, obj, name, store, levels, every, services, wait)

    def find(self, job: str) -> Job:
        """Handle of a job by id (of the row `jobs` gives)."""
        handle = Job(self.channel, {"name": job_of(job)})
        handle.id = job
        return handle

    def jobs(self) -> Any:
        """All jobs that are remembered, one dict each, in order of submission; a table in a notebook."""
        return self.channel.sync("jobs")

    def decisions(self, job: str | None = None, limit: int | None = None) -> Any:
        """What was decided and why, one dict each, oldest first; of one job, or the last `limit`."""
        return self.channel.sync("decisions", job=None if job is None else job_of(job), limit=limit)

    def status(self) -> Any:
        """State of it all: policy, settings, counts, what came of ``forecasts``, nodes if ``awake``."""
        return self.channel.sync("status")

    def io(self) -> Any:
        """What tasks read and wrote through `metered` stores, and in jobs of ``measure_io`` any way."""
        return self.channel.sync("io")

    def snapshot(self) -> Any:
        """What a policy would see now, a `dask_hpc_policies.model.ClusterSnapshot`.

        The simulator goes on from it: `dask_hpc.sim.what_if.simulate_from`. Without a job that waits or
        runs it holds neither nodes nor jobs.
        """
        return self.channel.run(self.ask_snapshot)

    async def ask_snapshot(self) -> ClusterSnapshot:
        """`snapshot`, to be awaited in the client's loop."""
        return decode(ClusterSnapshot, await self.channel.ask("snapshot"))

    def trace(self) -> Any:
        """The recorded trace, as JSON lines (`dask_hpc.trace.records`)."""
        return self.channel.sync("trace")

    def timeline(self, predict: bool = True) -> Any:
        """A picture of nodes and jobs over time: what was, what is and, with `predict`, what is to come.

        A `dask_hpc.report.picture.TimelinePicture`: shows itself in a notebook, ``.save("run.png")`` writes
        it. What is to come is the simulator's, from the present state on, under the policy that runs.
        """
        return self.channel.run(timelines.picture, self.channel, predict)

    def cancel(self, job: str, reason: str = "") -> Any:
        """Cancel a job by id or name: what it has not finished is cancelled, its results stay."""
        text = text_of("reason", reason, "a text")
        return self.channel.run(ask_cancel, self.channel, job_of(job), text)

    def set_role(self, node: str, role: str) -> Any:
        """Have a node (by its id) play another role: ``compute``, ``staging`` or ``reserve``.

        Jobs and plain work get compute nodes alone; on others runs what names their workers. The node is
        drained first, which takes no time where nothing runs, and keeps its role when it starts again.

        Returns
        -------
        dict
            ``result`` (``done``, ``refused`` or ``aborted``) and ``reason``.

        Raises
        ------
        ValueError
            For a node or a role that there is not.
        """
        node = text_of("node", node, "the id of a node, a text as in rt.status()['nodes']")
        role = text_of("role", role, "'compute', 'staging' or 'reserve'")
        return self.channel.sync("set_role", node=node, role=role)

    def update(self, policy: Any = None, **params: Any) -> Any:
        """Change the policy, its parameters, or settings; all or nothing. Returns the new status.

        Takes what `install` takes: ``rt.update("easy")``, ``rt.update(tick="500 ms")``. Parameters are those
        that `dask_hpc.policies` lists, settings those of ``dask hpc config hpc``, with ``_`` for dots and
        hyphens: ``rt.update(pool_max_nodes=16)``. For what cannot be it raises as `install`.
        """
        return self.channel.run(self.ask_update, policy, params)

    async def ask_update(self, policy: Any, params: dict[str, Any]) -> Any:
        """`update`, to be awaited in the client's loop."""
        return await self.channel.ask("update", **policy_arguments(policy, params))

    def panel(self) -> Any:
        """A Jupyter panel of the cluster: what runs and why, and a form to tune the policy.

        Returns
        -------
        dask_hpc_widgets.panel.Panel
            A widget; ``close()`` ends it.

        Raises
        ------
        InstallError
            When ipywidgets is not installed.
        """
        return above("panel", "the panel").opened(self)

    def uninstall(self) -> Any:
        """Hand everything back to stock Dask and leave nothing behind; running work goes on.

        What is uninstalled already stays so.
        """
        return self.channel.run(self._uninstall)

    async def _uninstall(self) -> Any:
        client = self.client
        # the scheduler ends the subscription: a message of ours might come after it has forgotten the topic
        try:
            answer = await self.channel.ask("uninstall", client=client.id)
        except InstallError:
            answer = {"uninstalled": True}  # somebody has done so before
        self.channel.answered_s = None
        with _lock:
            _runtimes.pop(client, None)
        return answer


methods.OWN.update(dir(Runtime))
