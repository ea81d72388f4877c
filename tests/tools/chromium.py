"""Headless Chromium of the system, driven by playwright, and an eye on what its pages complain of."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Route

#: As Debian and others call it.
_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: Without a screen, and without a request of its own to anywhere.
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
#: Console errors that are not ours: what they match, and why they are there.
_NOT_OURS: tuple[tuple[re.Pattern[str], str], ...] = ()
_HEIGHT_PX = 1000
#: How long a page, with the kernel and the cluster behind it, may take to show something on a busy machine.
_PATIENCE_MS = 30_000


def missing() -> str:
    """Why there can be no browser here; empty when there can."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright not installed: pip install playwright"
    return "" if _executable() else f"none of {', '.join(_NAMES)} on PATH: install your system's chromium"


def _executable() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser(home: Path) -> Iterator[Browser]:
    """A browser with a profile that was never used; `home` is its home folder.

    Playwright keeps an event loop on the thread until this is left, so no other test may run meanwhile.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(
            executable_path=_executable(), args=list(_ARGUMENTS), env={**os.environ, "HOME": str(home)}
        )
        try:
            yield program
        finally:
            program.close()


class Pages:
    """Pages of one test, each in a context of its own, and what went wrong in them."""

    def __init__(self, program: Browser) -> None:
        self._program = program
        self._contexts: list[BrowserContext] = []
        #: Console errors, uncaught exceptions, failed requests, requests that would leave the machine.
        self.faults: list[str] = []
        #: Everything that was said on the consoles.
        self.said: list[str] = []

    def open(self, *, width: int, dark: bool = False) -> Page:
        """An empty page; `width` in CSS pixels."""
        context = self._program.new_context(
            viewport={"width": width, "height": _HEIGHT_PX}, color_scheme="dark" if dark else "light"
        )
        self._contexts.append(context)
        context.route(lambda url: not _local(url), self._refuse)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.faults.append(f"uncaught: {error.error}"))
        page = context.new_page()
        page.on("websocket", lambda socket: None if _local(socket.url) else self._leaves(socket.url))
        return page

    @property
    def all(self) -> list[Page]:
        """Pages that are open."""
        return [page for context in self._contexts for page in context.pages]

    def close(self) -> None:
        """Close all of them."""
        while self._contexts:
            self._contexts.pop().close()

    def _console(self, message: ConsoleMessage) -> None:
        text = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        self.said.append(text)
        if message.type == "error" and not any(known.search(text) for known, _ in _NOT_OURS):
            self.faults.append(text)

    def _refuse(self, route: Route) -> None:
        self._leaves(route.request.url)
        route.abort()

    def _leaves(self, url: str) -> None:
        self.faults.append(f"a request to another machine: {url}")


def _local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")
