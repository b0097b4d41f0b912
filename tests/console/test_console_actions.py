"""Actions of the console that are no repair of an incident (test_console_incidents has these)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.console.pages import Console
from tests.console.populated import fill_in
from tests.console.shown_commands import check_command
from tests.scenarios.real_server import RealServer

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
