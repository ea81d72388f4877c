"""Does a session on Binder come up, and does the tour fit into its memory?

    python binder/check.py

Conda is not needed: the packages of ``environment.yml`` are installed by pip, in a fresh environment of the
Python that runs this. There ``postBuild`` runs, and ``start`` starts JupyterLab as Binder does; the link to
the dashboard is followed through its proxy, and the tour is executed. No process of the tour can get more
data than Binder gives to the whole session (a limit of the system's, inherited), and what all processes of
the session hold together (shared pages counted once), measured five times a second, must stay below it. The
exit code is 1 when anything fails.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import yaml

Command = Sequence[str | os.PathLike[str]]
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TOUR = ROOT / "notebooks" / "00_tour.ipynb"
#: What a session on mybinder.org may use.
LIMIT_BYTES = 2_000_000_000
#: Packages that pip knows by another name; None: it brings them itself.
PIP_NAMES: Mapping[str, str | None] = {
    "python": None,
    "pip": None,
    "dask-core": "dask",
    "matplotlib-base": "matplotlib",
}
#: Where a hub says that the server is.
PREFIX = "/user/check/"
TOKEN = "check"
PATIENCE_S = 60.0
#: Follows the link to the dashboard of a cluster through the server's proxy, as a browser would.
FOLLOW = """
import sys, urllib.request
import dask_hpc
with dask_hpc.LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster:
    link = cluster.dashboard_link
    assert link.startswith(sys.argv[2]), link
    with urllib.request.urlopen(f"{sys.argv[1]}{link}?token={sys.argv[3]}", timeout=30) as answer:
        assert answer.status == 200 and b"Dask" in answer.read()
"""


class CheckError(Exception):
    """A step that failed; the message has what it printed."""


def packages(path: Path = HERE / "environment.yml") -> dict[str, str]:
    """Versions that ``environment.yml`` allows, by conda's name of the package."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))["dependencies"]
    return {name: versions.strip() for name, _, versions in (entry.partition(" ") for entry in listed)}


def pip_requirements(listed: Mapping[str, str]) -> list[str]:
    """The same for pip."""
    names = {name: PIP_NAMES.get(name, name) for name in listed}
    return [f"{pip} {listed[name]}".strip() for name, pip in names.items() if pip is not None]


def run(step: str, command: Command, environment: Mapping[str, str], folder: Path) -> None:
    """Run a step to its end.

    Raises
    ------
    CheckError
        When its exit code is not 0.
    """
    began_s = time.monotonic()
    done = subprocess.run(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise CheckError(f"{step}: exit code {done.returncode}\n{done.stdout}")
    print(f"ok  {step}, {time.monotonic() - began_s:.0f} s", flush=True)


def environment_of(folder: Path) -> dict[str, str]:
    """Variables of a session whose files are all in `folder`."""
    # nothing of the caller's: neither its packages nor its settings
    own = ("PYTHON", "DASK_", "JUPYTER")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    return kept | {
        "PATH": os.pathsep.join((str(folder / "env" / "bin"), os.environ.get("PATH", os.defpath))),
        "VIRTUAL_ENV": str(folder / "env"),
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "DASK_CONFIG": str(folder / "dask"),
    }


@contextlib.contextmanager
def jupyterlab(environment: Mapping[str, str], log: Path) -> Iterator[tuple[int, str]]:
    """JupyterLab, started as on Binder: the id of its process, and its address.

    Raises
    ------
    CheckError
        When it does not answer.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        HERE / "start", "jupyter", "lab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        f"--ServerApp.base_url={PREFIX}", f"--IdentityProvider.token={TOKEN}",
    ]  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)
    try:
        address = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + PATIENCE_S
        while not _answers(f"{address}{PREFIX}lab?token={TOKEN}"):
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise CheckError(f"JupyterLab does not answer\n{log.read_text()}")
            time.sleep(0.2)
        print("ok  start: JupyterLab answers", flush=True)
        yield server.pid, address
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def peak_bytes(command: Command, environment: Mapping[str, str], *others: int) -> int:
    """Run `command`; the most memory that it, all that it starts, and `others` held together.

    Raises
    ------
    CheckError
        When its exit code is not 0.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=output, stderr=output, preexec_fn=_limit_data
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(map(held_bytes, (process.pid, *others))))
            time.sleep(0.2)
        output.seek(0)
        if process.returncode:
            raise CheckError(f"exit code {process.returncode}\n{output.read().decode(errors='replace')}")
    return peak


def _limit_data() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, LIMIT_BYTES))


def held_bytes(pid: int) -> int:
    """Bytes of a process and all that it has started; pages that several share are split between them."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += one.memory_full_info().pss
    return total


def main() -> int:
    """See the module; returns the exit code."""
    listed = packages()
    with tempfile.TemporaryDirectory(prefix="binder-") as name:
        folder = Path(name)
        environment = environment_of(folder)
        python = folder / "env" / "bin" / "python"
        try:
            run("environment", [sys.executable, "-m", "venv", folder / "env"], environment, folder)
            wanted = pip_requirements(listed)
            # what is imported is compiled then
            install = [python, "-m", "pip", "install", "--quiet", "--no-compile", *wanted]
            run(f"{len(wanted)} packages", install, environment, folder)
            run("postBuild", [HERE / "postBuild"], environment, ROOT)
            with jupyterlab(environment, folder / "log") as (server, address):
                follow = [HERE / "start", python, "-c", FOLLOW, address, PREFIX, TOKEN]
                run("dashboard through the proxy", follow, environment, folder)
                tour = [
                    HERE / "start", "jupyter", "nbconvert", "--to", "notebook", "--execute", TOUR,
                    "--output-dir", folder,
                ]  # fmt: skip
                peak = peak_bytes(tour, environment, server)
        except CheckError as error:
            print(f"FAILED  {error}", file=sys.stderr)
            return 1
    verdict = "ok" if peak < LIMIT_BYTES else "FAILED"
    print(f"{verdict}  the tour: at most {peak / 1e6:,.0f} of {LIMIT_BYTES / 1e6:,.0f} MB")
    return 0 if peak < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
