"""A list of 100,000 keys gets more rows as it is scrolled; only those near the window are in the document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.console.long_list import serve_keys
from tests.console.pages import Console
from tests.scenarios.real_server import RealServer, running
from tests.support.waits import until

PAGE_ROWS = 50
SCROLLED_ROWS = 200
DOCUMENT_ROWS_MAX = 250
SNAPSHOTS = 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("scrolling")) as started:
        yield started


def scroll_to_end(page: Any, rows: int) -> None:
    """Scroll down until the list has so many rows."""
    shown = page.locator(".pager", has_text=f"{rows:,} of 100,000 keys")
    until(lambda: page.evaluate("scrollTo(0, document.body.scrollHeight)") or shown.count())


def count_rows(page: Any) -> int:
    """Return how many rows are in the document."""
    return int(page.locator("tbody tr").count())


@pytest.mark.parametrize("width", [375, 1280])
def test_a_list_that_is_scrolled_grows_and_the_document_does_not(
    browser: Any, server: Any, width: int
) -> None:
    with Console.open(browser, server.ports["admin"], width=width) as console:
        serve_keys(console.page)
        page = console.goto("keys")
        page.get_by_text("customer-49", exact=True).wait_for()
        first_head = page.locator("th").nth(2).evaluate("head => head.offsetWidth")
        for pages in range(1, 6):
            scroll_to_end(page, PAGE_ROWS + pages * SCROLLED_ROWS)
            until(lambda: count_rows(page) <= DOCUMENT_ROWS_MAX)
        assert page.get_by_text("customer-0", exact=True).count() == 0
        assert abs(page.locator("th").nth(2).evaluate("head => head.offsetWidth") - first_head) <= 1
        page.evaluate("scrollTo(0, 0)")
        page.get_by_text("customer-0", exact=True).wait_for()
        until(lambda: count_rows(page) <= DOCUMENT_ROWS_MAX)
        assert console.complaints == []


def test_snapshots_render_no_row_of_a_list_that_has_not_changed(console: Console) -> None:
    serve_keys(console.page, least=1_000)
    page = console.goto("keys")
    page.locator(".ribbon.live").wait_for()
    calls = start_counting_calls(page)
    until(lambda: calls("lib/live.js", "take") >= 1)
    first = calls("pages/keys.js", "cell")  # of rows that appeared late: a busy browser may still render them
    until(lambda: calls("lib/live.js", "take") >= 1 + SNAPSHOTS)
    assert calls("pages/keys.js", "cell") == first


def start_counting_calls(page: Any) -> Callable[[str, str], int]:
    """Return a function that says how often functions of a name in a module have been called since now."""
    profiler = page.context.new_cdp_session(page)
    profiler.send("Profiler.enable")
    profiler.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    sums: dict[tuple[str, str], int] = {}

    def count_calls(module: str, name: str) -> int:
        for script in profiler.send("Profiler.takePreciseCoverage")["result"]:
            for function in script["functions"]:
                key = (script["url"].split("/", 6)[-1], function["functionName"])
                sums[key] = sums.get(key, 0) + function["ranges"][0]["count"]
        return sums.get((module, name), 0)

    return count_calls
