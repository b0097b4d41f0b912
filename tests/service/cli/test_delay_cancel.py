"""`ddmq delay cancel --topic`: it asks, and chooses by time and key, exactly and page by page."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ddmq_client import CancelOutcome, Producer
from tests.service.cli.conftest import Shell
from tests.support.waits import until


@pytest.fixture
def waiting(shell: Shell, topic: str) -> str:
    """Six messages, due in one to six hours, of keys a and b in turn."""
    for hours in range(1, 7):
        shell("delay", "add", topic, f"in-{hours}", "--delay", f"{hours}h", "--key", "ab"[hours % 2])
    until(lambda: shell.json("delay", "count", topic)["count"] == 6, "all wait")
    return topic


def previews(shell: Shell, topic: str, *options: str) -> list[str]:
    return [row["preview"] for row in shell.json("delay", "list", topic, *options)["messages"]]


def test_a_topic_is_not_cancelled_without_a_yes(
    shell: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    error = shell.error_of("delay", "cancel", "--topic", waiting, code=1)
    assert f"Cancel all 6 that wait for topic {waiting}? What is cancelled is never delivered." in error
    assert "not confirmed, nothing was done; --yes does not ask" in error
    assert shell("delay", "count", waiting).strip() == "6"


def test_the_prompt_states_how_many_messages_of_a_topic_are_cancelled(
    shell: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []
    monkeypatch.setattr("ddmq.cli.messages.delay_changes.confirm", questions.append)
    assert shell("delay", "cancel", "--topic", waiting, "--key", "a", "--to", "+3h") == "1 cancelled\n"
    (question,) = questions
    assert question.startswith(
        f"Cancel the only one that waits for topic {waiting} with key 'a', due before "
    )
    assert previews(shell, waiting) == ["in-1", "in-3", "in-4", "in-5", "in-6"]


def test_there_is_no_prompt_when_nothing_matches(
    shell: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddmq.cli.messages.delay_changes.confirm", pytest.fail)
    assert shell("delay", "cancel", "--topic", waiting, "--key", "c") == "0 cancelled\n"
    assert shell("delay", "count", waiting).strip() == "6"


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ((), [1, 2, 3, 4, 5, 6]),
        (("--key", "b"), [1, 3, 5]),
        (("--from", "+150m"), [3, 4, 5, 6]),
        (("--from", "+150m", "--to", "+270m"), [3, 4]),
        (("--from", "+150m", "--to", "+270m", "--key", "a"), [4]),
    ],
)
def test_what_a_dry_run_counts_and_lists_is_what_is_cancelled(
    shell: Shell, waiting: str, options: tuple[str, ...], chosen: list[int]
) -> None:
    named = [f"in-{hours}" for hours in chosen]
    rest = [f"in-{hours}" for hours in range(1, 7) if hours not in chosen]
    assert previews(shell, waiting, *options) == named
    assert shell("delay", "count", waiting, *options).strip() == str(len(chosen))
    dry = ("delay", "cancel", "--topic", waiting, *options, "--dry-run")
    output = shell(*dry)
    assert [line.split()[-1] for line in output.splitlines()[1:-1]] == named
    assert output.splitlines()[-1].startswith(f"would cancel {len(chosen)} for topic {waiting}")
    answer = shell.json(*dry)
    assert (answer["would_cancel"], answer["dry_run"]) == (len(chosen), True)
    assert shell("delay", "count", waiting).strip() == "6", "nothing is cancelled by a dry run"
    answer = shell.json("delay", "cancel", "--topic", waiting, *options, "--yes")
    assert (answer["cancelled"], answer["not_cancelled"]) == (len(chosen), 0)
    assert previews(shell, waiting) == rest


def test_many_are_walked_page_by_page_and_counted_exactly(
    shell: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddmq.cli.messages.waiting.PAGE", 2)
    monkeypatch.setattr("ddmq.cli.messages.waiting.COUNTED", 2)
    assert shell("delay", "count", waiting, "--from", "+30m").strip() == "6"
    assert shell("delay", "count", waiting, "--key", "a").strip() == "3"
    assert shell.json("delay", "cancel", "--topic", waiting, "--dry-run")["would_cancel"] == 6
    assert shell("delay", "cancel", "--topic", waiting, "--yes") == "6 cancelled\n"
    assert "2 cancelled so far" in shell.error
    assert shell("delay", "count", waiting).strip() == "0"


def test_what_is_not_cancelled_is_counted_by_the_reason(
    shell: Shell, waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them fire between the look at them and the cancel."""
    cancelled = Producer.cancel
    late = iter(range(6))

    def cancel_late(client: Producer, delay_id: str, **options: Any) -> CancelOutcome:
        if next(late) % 2:
            client.fire_now(delay_id)
        return cancelled(client, delay_id, **options)

    monkeypatch.setattr(Producer, "cancel", cancel_late)
    assert shell("delay", "cancel", "--topic", waiting, "--yes", code=1) == (
        "3 cancelled, 3 not: 3 already fired\n"
    )
