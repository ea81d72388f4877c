"""A real Jupyter kernel in a process of its own, with a client that plays the page.

Comm messages are sent and received as with a browser; nobody draws what they say.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.manager import KernelManager

REPOSITORY = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
_MARK = "\x1eresult:"


class CellError(Exception):
    """A cell raised; the message is its traceback."""


class RealKernel:
    """Runs code in a kernel; made by `started`."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)
        #: Everything that the page was told, message type and content, oldest first.
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.keeps = True

    def begin(self, code: str) -> str:
        """Send a cell; gives its id for `end`."""
        return str(self.client.execute(code, store_history=False))

    def end(self, cell: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for a cell; gives what it printed.

        Raises
        ------
        CellError
            When the cell raised.
        TimeoutError
            When it did not end in time.
        """
        deadline_s = time.monotonic() + timeout_s
        printed: list[str] = []
        error = ""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.01, deadline_s - time.monotonic()))
            except Empty:
                raise TimeoutError(f"the cell has not ended for {timeout_s:g} s: {printed}") from None
            kind, content = message["msg_type"], message["content"]
            if self.keeps:
                self.heard.append((kind, content))
            if message["parent_header"].get("msg_id") != cell:
                continue
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                break
        if error:
            raise CellError(error)
        return "".join(printed)

    def hear(self, right: Callable[[str, dict[str, Any]], bool]) -> None:
        """Wait until the page is told what `right` takes, given the type and content of a message."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            self.heard.append((message["msg_type"], message["content"]))
            if right(*self.heard[-1]):
                return
        raise TimeoutError(f"not heard for {PATIENCE_S:g} s")

    def run(self, code: str, timeout_s: float = PATIENCE_S) -> str:
        """Run a cell; gives what it printed."""
        return self.end(self.begin(code), timeout_s)

    def value(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Value of an expression, which may await, as JSON gives it back."""
        printed = self.run(f"import json as _json\nprint({_MARK!r} + _json.dumps({expression}))", timeout_s)
        return json.loads(printed.rpartition(_MARK)[2])

    def until(self, expression: str, timeout_s: float = PATIENCE_S) -> Any:
        """Ask until the expression is true, each time in a cell of its own; gives its value."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := self.value(expression)):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not true after {timeout_s:g} s: {expression}")
            time.sleep(0.05)
        return found

    def beside(self) -> str:
        """Open a subshell, a thread of the kernel beside that of cells; gives its id."""
        message = self.client.session.msg("create_subshell_request")
        self.client.control_channel.send(message)
        while True:
            answer = self.client.get_control_msg(timeout=PATIENCE_S)
            if answer["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return str(answer["content"]["subshell_id"])

    def send(self, widget: str, data: Mapping[str, Any], subshell: str | None = None) -> None:
        """Send a widget, by the expression that gives it, what a page would; returns when it is taken.

        With `subshell` to that one, as JupyterLab does.
        """
        comm = self.value(f"{widget}.model_id")
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": dict(data)})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)
        self.end(message["header"]["msg_id"])

    def click(self, button: str, subshell: str | None = None) -> None:
        """Click a button."""
        self.send(button, {"method": "custom", "content": {"event": "click"}}, subshell)

    def type(self, text: str, value: Any, trait: str = "value") -> None:
        """Change the value (of a choice: the ``index``) of a control."""
        self.send(text, {"method": "update", "state": {trait: value}, "buffer_paths": []})

    def interrupt(self) -> None:
        """Interrupt the cell that runs, as the button of a notebook does."""
        self.manager.interrupt_kernel()


@contextmanager
def started(*paths: str) -> Iterator[RealKernel]:
    """A kernel that can import the packages of this source tree, and what lies in `paths`."""
    roots = [str(REPOSITORY / part) for part in (".", "policies", "widgets")]
    before = os.environ.get("PYTHONPATH")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([*roots, *paths, *filter(None, (before,))]))
    manager = KernelManager(transport="ipc")
    # the interpreter of the tests, whatever kernels are installed
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(env=environment)
    kernel = None
    try:
        kernel = RealKernel(manager)
        yield kernel
    finally:
        if kernel is not None:
            kernel.client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
