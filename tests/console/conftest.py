"""A real server with things to see, and a browser (Debian's Chromium) that complains about every mistake.

Playwright keeps an asyncio loop running in its thread until it is stopped. So each file has a browser and a
server of its own: they end with its last test, and the tests that follow in the same worker can run loops.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.pages import Console
from tests.console.populated import populate
from tests.scenarios.real_server import RealServer, running

CHROMIUM = shutil.which("chromium")
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage"]  # the suite may run as root, in a container


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("console"), None) as started, populate(started):
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield started
        started.close()


@pytest.fixture
def console(browser: Any, server: RealServer) -> Iterator[Console]:
    """A console at 1280 px. At the end of the test it must not have logged an error or a violated policy."""
    with Console.open(browser, server.ports["admin"]) as opened:
        yield opened
    assert opened.complaints == []
