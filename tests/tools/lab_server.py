"""A JupyterLab of its own: on loopback, in a temporary folder, with nothing of whoever runs the tests.

It listens on a port that was free, asks for a token, and looks for neither news nor newer versions nor
extensions. When it is left, the kernels that it started are gone as well, whatever happened inside.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

#: A cold start on a busy machine.
_START_S = 60.0
_STOP_S = 15.0
#: Settings in which a test differs from a fresh installation: nothing leaves the machine, nothing is asked.
_SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "extensionmanager-extension/plugin": {"enabled": False},
}
_ARGUMENTS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port=0",
    "--ServerApp.terminals_enabled=False",
    "--LabApp.news_url=",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
    # the page can be asked whether the kernel is there
    "--LabApp.expose_app_in_browser=True",
    "--JupyterNotebookApp.expose_app_in_browser=True",
)


def missing() -> str:
    """Why there can be no server here; empty when there can."""
    needed = ("jupyterlab", "ipykernel", "ipywidgets")
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed: pip install 'dask-hpc[widgets]'" if absent else ""


class JupyterServer:
    """A server that runs while its context is entered.

    Parameters
    ----------
    roots
        What kernels can import besides the installed packages.
    """

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._token = secrets.token_urlsafe(16)
        self._process: subprocess.Popen[bytes] | None = None
        #: Id of a kernel that waits for a notebook.
        self._spare = ""
        #: Starts that kernel.
        self._reserving: threading.Thread | None = None
        #: Where it is reached, ending in a slash.
        self.url = ""

    def __enter__(self) -> JupyterServer:
        self._place = tempfile.TemporaryDirectory(prefix="dask-hpc-lab-", ignore_cleanup_errors=True)
        self._folder = Path(self._place.name)
        #: Folder of the notebooks.
        self.notebooks = self._made("notebooks")
        for name, value in _SETTINGS.items():
            self._set(name, value)
        if self._roots:
            # what every notebook imports is there when its page is
            startup = self._made("ipython") / "profile_default" / "startup"
            startup.mkdir(parents=True)
            imports = "import dask_hpc\ndask_hpc.LocalCluster, dask_hpc.install, dask_hpc.explore\n"
            imports += "import dask_hpc_widgets.panel\n"
            (startup / "imports.py").write_text(imports, encoding="utf-8")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *_ARGUMENTS, f"--ServerApp.root_dir={self.notebooks}"],
                env=self._environment(),
                cwd=self.notebooks,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def log(self) -> str:
        """What the server and its kernels have said."""
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")

    def address(self, notebook: str) -> str:
        """Where JupyterLab shows a notebook, in a workspace that was never used."""
        workspace = secrets.token_hex(4)
        return self.page(f"lab/workspaces/{workspace}/tree/{notebook}")

    def page(self, path: str) -> str:
        """Where any page of it is."""
        return f"{self.url}{path}?token={self._token}"

    def theme(self, *, dark: bool) -> None:
        """The theme of pages that are opened from now on."""
        name = "JupyterLab Dark" if dark else "JupyterLab Light"
        self._set("apputils-extension/themes", {"theme": name, "adaptive-theme": False})

    def start_kernel(self) -> None:
        """Start a kernel that no page uses."""
        self._call("api/kernels", "POST")

    def begin(self, notebook: str) -> None:
        """Give a notebook that a page is about to show the spare kernel, or start one, beside the caller."""
        self._reserved()
        spare, self._spare = self._spare, ""
        session: dict[str, object] = {"path": notebook, "name": notebook, "type": "notebook"}
        session["kernel"] = {"id": spare} if spare else {"name": "python3"}
        beginning = threading.Thread(target=self._begin, args=(session,), daemon=True)
        beginning.start()
        if spare:
            # soon, and before the page looks for one
            beginning.join()

    def reserve(self) -> None:
        """Start a kernel for the notebook that comes next; nobody waits for that."""
        self._reserved()
        self._reserving = threading.Thread(target=self._reserve, daemon=True)
        self._reserving.start()

    def shut_kernels(self) -> None:
        """Have all kernels but the spare one end; nobody waits for that: who is left is ended by `stop`."""
        self._reserved()
        for kernel in self._call("api/kernels"):
            if kernel["id"] != self._spare:
                threading.Thread(target=self._shut, args=(kernel["id"],), daemon=True).start()

    def processes(self) -> list[psutil.Process]:
        """The server, its kernels, and what these have started."""
        assert self._process is not None
        try:
            server = psutil.Process(self._process.pid)
            return [server, *server.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """End the server, its kernels and what these have started. Again: nothing."""
        if self._process is None:
            return
        ours = self.processes()
        self._process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(ours, timeout=_STOP_S)
        for process in alive:
            process.kill()
        self._process.wait(_STOP_S)
        self._process = None
        self._place.cleanup()

    def _begin(self, session: dict[str, object]) -> None:
        # else the page does
        with suppress(OSError, http.client.HTTPException):
            self._call("api/sessions", "POST", session)

    def _reserved(self) -> None:
        """Wait until it is known which kernel is the spare one: it is there before its id is told."""
        if self._reserving is not None:
            self._reserving.join()

    def _reserve(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            self._spare = self._call("api/kernels", "POST", {"name": "python3"})["id"]

    def _shut(self, kernel: str) -> None:
        # asked again while it ends, and by the end of the server
        with suppress(OSError, http.client.HTTPException):
            self._call(f"api/kernels/{kernel}", "DELETE")

    def _wait(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + _START_S
        runtime = self._made("runtime")
        while True:
            for path in runtime.glob("jpserver-*.json"):
                try:
                    self.url = json.loads(path.read_text())["url"]
                    self._call("api/status")
                    return
                except (ValueError, OSError):
                    # not written to its end, or not listening yet
                    pass
            if self._process.poll() is not None:
                raise RuntimeError(f"JupyterLab ended at once:\n{self.log}")
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"JupyterLab did not answer within {_START_S:g} s:\n{self.log}")
            time.sleep(0.05)

    def _call(self, path: str, method: str = "GET", body: dict[str, object] | None = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            headers={"Authorization": f"token {self._token}"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read()
        return json.loads(text) if text else []

    def _environment(self) -> dict[str, str]:
        # neither settings of Jupyter, IPython and Dask, nor of the tests themselves
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("JUPYTER", "JPY_", "IPYTHON", "DASK_", "COV_", "COVERAGE", "PYTEST"))
        }
        folders = {
            "HOME": "home",
            "TMPDIR": "tmp",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
            "DASK_CONFIG": "dask",
            # clusters take over what others of the machine have left in its memory
            "DASK_HPC__NODE__MEMORY_FOLDER": "memory",
        }
        return kept | {
            **{name: str(self._made(folder)) for name, folder in folders.items()},
            "PYTHONPATH": os.pathsep.join(str(root) for root in self._roots),
            "JUPYTER_TOKEN": self._token,
        }

    def _made(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _set(self, name: str, value: dict[str, object]) -> None:
        path = self._made("settings") / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")
