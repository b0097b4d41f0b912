"""Incidents resolved in the console: from the link of the alert to the end in at most three clicks."""

from __future__ import annotations

from typing import Any

from tests.console.pages import Console
from tests.console.populated import FAILING_KEYS
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

WRONG_DELAYS = 10


def parked_keys(server: RealServer) -> set[str]:
    rows = server.admin("GET", "groups", "billing", "keys")
    return {row["key"] for row in rows if row["state"] == "parked"}


def test_failing_keys_are_parked_and_replayed(console: Console, server: RealServer) -> None:
    console.goto("keys?group=billing")
    console.press("Park…")
    console.confirm("Park")
    assert "changed" in console.outcome()
    until(lambda: len(parked_keys(server)) == len(FAILING_KEYS))
    console.close_dialog()
    console.goto("keys?group=billing&state=parked")
    console.press("Replay…")
    console.confirm("Replay")
    assert "changed" in console.outcome()
    until(lambda: not parked_keys(server))


def test_dead_letters_with_one_error_are_resent_to_their_group(console: Console, server: RealServer) -> None:
    page = console.goto("dead-letters/mailer")
    page.locator(".facet", has_text="KeyError").first.click()
    console.press("Resend to mailer…")
    dialog = page.locator("dialog[open]")
    dialog.get_by_text("ddmq ").first.wait_for()
    console.confirm("Resend")
    assert "changed" in console.outcome()


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
