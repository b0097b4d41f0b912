"""The pages of the console at a server of several processes, and at two servers on one directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.console.pages import PAGES, Console
from tests.console.populated import fill_in, populate
from tests.scenarios.real_server import RealServer, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["processes", "two servers"])
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealServer]]:
    """The server that has the clients first."""
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    with ExitStack() as stack:
        started = [stack.enter_context(running(folder / "a", processes=request.param == "processes"))]
        if request.param == "two servers":
            other = RealServer(folder / "b")
            other.data_dir = started[0].data_dir
            stack.callback(other.end)
            started.append(other.start())
        stack.enter_context(populate(started[0]))
        yield started


def test_each_page_shows_what_the_servers_have(browser: Any, servers: list[RealServer]) -> None:
    with Console.open(browser, servers[0].ports["admin"]) as console:
        console.goto("")
        for path, words in PAGES.items():
            console.visit(fill_in(servers[0], path))
            console.page.wait_for_function(
                "words => new RegExp(words).test(document.querySelector('main').innerText)", arg=words
            )
            assert console.page.locator("main .problem").count() == 0, path
        assert console.complaints == []


def test_each_page_of_a_server_without_clients_has_its_data(browser: Any, servers: list[RealServer]) -> None:
    with Console.open(browser, servers[-1].ports["admin"]) as console:
        console.goto("")
        for path in PAGES:
            console.visit(fill_in(servers[0], path))
            console.page.locator("main h1").first.wait_for()
            console.page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
            problems = console.page.locator("main .problem").all_inner_texts()
            assert problems == [], path
        assert console.complaints == []
