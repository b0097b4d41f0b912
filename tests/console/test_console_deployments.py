"""The console's pages at a server of several processes, at two servers on one directory, and on Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from tests.console.pages import PAGES, Console
from tests.console.populated import fill_in, populate
from tests.scenarios.real_server import RealServer, running
from tests.support.installations import installed

pytestmark = pytest.mark.slow
REJECTED_ON_KAFKA = {"messages/{message}": "it keeps no index of them"}


@pytest.fixture(
    scope="module",
    params=[
        "processes",
        pytest.param("two servers", marks=pytest.mark.long),
        pytest.param("kafka", marks=pytest.mark.kafka),
    ],
)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RealServer]]:
    """The server that has the clients first."""
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    with ExitStack() as stack:
        installation = stack.enter_context(installed("kafka" if request.param == "kafka" else "file_log"))
        processes = request.param == "processes"
        started = [stack.enter_context(running(folder / "a", processes=processes, installation=installation))]
        if request.param == "two servers":
            other = RealServer(folder / "b")
            other.data_dir = started[0].data_dir
            stack.callback(other.end)
            started.append(other.start())
        stack.enter_context(populate(started[0]))
        yield started


@pytest.fixture
def rejected(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The sentences of the pages that the engine cannot fill."""
    return REJECTED_ON_KAFKA if request.node.callspec.params["servers"] == "kafka" else {}


def test_each_page_shows_what_the_servers_have(
    browser: Any, servers: list[RealServer], rejected: Mapping[str, str]
) -> None:
    with Console.open(browser, servers[0].ports["admin"]) as console:
        console.quiet = (*console.quiet, *(["status of 400"] if rejected else []))
        console.goto("")
        for path, words in {**PAGES, **rejected}.items():
            console.visit(fill_in(servers[0], path))
            console.page.wait_for_function(
                "words => new RegExp(words).test(document.querySelector('main').innerText)", arg=words
            )
            if path not in rejected:
                assert console.page.locator("main .problem").count() == 0, path
        assert console.complaints == []


def test_each_page_of_a_server_without_clients_has_its_data(
    browser: Any, servers: list[RealServer], rejected: Mapping[str, str]
) -> None:
    with Console.open(browser, servers[-1].ports["admin"]) as console:
        console.goto("")
        console.quiet = (*console.quiet, *(["status of 504"] if rejected else []))
        for path in (each for each in PAGES if each not in rejected):
            console.visit(fill_in(servers[0], path))
            console.page.locator("main h1").first.wait_for()
            console.page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
            if rejected:  # a slow broker may have answered too late; the page tries again
                console.page.locator("main .problem").first.wait_for(state="detached")
            problems = console.page.locator("main .problem").all_inner_texts()
            assert problems == [], path
        assert console.complaints == []
