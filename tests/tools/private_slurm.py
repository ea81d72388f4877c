"""A Slurm cluster of its own: several virtual nodes on this machine, in a temporary folder, on loopback.

Debian's packages ``slurm-wlm`` and ``munge`` are enough; neither systemd nor root is needed. One `munged`
with a key of its own, one `slurmctld` and one `slurmd` per virtual node run in the foreground as
children of this process, on ports that were free when it started. So several clusters can run beside
one another and beside the machine's own Slurm. They end with the process that started them, however it
ends.

The nodes claim processors and memory that need not be there; nothing is bound or limited. There is no
accounting data base, so `sacct` has nothing to tell.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil
from slurm_processes import MARK, WATCHER, clear, free_ports, poll, processes

#: What has to be on PATH, and the Debian package it comes from.
NEEDED = {"munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "sbatch": "slurm-wlm"}
#: Where Debian keeps daemons, which the PATH of a user may lack.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

_CONFIGURATION = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
# listen on loopback alone
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
# jobs start as soon as they can
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=1
# seconds from SIGTERM to SIGKILL
KillWait={kill_wait_s}
SlurmdTimeout=300
ReturnToService=2
{nodes}
PartitionName=compute Nodes={compute} Default=YES MaxTime=INFINITE State=UP
PartitionName=staging Nodes={staging} Default=NO MaxTime=1:00:00 State=UP
"""


class PrivateSlurmError(Exception):
    """The cluster did not start; the message has what its daemons said."""


def missing() -> str:
    """Why there can be no private Slurm here; empty when there can."""
    packages = {package for command, package in NEEDED.items() if not shutil.which(command, path=_PATH)}
    if not packages:
        return ""
    return f"no Slurm to test with; apt-get install {' '.join(sorted(packages))}"


class PrivateSlurm:
    """A running cluster; a context manager that ends it, with all jobs, on leaving.

    Nodes are called n1, n2, ...; the last `staging_nodes` of them are the partition ``staging``
    (at most one hour), the others ``compute`` (the default, no limit).

    Parameters
    ----------
    nodes, staging_nodes
        Virtual nodes in all, and how many of them are for staging.
    node_cpus
        Processors that each node claims to have.
    kill_wait_s
        Whole seconds from SIGTERM to SIGKILL when a job is cancelled or out of time.
    """

    def __init__(
        self, nodes: int = 8, *, staging_nodes: int = 2, node_cpus: int = 2, kill_wait_s: int = 5
    ) -> None:
        if why := missing():
            raise PrivateSlurmError(why)
        if not 1 <= staging_nodes < nodes:
            raise ValueError(
                f"staging_nodes={staging_nodes} must be from 1 to {nodes - 1}, below nodes={nodes}"
            )
        self.node_names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self.compute_nodes = self.node_names[:-staging_nodes]
        self.staging_nodes = self.node_names[-staging_nodes:]
        self._node_cpus = node_cpus
        self._kill_wait_s = kill_wait_s
        self._daemons: list[subprocess.Popen[bytes]] = []
        # munged wants a socket that all can reach, and sockets have short paths
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        #: What a command of Slurm, or a process that runs them, needs to reach this cluster.
        self.environment: Mapping[str, str] = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))
        } | {"PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf"), MARK: str(self.folder)}
        self._watcher = subprocess.Popen(
            [sys.executable, WATCHER, str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> PrivateSlurm:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, *command: str, timeout_s: float = 60.0) -> str:
        """What a command of Slurm prints; an error with its own message when it fails."""
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=timeout_s
        )
        if done.returncode:
            raise PrivateSlurmError(
                f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def submit(self, command: str, *options: str) -> int:
        """Submit a job that runs the shell `command`; its number."""
        return int(self.run("sbatch", "--parsable", *options, "--wrap", command).partition(";")[0])

    def state(self, job: int) -> str:
        """State of a job as Slurm calls it, such as ``RUNNING``."""
        return self.run("squeue", "-h", "--states=all", "-o", "%T", "-j", str(job)).strip()

    def wait_for(self, job: int, *states: str, timeout_s: float = 60.0) -> str:
        """Wait until a job is in one of `states`; which."""

        def reached() -> str:
            state = self.state(job)
            return state if state in states else ""

        return poll(reached, f"job {job} to be {' or '.join(states)}", timeout_s)

    def cancel_all(self) -> None:
        """Cancel all jobs and wait until their nodes are free; what ignores SIGTERM is killed by Slurm."""
        if jobs := self.run("squeue", "-h", "-o", "%A").split():
            # not `run`: a job that ends by itself meanwhile is no failure
            subprocess.run(["scancel", *jobs], env=self.environment, timeout=60, capture_output=True)
        poll(self._empty, "the queue to be empty")

    def _empty(self) -> bool:
        return not self.run("squeue", "-h", "-o", "%A").strip()

    def logs(self) -> str:
        """The last lines that each daemon wrote."""
        return "\n".join(
            f"{path.name}: {line}"
            for path in sorted((self.folder / "log").glob("*"))
            for line in path.read_text(errors="replace").splitlines()[-15:]
        )

    def stop(self) -> None:
        """End all daemons and jobs and remove the folder; may be called again."""
        clear(self.folder)
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()
        # it finds nothing left to do
        self._watcher.communicate()

    def processes(self) -> list[psutil.Process]:
        """All processes of this cluster that run: daemons, jobs, and what the jobs started."""
        return processes(self.folder)

    def _start(self) -> None:
        for name in ("munge", "state", "spool", "log"):
            (self.folder / name).mkdir(mode=0o755)
        self._start_munge()
        for attempts_left in (2, 1, 0):
            self._start_slurm()
            try:
                poll(self._up, "all nodes to be idle")
                return
            except (PrivateSlurmError, TimeoutError) as error:
                # another process may have taken a port meanwhile
                if not attempts_left or "already in use" not in self.logs():
                    raise PrivateSlurmError(f"{error}\n{self.logs()}") from None
                self._stop_slurm()

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(random.SystemRandom().randbytes(128))
        # no look-up of this machine's name, which may take long without a network
        self._daemon(
            "munged", "--foreground", "--num-threads=10", "--origin=127.0.0.1", "--group-update-time=-1",
            f"--key-file={key}", f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}",
            f"--log-file={folder / 'log'}", f"--seed-file={folder / 'seed'}",
        )  # fmt: skip
        poll(lambda: (folder / "socket").exists() or self._check(), "munged")

    def _start_slurm(self) -> None:
        ports = free_ports(len(self.node_names) + 1)
        nodes = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={self._node_cpus} "
            "RealMemory=16000 State=UNKNOWN"
            for name, port in zip(self.node_names, ports[1:], strict=True)
        ]
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=self.folder,
                host=socket.gethostname().partition(".")[0],
                port=ports[0],
                user=psutil.Process().username(),
                kill_wait_s=self._kill_wait_s,
                nodes="\n".join(nodes),
                compute=",".join(self.compute_nodes),
                staging=",".join(self.staging_nodes),
            )
        )
        for name in self.node_names:
            (self.folder / "spool" / name).mkdir(exist_ok=True)
        # Slurm looks for it next to slurm.conf, and without it in the machine's own folder
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._daemon("slurmctld", "-D")
        for name in self.node_names:
            self._daemon("slurmd", "-D", "-N", name)

    def _stop_slurm(self) -> None:
        for daemon in self._daemons[1:]:
            daemon.kill()
            daemon.wait()
        del self._daemons[1:]
        for path in (self.folder / "log").glob("*"):
            path.unlink()

    def _daemon(self, *command: str) -> None:
        log = self.folder / "log" / f"{len(self._daemons)}-{command[0]}"
        with log.open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is for the tests, which then stop the cluster in order
                    start_new_session=True,
                )
            )

    def _check(self) -> bool:
        for daemon in self._daemons:
            if daemon.poll() is not None:
                raise PrivateSlurmError(f"{daemon.args} ended with exit code {daemon.returncode}")
        return False

    def _up(self) -> bool:
        self._check()
        try:
            states = self.run("sinfo", "-h", "-N", "-o", "%T").split()
        except PrivateSlurmError:
            return False
        return len(states) == len(self.node_names) and set(states) == {"idle"}
