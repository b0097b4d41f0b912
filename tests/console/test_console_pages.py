"""Every page of the console in a real browser: what it shows, and that nothing breaks out of its place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.obstacles import find_obstacles
from tests.console.pages import COMMON_PAGES, PAGES, Console
from tests.console.populated import HOSTILE_TOPIC, fill_in
from tests.scenarios.real_server import RealServer
from tests.support.variants import mark_others_long


@pytest.mark.parametrize("path", PAGES)
def test_a_page_shows_what_the_server_has(console: Console, server: RealServer, path: str) -> None:
    page = console.goto(fill_in(server, path))
    page.wait_for_function(
        "words => new RegExp(words).test(document.querySelector('main').innerText)", arg=PAGES[path]
    )


def test_text_from_outside_stays_text(console: Console) -> None:
    page = console.goto(f"topics/{HOSTILE_TOPIC}")
    page.get_by_text("⟨U+202E⟩").first.wait_for()
    assert page.locator("main script, main b:has-text('alert')").count() == 0


def test_the_bare_address_leads_to_the_console(console: Console, server: RealServer) -> None:
    console.page.goto(f"http://127.0.0.1:{server.ports['admin']}/")
    console.page.locator("main h1").wait_for()
    assert console.page.url.endswith("/console/")


def test_back_returns_to_the_filter_that_was_set(console: Console) -> None:
    page = console.goto("dead-letters/mailer?reason=failed")
    page.get_by_role("link", name="Topics").click()
    page.get_by_role("heading", name="Topics").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Dead letters of").wait_for()
    assert "reason=failed" in page.url


def test_pages_are_reached_by_keys_alone(console: Console) -> None:
    page = console.goto("")
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.get_by_role("heading", name="Blocked keys").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Search: orders").wait_for()


def test_the_ribbon_says_that_the_numbers_are_live(console: Console) -> None:
    console.goto("")
    console.page.locator(".ribbon.live").wait_for()


@pytest.mark.parametrize("path", mark_others_long(PAGES, COMMON_PAGES))
def test_a_page_fits_the_window_and_has_no_obstacle_for_assistive_technology(
    browser: Any, server: RealServer, path: str
) -> None:
    with Console.open(browser, server.ports["admin"], bypass_csp=True) as console:
        page = console.goto(fill_in(server, path))
        page.wait_for_function("document.querySelector('main').innerText.length > 20")
        assert find_obstacles(page) == []
