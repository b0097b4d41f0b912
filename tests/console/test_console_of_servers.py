"""`ddmq console` over several servers: one page, a switch, and each action at the server that is shown."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.console.obstacles import find_obstacles
from tests.console.pages import Console
from tests.scenarios.real_server import RealServer, ddmq_command, running
from tests.support.ports import port_of, reserved
from tests.support.rights import Who, write_rights
from tests.support.waits import until

PATIENCE_S = 30


class ServedConsole(NamedTuple):
    """A running `ddmq console`: its port and its login code."""

    port: int
    code: str


@contextmanager
def served(*arguments: str, **environment: str) -> Iterator[ServedConsole]:
    """Run `ddmq console` on a free port."""
    with reserved() as held:
        port = port_of(held)
        command = ddmq_command("console", *arguments, "--listen", f"127.0.0.1:{port}")
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline() == f"ready console=http://127.0.0.1:{port}/\n"
            code = process.stderr.readline().split()[-1] if "DDMQ_TOKEN" in environment else ""
            yield ServedConsole(port, code)
        finally:
            process.kill()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("second"), None) as started:
        started.admin("POST", "topics", "only-there", body={"queues": 1})
        yield started


@pytest.fixture(scope="module")
def both(server: RealServer, second: RealServer) -> Iterator[ServedConsole]:
    with served("--admin", f"{server.address('admin')},{second.address('admin')}") as started:
        yield started


@pytest.fixture
def pages(browser: Any, both: ServedConsole) -> Iterator[Console]:
    with Console.open(browser, both.port) as opened:
        yield opened
    assert opened.complaints == []


def choose(pages: Console, server: RealServer) -> None:
    """Choose a server in the switch at the top."""
    pages.page.get_by_label("server").select_option(server.address("admin"))
    pages.page.wait_for_function(
        "port => location.pathname.startsWith('/servers/') && location.pathname.split('/')[2].endsWith(port)",
        arg=str(server.ports["admin"]),
    )
    pages.page.locator("main h1").first.wait_for()


def test_the_switch_shows_the_same_page_of_the_other_server(
    pages: Console, server: RealServer, second: RealServer
) -> None:
    page = pages.goto("topics?text=o")
    page.get_by_role("link", name="orders", exact=True).wait_for()
    choose(pages, second)
    page.get_by_role("link", name="only-there").wait_for()
    assert f"{second.ports['admin']}/console/topics?text=o" in page.url
    assert page.get_by_role("link", name="orders", exact=True).count() == 0
    page.locator(".ribbon.live").wait_for()


def test_the_switch_says_which_server_needs_attention(
    pages: Console, server: RealServer, second: RealServer
) -> None:
    pages.goto("")
    options = pages.page.get_by_label("server").locator("option")
    until(lambda: options.count() == 2)
    until(
        lambda: (
            "needs attention" in options.nth(0).inner_text()
            or "need attention" in options.nth(0).inner_text()
        )
    )
    choose(pages, second)
    pages.page.get_by_text("▲ 1 other").wait_for()


def test_a_link_from_an_alert_leads_to_the_first_server_and_findings_stay_there(
    pages: Console, server: RealServer
) -> None:
    page = pages.goto("keys?group=billing")
    assert f"{server.ports['admin']}/console/keys?group=billing" in page.url
    page.get_by_text("ValueError").first.wait_for()
    pages.goto("")
    page.locator(".findings .actions a").first.click()
    page.wait_for_function(
        "port => location.pathname.split('/')[2].endsWith(port) && location.pathname.split('/')[4]",
        arg=str(server.ports["admin"]),
    )


def test_an_action_changes_the_server_that_is_shown(
    pages: Console, server: RealServer, second: RealServer
) -> None:
    server.admin("POST", "topics", "only-there", body={"queues": 1})
    pages.goto("topics")
    choose(pages, second)
    pages.page.get_by_role("link", name="only-there").click()
    pages.press("Send…")
    pages.page.get_by_label("body", exact=True).fill("sent by hand")
    pages.confirm("Send")
    pages.outcome_of_change()
    numbers = [each.admin("GET", "topics", "only-there")["messages"] for each in (server, second)]
    assert numbers == [0, 1]


def test_the_switch_fits_and_is_no_obstacle(browser: Any, both: ServedConsole) -> None:
    with Console.open(browser, both.port, bypass_csp=True) as console:
        page = console.goto("topics")
        until(lambda: page.get_by_label("server").locator("option").count() == 2)
        assert find_obstacles(page) == []


def test_a_login_is_used_for_the_browser_that_states_the_code(browser: Any, tmp_path: Path) -> None:
    tokens = write_rights(tmp_path / "conf", [Who("app", frozenset())])
    secured = RealServer(tmp_path, tmp_path / "conf")
    try:
        address = secured.start().address("admin")
        with served("--admin", address, DDMQ_TOKEN=tokens["root"]) as started:
            assert started.code
            assert started.code not in tokens["root"]
            with Console.open(browser, started.port) as console:
                page = console.goto("access")
                page.get_by_text("needs the login code").wait_for()
                page.get_by_label("Token").fill(started.code)
                page.get_by_role("button", name="Log in").click()
                page.get_by_role("heading", name="Identities").wait_for()
                assert tokens["root"] not in page.content()
                assert "401" in "".join(console.complaints)
    finally:
        secured.end()


def test_a_server_that_ends_is_shown_as_silent(browser: Any, tmp_path: Path, server: RealServer) -> None:
    with running(tmp_path, None) as brief:
        address = brief.address("admin")
        with (
            served("--admin", f"{server.address('admin')},{address}") as started,
            Console.open(browser, started.port) as console,
        ):
            page = console.goto("topics")
            options = page.get_by_label("server").locator("option")
            until(lambda: options.count() == 2 and "✓" in options.nth(1).inner_text())
            brief.kill()
            until(lambda: "no answer" in options.nth(1).inner_text())
            page.get_by_text("▲ 1 other").wait_for()
