"""`ddmq message --story` on a real server: where a message's time went."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from ddmq_client import Consumer, Producer
from ddmq_common.names import DELAY_TOPIC, HALF_TOPIC
from tests.service.cli.conftest import Shell
from tests.support.waits import until


class FailsAtFirst:
    """A handler that fails the first `times` messages."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.called: list[float] = []

    @property
    def attempts(self) -> int:
        return len(self.called)

    def __call__(self, message: Any) -> None:
        self.called.append(time.monotonic())
        if self.left:
            self.left -= 1
            raise RuntimeError("not today")


def consuming(shell: Shell, topic: str, handler: Callable[[Any], None]) -> Consumer:
    return Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=handler)


def await_story(shell: Shell, topic: str, is_complete: Callable[[Any], bool], *more: str) -> Any:
    """The story once it says what is wanted: events are in the log a second later."""
    stories: list[Any] = []

    def poll_story() -> bool:
        stories.append(shell.json("message", topic, "--story", *more))
        return is_complete(stories[-1])

    until(poll_story, lambda: stories[-1])
    return stories[-1]


def phases(story: Any, group: str) -> list[str]:
    (one,) = [each for each in story["stories"] if each["group"] == group]
    spans = one["spans"]
    assert all(before["end_ms"] == after["start_ms"] for before, after in pairwise(spans))
    assert sum(span["ms"] for span in spans) == one["whole_ms"]
    if one["ended_ms"] is not None:
        assert spans[-1]["end_ms"] == one["ended_ms"]
    return [span["phase"] for span in spans]


def has_state(story: Any, end: str) -> bool:
    return any(one["end"] == end for one in story["stories"])


def test_delayed_ordered_failed_and_acknowledged(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--retry-intervals-ms", "200",
    )  # fmt: skip
    shell("send", topic, "one", "--key", "k", "--delay", "300ms")
    handler = FailsAtFirst(1)
    with consuming(shell, topic, handler):
        until(lambda: handler.attempts == 2, "it failed once")
        story = await_story(shell, topic, lambda story: has_state(story, "done"), "--key", "k")
    story_phases = phases(story, topic)
    for phase in ("sending", "delayed", "backoff"):
        assert phase in story_phases, story_phases
    assert story_phases.count("leased") == 2
    (one,) = story["stories"]
    assert not [span for span in one["spans"] if span["phase"] == "unknown"]
    leases = [span for span in one["spans"] if span["phase"] == "leased"]
    assert "not today" in leases[0]["why"]
    assert "127.0.0.1" in leases[0]["who"]
    (backoff,) = [span for span in one["spans"] if span["phase"] == "backoff"]
    between_ms = (handler.called[1] - handler.called[0]) * 1000
    assert between_ms >= 200, "the retry was not early"
    assert 0 < backoff["ms"] <= between_ms + 1, "what is told of it begins after the failure"
    (delayed,) = [span for span in one["spans"] if span["phase"] == "delayed"]
    assert delayed["end_ms"] - story["sent_ms"] >= 290, "it was not early"


def test_a_dead_letter(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first",
        "--retry-intervals-ms", "", "--retry-steps", "0",
    )  # fmt: skip
    shell("send", topic, "one", "--key", "k")
    with consuming(shell, topic, FailsAtFirst(9)):
        story = await_story(
            shell,
            topic,
            lambda story: has_state(story, "dead") and "leased" in phases(story, topic),
            "--key",
            "k",
        )
    (one,) = story["stories"]
    assert "failed after 1 delivery: not today" in one["end_why"].replace("RuntimeError: ", "")


def test_behind_another_of_its_key(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    shell(
        "group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
        "--retry-intervals-ms", "300",
    )  # fmt: skip
    shell("send", topic, "one", "two", "--key", "k")
    with consuming(shell, topic, FailsAtFirst(1)):
        story = await_story(shell, topic, lambda story: has_state(story, "done"), "--key", "k")
    (one,) = story["stories"]
    (behind,) = [span for span in one["spans"] if span["phase"] == "key"]
    assert behind["ms"] >= 250
    assert behind["why"] == 'key "k"'


def test_a_story_is_printed_for_people(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "create", topic, "--topic", topic, "--start", "first")
    shell("send", topic, "one", "--key", "k")
    (row,) = shell.json("message", topic)
    for by in (("--id", row["id"]), (topic, "--key", "k"), (topic, "--queue", "0", "--offset", "0")):
        output = shell("message", *by, "--story")
        assert row["id"] in output
        assert "on its way into the log" in output
        assert "? in its queue, not recorded why" in output
        assert "in all: now: not yet" in output
        assert "that are sent from now on: `ddmq topic set" in shell.error.replace("\n", " ")
    assert (
        shell.json("message", topic, "--key", "k", "--story", "--group", topic)["stories"][0]["group"]
        == topic
    )


def test_rolled_back(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    address = f"127.0.0.1:{shell.server.ports['producer']}"
    with Producer(address, producer_group=topic) as producer, producer.transaction() as tx:
        tx.send(topic, b"never")
        tx.rollback()
    half = shell.json("message", HALF_TOPIC)[-1]
    assert "in all: rolled back with its transaction" in shell("message", "--id", half["id"], "--story")


def test_cancelled_and_moved(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    address = f"127.0.0.1:{shell.server.ports['producer']}"
    with Producer(address) as producer:
        sent = [producer.send(topic, body, delay=timedelta(hours=1)) for body in (b"first", b"second")]
        producer.cancel(sent[0])
        producer.reschedule(sent[1], delay=timedelta(milliseconds=1))
        until(lambda: shell.server.messages(topic), "the second is fired")
    ids = {row["body"]: row["id"] for row in shell.json("message", DELAY_TOPIC, "--count", "1000")}
    assert "in all: cancelled before it was due" in shell("message", "--id", ids["first"], "--story")
    moved = shell.json("message", "--id", ids["second"], "--story")
    assert moved["offset"] == 0
    assert "delayed" in phases(shell.json("message", "--id", ids["first"], "--story"), "")


def test_a_story_is_shown_for_a_queue_and_an_offset(shell: Shell, topic: str) -> None:
    """On every engine: what is traced is found where nothing is found by an id."""
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    shell("group", "create", topic, "--topic", topic, "--start", "first")
    shell("send", topic, "one", "--key", "k")
    with consuming(shell, topic, FailsAtFirst(0)):
        offset = str(until(lambda: shell.json("message", topic, "--count", "1"))[0]["offset"])
        story = await_story(
            shell, topic, lambda story: has_state(story, "done"), "--queue", "0", "--offset", offset
        )
    assert phases(story, topic)[-1] == "leased"
    assert story["trace_events"] >= 5


def test_a_story_continues_after_an_offset_reset(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    shell("group", "create", topic, "--topic", topic, "--start", "first")
    shell("send", topic, "one", "--key", "k")
    offset = str(until(lambda: shell.json("message", topic, "--count", "1"))[0]["offset"])
    position = ("--queue", "0", "--offset", offset)
    with consuming(shell, topic, FailsAtFirst(0)):
        await_story(shell, topic, lambda story: has_state(story, "done"), *position)
    shell("offset", "reset", topic, "--topic", topic, "--to", "first", "--yes")
    story = await_story(shell, topic, lambda story: not has_state(story, "done"), *position)
    (one,) = story["stories"]
    assert one["end"] is None
    story_phases = phases(story, topic)
    assert story_phases.index("leased") < story_phases.index("done") < len(story_phases) - 1, (
        "it waits again, whatever for"
    )
    with consuming(shell, topic, FailsAtFirst(0)):
        repeated_story = await_story(
            shell, topic, lambda story: phases(story, topic).count("leased") == 2, *position
        )
    assert "done" in phases(repeated_story, topic)


def test_switched_off_it_traces_nothing(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1", "--trace-one-in", "1")
    assert shell.json("topic", "show", topic)["trace_one_in"] == 1
    shell("topic", "set", topic, "--trace-one-in", "0")
    assert shell.json("topic", "show", topic)["trace_one_in"] == 0
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--trace-one-in", "1000")
    shell("group", "set", topic, "--topic", topic, "--trace-one-in", "0")
    shell("send", topic, "one", "--key", "k")
    handler = FailsAtFirst(0)
    with consuming(shell, topic, handler):
        until(lambda: handler.attempts, "it is consumed")
    (row,) = shell.json("message", topic)
    position = ("--queue", str(row["queue"]), "--offset", str(row["offset"]))
    assert shell.json("message", topic, *position, "--story")["trace_events"] == 0


@pytest.mark.parametrize("value", ["-1", "1000001", "x"])
def test_how_many_are_traced_is_bounded(shell: Shell, topic: str, value: str) -> None:
    shell("topic", "create", topic, "--trace-one-in", value, code=2)
    status, answer = shell.server.request("POST", f"/topics/{topic}", {"trace_one_in": -5})
    assert status == 400
    assert "allowed: 0 (none is traced) to 1000000" in answer["error"]
    status, answer = shell.server.request("POST", "/topics/%25DELAY", {"trace_one_in": 1, "create": False})
    assert status == 400
    assert "belongs to the system" in answer["error"]
