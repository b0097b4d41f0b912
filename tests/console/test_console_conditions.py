"""The console when things go badly: a slow or failing API, a restart, and two operators at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.console.pages import COMMON_PAGES, PAGES, Console
from tests.console.populated import FAILING_KEYS, fill_in
from tests.scenarios.real_server import RealServer, running
from tests.support.variants import mark_others_long
from tests.support.waits import until

LONGER_THAN_ANY_PAUSE_MS = 90_000
FAILED_REQUEST = "Failed to load resource"


class Api:
    """What stands between the pages of a browser and the admin API."""

    def __init__(self, page: Any) -> None:
        self.answer: Callable[[Any], None] = lambda route: route.continue_()
        self.held: list[Any] = []
        page.route(
            lambda url: not urlsplit(url).path.startswith("/console"), lambda route: self.answer(route)
        )

    def fail(self, status: int, text: str) -> None:
        self.answer = lambda route: route.fulfill(status=status, json={"error": text})

    def corrupt(self) -> None:
        self.answer = lambda route: route.fulfill(status=200, body="<html>gateway</html>")

    def cut(self) -> None:
        self.answer = lambda route: route.abort("connectionreset")

    def hold(self) -> None:
        self.answer = self.held.append

    def work(self) -> None:
        self.answer = lambda route: route.continue_()
        for route in self.held:
            route.continue_()
        self.held.clear()


@pytest.fixture
def api(console: Console) -> Api:
    console.quiet = (*console.quiet, FAILED_REQUEST)
    console.page.clock.install()
    return Api(console.page)


FAILURES: dict[str, tuple[Callable[[Api], None], str]] = {
    "500": (lambda api: api.fail(500, "internal error: boom"), "internal error: boom.*Its log says more"),
    "403": (lambda api: api.fail(403, "reader lacks the right x"), "Not allowed.*lacks the right x"),
    "503": (lambda api: api.fail(503, "the log is starting"), "the log is starting.*tries again by itself"),
    "not JSON": (Api.corrupt, "(not JSON: .html|is no stream).*tries again by itself"),
    "cut": (Api.cut, "does not answer.*Check whether the server runs.*tries again by itself"),
}


@pytest.mark.parametrize("failure", mark_others_long(FAILURES, ("403", "cut")))
def test_each_page_says_what_failed_and_what_to_do(
    console: Console, server: RealServer, api: Api, failure: str
) -> None:
    begin, sentence = FAILURES[failure]
    paths = [fill_in(server, path) for path in PAGES]
    begin(api)
    console.goto("")
    for path in paths:
        console.visit(path)
        console.page.locator("main h1").first.wait_for()
        problem = console.page.locator("main .problem").first
        problem.wait_for()
        assert re.search(sentence, problem.inner_text(), re.DOTALL), (path, problem.inner_text())
        console.page.locator('main [aria-busy="true"]').first.wait_for(state="detached")


@pytest.mark.parametrize("path", mark_others_long(PAGES, COMMON_PAGES))
def test_a_page_keeps_its_numbers_as_old_ones_until_the_api_is_back(
    console: Console, server: RealServer, api: Api, path: str
) -> None:
    page = console.goto(fill_in(server, path))
    shows = "words => new RegExp(words).test(document.querySelector('main').innerText)"
    page.wait_for_function(shows, arg=PAGES[path])
    api.fail(503, "the log is starting")
    page.clock.fast_forward(LONGER_THAN_ANY_PAUSE_MS)
    page.locator("main.old").wait_for()
    if path:  # the first page has nothing but the snapshots
        page.locator("main .data.old", has_text="What follows is old").first.wait_for()
    assert page.evaluate(shows, PAGES[path])
    page.locator(".ribbon.old", has_text="the log is starting").wait_for()
    api.work()
    page.clock.fast_forward(LONGER_THAN_ANY_PAUSE_MS)
    page.locator("main:not(.old)").wait_for()
    page.locator("main .data.old").first.wait_for(state="detached")


def test_a_slow_api_is_waited_for(console: Console, server: RealServer, api: Api) -> None:
    paths = [fill_in(server, path) for path in PAGES]
    api.hold()
    console.load("")
    for path, words in zip(paths, PAGES.values(), strict=True):
        api.hold()
        console.visit(path)
        console.page.locator('main [aria-busy="true"]').first.wait_for()
        console.page.clock.fast_forward(3_000)
        assert console.page.locator("main .problem").count() == 0
        api.work()
        console.page.wait_for_function(
            "words => new RegExp(words).test(document.querySelector('main').innerText)", arg=words
        )


def test_a_rejected_token_leads_to_the_login_and_back(console: Console, api: Api) -> None:
    page = console.goto("topics")
    api.fail(401, "token ddmq-x has expired")
    page.clock.fast_forward(LONGER_THAN_ANY_PAUSE_MS)
    page.locator("main .problem", has_text="token ddmq-x has expired").wait_for()
    page.get_by_label("Token").fill("another")
    api.work()
    console.press("Log in")
    page.get_by_role("link", name="orders").first.wait_for()


def test_a_stream_that_is_cut_in_the_middle_is_opened_again(console: Console, api: Api) -> None:
    snapshot = {"totals": {}, "tails": {"values": {}}, "findings": [], "versions": {}, "missing": {}}
    whole = f"id: 1\nevent: snapshot\ndata: {json.dumps(snapshot)}\n\n"
    for tail in ('id: 2\nevent: snapshot\ndata: {"tot', "id: 2\nevent: snapshot\ndata: {{{\n\n"):
        api.answer = lambda route, tail=tail: route.fulfill(
            status=200, body=whole + tail, content_type="text/event-stream"
        )
        page = console.goto("")
        page.locator(".ribbon.old", has_text="the stream").wait_for()
        api.work()
        page.clock.fast_forward(LONGER_THAN_ANY_PAUSE_MS)
        page.locator(".ribbon.live").wait_for()


def test_typed_text_outlasts_fresh_data(console: Console, api: Api) -> None:
    page = console.goto("groups")
    page.get_by_label("group or topic contains").type("bil")
    with page.expect_response("**/lag?**"):
        page.clock.fast_forward(LONGER_THAN_ANY_PAUSE_MS)
    page.clock.fast_forward(1_000)
    assert page.get_by_label("group or topic contains").input_value() == "bil"


@pytest.fixture
def restartable(tmp_path: Path) -> Iterator[RealServer]:
    with running(tmp_path) as started:
        started.admin("POST", "topics", "orders", body={"queues": 1})
        yield started


def test_an_open_page_outlasts_a_restart_with_the_text_of_its_form(
    browser: Any, restartable: RealServer
) -> None:
    with Console.open(browser, restartable.ports["admin"]) as console:
        console.quiet = (*console.quiet, FAILED_REQUEST)
        page = console.goto("topics/orders")
        page.locator(".ribbon.live").wait_for()
        console.press("Send…")
        page.get_by_label("body", exact=True).fill("typed before the restart")
        restartable.kill()
        page.locator(".ribbon.old", has_text="does not answer").wait_for()
        page.locator("main.old").wait_for()
        console.confirm("Send")
        page.locator("dialog[open] .problem", has_text="may have been made or not").wait_for()
        restartable.start()
        page.locator(".ribbon.live").wait_for()
        assert page.get_by_label("body", exact=True).input_value() == "typed before the restart"
        console.confirm("Send")
        console.outcome_of_change()
        console.close_dialog()
        page.get_by_role("cell", name="typed before the restart").wait_for()
        assert console.complaints == []
    assert restartable.bodies("orders") == ["typed before the restart"]


@pytest.fixture
def colleague(browser: Any, server: RealServer) -> Iterator[Console]:
    with Console.open(browser, server.ports["admin"]) as opened:
        yield opened
    assert opened.complaints == []


def test_two_operators_park_the_same_keys(console: Console, colleague: Console, server: RealServer) -> None:
    def count_parked() -> int:
        rows = server.admin("GET", "groups", "billing", "keys")
        return sum(row["state"] == "parked" for row in rows)

    until(lambda: {row["state"] for row in server.admin("GET", "groups", "billing", "keys")} <= {"retrying"})
    for each in (console, colleague):
        each.goto("keys?group=billing")
        each.press("Park…")
        each.page.locator("dialog[open] .effect").wait_for()
    console.confirm("Park")
    assert f"{len(FAILING_KEYS)} of {len(FAILING_KEYS)} keys changed" in console.outcome()
    colleague.confirm("Park")
    assert f"0 of {len(FAILING_KEYS)} keys changed" in colleague.outcome()
    colleague.page.locator("dialog[open]", has_text=f"Left as they are: {len(FAILING_KEYS)}").wait_for()
    assert count_parked() == len(FAILING_KEYS)
    colleague.close_dialog()
    colleague.press("Replay…")
    colleague.confirm("Replay")
    colleague.outcome()
    until(lambda: count_parked() == 0)


def test_a_change_that_a_colleague_has_undone_is_not_undone_twice(
    console: Console, colleague: Console, server: RealServer
) -> None:
    console.goto("groups/audit")
    console.press("Pause…")
    console.confirm("Pause")
    console.outcome_of_change()
    colleague.goto("changes")
    colleague.press("Undo…")
    colleague.confirm("Undo")
    colleague.outcome_of_change()
    assert server.admin("GET", "groups", "audit")["subscriptions"][0]["paused"] is False
    console.quiet = (*console.quiet, FAILED_REQUEST)
    console.page.locator("dialog[open]").get_by_role("button", name="Undo").click()
    problem = console.page.locator("dialog[open] .problem")
    problem.wait_for()
    assert "undone" in problem.inner_text()
    assert server.admin("GET", "groups", "audit")["subscriptions"][0]["paused"] is False
