"""Headless Chromium of the system, driven by playwright, and an eye on what its pages complain of."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, WebSocket

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
    # what is not on this machine is asked of a proxy that is not there: nothing leaves, and what pages have
    # loaded stays with the browser, which forgets it where requests are looked at one by one
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1;localhost",
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
    """Pages of one test, and what went wrong in them. What they load is loaded once for all tests."""

    def __init__(self, program: Browser) -> None:
        self._context: BrowserContext = (program.contexts or [program.new_context()])[0]
        #: Pages that are open.
        self.all: list[Page] = []
        #: Console errors, uncaught exceptions, failed requests, requests that would leave the machine.
        self.faults: list[str] = []
        #: Everything that was said on the consoles.
        self.said: list[str] = []
        #: Whether the test has failed: none of its pages is left to another one.
        self.failed = False
        self._told: dict[Any, Callable[[Any], None]] = {
            # also those that it opens; other tests have pages of theirs in the same context
            "popup": self._watch,
            "console": self._console,
            "pageerror": lambda error: self.faults.append(f"uncaught: {error}"),
            "request": self._asked,
            "websocket": self._asked,
        }

    def open(self, *, width: int, dark: bool = False, page: Page | None = None) -> Page:
        """An empty page, or `page`, which another test has left; `width` in CSS pixels."""
        page = page or self._context.new_page()
        self._watch(page)
        page.set_viewport_size({"width": width, "height": _HEIGHT_PX})
        page.emulate_media(color_scheme="dark" if dark else "light")
        return page

    def _watch(self, page: Page) -> None:
        self.all.append(page)
        for event, told in self._told.items():
            page.on(event, told)

    def leave(self, page: Page) -> Page:
        """Give a page over to another test: from now on that one answers for it."""
        self.all.remove(page)
        for event, told in self._told.items():
            page.remove_listener(event, told)
        return page

    def close(self) -> None:
        """Close all of them."""
        while self.all:
            self.all.pop().close()

    def _console(self, message: ConsoleMessage) -> None:
        text = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        self.said.append(text)
        if message.type == "error" and not any(known.search(text) for known, _ in _NOT_OURS):
            self.faults.append(text)

    def _asked(self, asked: Request | WebSocket) -> None:
        if not _local(asked.url):
            self.faults.append(f"a request to another machine: {asked.url}")


def _local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "about") or parts.hostname in ("127.0.0.1", "localhost")
