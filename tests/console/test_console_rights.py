"""The console of somebody who may see one topic and one group, and change nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.console.pages import Console
from tests.scenarios.real_server import RealServer, running
from tests.support.rights import AdminClient, Who, write_rights

READER = Who("reader", frozenset({("describe", "orders"), ("browse", "orders"), ("describe", "billing")}))
SECRETS = ("secret", "spies")
SHOWN = {  # by page: what it shows, and whether a right is missing for some of it
    "": ("billing", True),
    "topics": ("orders", False),
    "topics/orders": ("Topic orders", True),
    "groups": ("billing", False),
    "groups/billing": ("billing on orders", True),
    "keys?group=billing": ("No key is blocked", False),
    "keys": ("Blocked keys", True),
    "dead-letters": ("No group has dead letters", False),
    "delays": ("1 message", True),
    "delays?topic=orders": ("1 message", False),
    "retries?group=billing": ("Retries", True),
    "transactions": ("Open transactions", True),
    "system": ("System", True),
    "changes": ("Changes", True),  # the audit log is for administrators
    "search?text=s": ("orders", True),
    "topics/secret": ("secret", True),
    "groups/spies": ("spies", True),
    "dead-letters/spies": ("spies", True),
}
ACTIONS = {
    "topics/orders": ["Send…", "Hold delays…", "Delete…"],
    "groups/billing": ["Pause…", "Unsubscribe…"],
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("rights")
    return folder, write_rights(folder / "conf", [READER])


@pytest.fixture(scope="module")
def server(tokens: tuple[Path, dict[str, str]]) -> Iterator[RealServer]:
    folder, texts = tokens
    with running(folder, folder / "conf") as started:
        root = AdminClient(started.ports["admin"], texts["root"])
        for topic, group in (("orders", "billing"), ("secret", "spies")):
            assert root.request("POST", "topics", topic, body={"queues": 1})[0] == 200
            assert root.request("POST", "groups", group, body={"topics": [topic], "start": "first"})[0] == 200
            for more in ({}, {"delay_ms": 3_600_000}):
                body = {"topic": topic, "body": f"of {topic}", **more}
                assert root.request("POST", "messages", body=body)[0] == 200
        yield started


@pytest.fixture
def console(browser: Any, server: RealServer, tokens: tuple[Path, dict[str, str]]) -> Iterator[Console]:
    with Console.open(browser, server.ports["admin"]) as opened:
        opened.quiet = (*opened.quiet, "status of 403")
        script = f"sessionStorage.setItem('ddmq.console.token', '{tokens[1]['reader']}')"
        opened.page.add_init_script(script)
        yield opened
    assert opened.complaints == []


def test_a_page_shows_what_its_reader_may_see(console: Console) -> None:
    page = console.goto("")
    for path, (words, lacks_right) in SHOWN.items():
        console.visit(path)
        page.locator("main", has_text=words).wait_for()
        page.locator('main [aria-busy="true"]').first.wait_for(state="detached")
        problems = page.locator("main .problem").all_inner_texts()
        assert bool(problems) == lacks_right, (path, problems)
        assert all("lacks the right" in text for text in problems), (path, problems)
        if not any(secret in path for secret in SECRETS):
            text = page.locator("main").inner_text()
            assert not any(secret in text for secret in SECRETS), (path, text)


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_names_the_right_that_is_missing(console: Console, path: str) -> None:
    page = console.goto(path)
    for name in ACTIONS[path]:
        console.press(name)
        page.locator("dialog[open] button[type=submit]").click()
        problem = page.locator("dialog[open] .problem", has_text="Not allowed")
        problem.wait_for()
        assert re.search(rf"lacks the right `\w+ {path.partition('/')[2]}`", problem.inner_text())
        page.keyboard.press("Escape")
        page.locator("dialog[open]").wait_for(state="detached")


def test_without_a_token_there_is_a_login(browser: Any, server: RealServer, tokens: Any) -> None:
    with Console.open(browser, server.ports["admin"]) as console:
        console.quiet = (*console.quiet, "status of 401", "status of 403")
        page = console.goto("topics")
        page.get_by_label("Token").fill("nonsense")
        console.press("Log in")
        page.locator("main .problem", has_text="token").wait_for()
        page.get_by_label("Token").fill(tokens[1]["reader"])
        console.press("Log in")
        page.get_by_role("link", name="orders").first.wait_for()
        assert console.complaints == []
