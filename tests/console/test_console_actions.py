"""Actions of the console that are no repair of an incident (test_console_incidents has these)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.obstacles import find_obstacles
from tests.console.pages import Console
from tests.console.populated import fill_in
from tests.console.shown_commands import check_command
from tests.scenarios.real_server import RealServer
from tests.support.variants import mark_others_long

WRONG_DELAYS = 10
DIALOGS = {
    "topics": ["Create a topic…"],
    "topics/orders": ["Send…", "Hold delays…", "Close to sends…", "Delete…"],
    "groups/billing": ["Pause…", "Reset offsets…", "Unsubscribe…"],
    "keys?group=billing": ["Park…", "Skip…", "Replay…"],
    "dead-letters/mailer": ["Resend to mailer…", "Resend to all groups…", "Purge…"],
    "delays?topic=mail": ["Hold mail…", "Fire now…", "Release…", "Cancel…"],
    "delays/{delay}": ["Hold…", "Move…", "Fire now…", "Cancel…"],
    "transactions/{transaction}": ["Commit…", "Roll back…"],
    "system": ["Clean now…", "Close mail to sends…"],
}

EXAMINED = {  # one of each kind
    "topics": ["Create a topic…"],
    "topics/orders": ["Send…", "Delete…"],
    "groups/billing": ["Reset offsets…"],
    "keys?group=billing": ["Skip…"],
    "delays?topic=mail": ["Cancel…"],
    "system": ["Clean now…"],
}
DIALOG = "dialog[open]"


def test_delays_of_a_topic_are_held_then_cancelled(console: Console, server: RealServer) -> None:
    server.admin("POST", "topics", "news", body={"queues": 1})
    for number in range(WRONG_DELAYS):
        body = {"topic": "news", "body": "wrong", "delay_ms": (number + 1) * 600_000}
        server.admin("POST", "messages", body=body)
    console.goto("delays?topic=news")
    console.press("Hold news…")
    console.confirm("Hold")
    console.outcome_of_change()
    assert server.admin("GET", "topics", "news")["hold_delays"] is True
    console.close_dialog()
    console.press("Cancel…")
    console.confirm("Cancel")
    assert f"{WRONG_DELAYS} of {WRONG_DELAYS}" in console.outcome()
    console.close_dialog()
    console.press("Release news…")
    console.confirm("Release")
    console.outcome_of_change()
    assert server.admin("GET", "topics", "news")["hold_delays"] is False


def test_a_group_is_paused_and_resumed(console: Console, server: RealServer) -> None:
    def is_paused() -> Any:
        return server.admin("GET", "groups", "audit")["subscriptions"][0]["paused"]

    console.goto("groups/audit")
    console.press("Pause…")
    console.confirm("Pause")
    console.outcome_of_change()
    assert is_paused() is True
    console.close_dialog()
    console.press("Resume…")
    console.confirm("Resume")
    console.outcome_of_change()
    assert is_paused() is False


def test_a_message_is_sent_from_the_page_of_its_topic(console: Console, server: RealServer) -> None:
    page = console.goto("topics/orders")
    before = server.admin("GET", "topics", "orders")["messages"]
    console.press("Send…")
    page.get_by_label("body", exact=True).fill("sent by hand")
    console.confirm("Send")
    console.outcome_of_change()
    assert server.admin("GET", "topics", "orders")["messages"] == before + 1


def test_a_rejected_change_shows_the_sentence_of_the_server(console: Console) -> None:
    page = console.goto("groups/audit")
    console.press("Reset offsets…")
    page.get_by_label("to: first").fill("nonsense")
    console.confirm("Reset")
    page.locator("dialog[open] .problem", has_text="nonsense").wait_for()
    assert "400" in console.complaints.pop()


@pytest.mark.parametrize("path", DIALOGS)
def test_a_dialog_shows_a_command_that_ddmq_has(console: Console, server: RealServer, path: str) -> None:
    console.goto(fill_in(server, path))
    for name in DIALOGS[path]:
        console.press(name)
        command = console.page.locator("dialog[open] .command code")
        command.wait_for()
        check_command(command.inner_text())
        console.page.keyboard.press("Escape")
        console.page.locator("dialog[open]").wait_for(state="detached")


def open_dialog(page: Any, name: str) -> Any:
    """Open a dialog that an earlier one does not hide, and wait until it is complete."""
    page.get_by_role("button", name=name).first.click()
    page.locator(f"{DIALOG} .command code").wait_for()
    page.wait_for_function("!document.getAnimations().length")


@pytest.mark.parametrize("path", mark_others_long(EXAMINED, ("topics/orders", "delays?topic=mail")))
def test_a_dialog_fits_and_has_no_obstacle(browser: Any, server: RealServer, path: str) -> None:
    with Console.open(browser, server.ports["admin"], bypass_csp=True) as console:
        page = console.goto(path)
        for name in EXAMINED[path]:
            open_dialog(page, name)
            assert find_obstacles(page, part=DIALOG) == [], name
            page.keyboard.press("Escape")
            page.locator(DIALOG).wait_for(state="detached")


def test_the_dialog_after_a_change_or_a_rejection_has_no_obstacle(browser: Any, server: RealServer) -> None:
    with Console.open(browser, server.ports["admin"], bypass_csp=True) as console:
        page = console.goto("groups/audit")
        open_dialog(page, "Reset offsets…")
        page.get_by_label("to: first").fill("nonsense")
        console.confirm("Reset")
        page.locator(f"{DIALOG} .problem").wait_for()
        assert find_obstacles(page, part=DIALOG) == []
        page.keyboard.press("Escape")
        page.locator(DIALOG).wait_for(state="detached")
        page.keyboard.press("?")
        page.locator("#help[open]").wait_for()
        page.wait_for_function("!document.getAnimations().length")
        assert find_obstacles(page, part=DIALOG) == []
        page.keyboard.press("Escape")
        page = console.goto("keys?group=hostile-keys")
        open_dialog(page, "Park…")
        console.confirm("Park")
        console.outcome()
        assert find_obstacles(page, part=DIALOG) == []
        console.close_dialog()
        open_dialog(page, "Replay…")
        console.confirm("Replay")
        console.outcome()
