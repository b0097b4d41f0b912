"""Directories that earlier releases wrote, opened by today's server: everything is there, and goes on.

`format-1` was written by 0.1.0, `format-2` by the last commit before 24 November 2026; `-killed`: by a server
that was killed, the others by one that was stopped. make.py made them, story.py says what is in them. The
server's clock starts a minute after the recording and is moved from there.
"""

from __future__ import annotations

import json
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, DelayStatus, FetchConsumer, Message, Producer
from ddmq_common.metrics.samples import decode, parse
from tests.crash.clock_steps import SteppedServer
from tests.crash.stepped_process import SteppedClock
from tests.recorded import story
from tests.scenarios.real_server import write_config
from tests.support.waits import until

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"))
AFTER = timedelta(minutes=1)  # the recording, when the server is started
ALL = set(range(story.ORDERS))
OF_KEY = {story.key(number): list(range(number, story.ORDERS, story.KEYS)) for number in range(story.KEYS)}


class Recorded:
    """A recorded directory and today's server over it."""

    def __init__(self, archive: Path, folder: Path) -> None:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        self.facts: dict[str, Any] = json.loads((folder / "recorded.json").read_text())
        self.clock = SteppedClock(folder / "clock")
        self.go_to(AFTER)
        config = write_config(folder / "conf", **story.CONFIG)
        self.samples = {path.name for path in folder.glob("data/metrics/**/*.jsonl")}
        self.server = SteppedServer(folder, folder / "clock", config=config)

    def go_to(self, after: timedelta) -> None:
        """Put the clock so long after the recording."""
        then_ms = self.facts["wall_ms"] + after // timedelta(milliseconds=1)
        self.clock.step(then_ms - time.time_ns() // 1_000_000)

    def consumer(self, group: str, topic: str) -> Consumer:
        address = f"127.0.0.1:{self.server.ports['consumer']}"
        return Consumer(address, group, topic, linger_ms=50, max_batch=50)

    def producer(self) -> Producer:
        return Producer(f"127.0.0.1:{self.server.ports['producer']}", timeout_ms=20_000)

    def take(self, group: str, topic: str, count: int) -> list[Message]:
        """So many messages at least, all of which are acknowledged, with those that come with them."""
        messages: list[Message] = []
        what = f"{count} messages of {topic} for {group}"
        with self.consumer(group, topic) as consumer:
            until(lambda: messages.extend(consumer.pull(50, timeout_ms=100)) or len(messages) >= count, what)
            messages += consumer.pull(50, timeout_ms=100)  # one too many would be there by now
            for message in messages:
                message.ack()
        return messages

    def orders(self, group: str, count: int) -> list[int]:
        """The numbers of those messages."""
        return [int(message.properties["n"]) for message in self.take(group, "orders", count)]

    def restart(self) -> None:
        """By kill -9."""
        self.server.kill()
        self.server.start()


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.partition(".")[0])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """One server for all tests of an archive: the first look, later ones go on, with groups of their own."""
    recorded = Recorded(request.param, tmp_path_factory.mktemp("recorded"))
    try:
        recorded.server.start()
        yield recorded
    finally:
        recorded.server.end()


# --- what is there


def test_there_are_recordings() -> None:
    names = {path.name.partition(".")[0] for path in ARCHIVES}
    assert names == {"format-1", "format-1-killed", "format-2", "format-2-killed"}


def test_the_log_is_complete(recorded: Recorded) -> None:
    assert "0 damaged ranges" in recorded.server.log
    loud = [line for line in recorded.server.log.splitlines() if " WARNING " in line or " ERROR " in line]
    expected = ("open files are limited", "repairing the index of segment")  # the latter after a kill
    assert [line for line in loud if not any(words in line for words in expected)] == []
    assert json.loads((recorded.server.data_dir / "format").read_text().splitlines()[0])["format"] == 2
    assert recorded.server.request("GET", "/ready")[0] == 200


def test_topics_with_settings_and_every_message(recorded: Recorded) -> None:
    server = recorded.server
    assert {row["topic"] for row in server.admin("GET", "topics")} == set(story.TOPICS)
    for topic, settings in story.TOPICS.items():
        assert server.admin("GET", "topics", topic).items() >= settings.items()
    for number in range(story.ORDERS):
        expected = story.order(number)
        _, rows = server.request(
            "GET", f"/topics/orders/messages?queue={number % 3}&offset={number // 3}&count=1"
        )
        [by_offset] = rows
        assert by_offset["body"].encode() == expected["body"]
        assert (by_offset["key"], by_offset["tags"]) == (expected["key"], expected["tags"])
        assert by_offset["properties"].items() >= expected["properties"].items()
        message_id = recorded.facts["messages"][f"order {number}"]
        _, rows = server.request("GET", f"/topics/orders/messages?id={message_id}")
        assert [(row["queue"], row["offset"]) for row in rows] == [(number % 3, number // 3)]
    _, rows = server.request("GET", f"/topics/orders/messages?key={story.PARKED}")
    assert {int(row["properties"]["n"]) for row in rows} == set(OF_KEY[story.PARKED])


def test_settings_of_groups(recorded: Recorded) -> None:
    for group, settings in story.GROUPS.items():
        answer = recorded.server.admin("GET", "groups", group)
        [subscription] = [each for each in answer["subscriptions"] if each["topic"] == "orders"]
        assert subscription["settings"].items() >= settings.items()
        assert set(subscription["set_here"]) == {*settings, "start"}


def test_where_groups_stand(recorded: Recorded) -> None:
    def committed(group: str) -> list[int]:
        rows = recorded.server.admin("GET", "groups", group, "offsets")
        return [row["committed"] for row in rows]

    assert committed("holes") == [2, 2, 2]
    assert committed("loader") == [story.FETCHED] * 3
    assert committed("spent") == [story.ORDERS // 3] * 3


def test_a_parked_key(recorded: Recorded) -> None:
    rows = recorded.server.admin("GET", "groups", "ordered", "keys")
    states = {row["key"]: row["state"] for row in rows}
    assert states.pop(f'"{story.PARKED}"') == "parked"
    assert set(states.values()) <= {"ready", "retrying"}, "the heads of the other keys wait for a pull"


def test_dead_letters(recorded: Recorded) -> None:
    [letter] = recorded.server.admin("GET", "dlq", "spent")["shown"]
    assert (letter["topic"], letter["topic_queue"], letter["topic_offset"]) == (
        "orders", story.FAILED % 3, story.FAILED // 3,
    )  # fmt: skip
    assert (letter["reason"], letter["error"]) == ("failed", story.REASON)


def test_delayed_messages_wait_for_their_due_time(recorded: Recorded) -> None:
    server, ids = recorded.server, recorded.facts["delays"]

    def state(name: str) -> dict[str, Any]:
        answer: dict[str, Any] = server.admin("GET", "delay", "messages", ids[name])
        return answer

    until(lambda: all(shard["fires"] for shard in server.admin("GET", "delay")["shards"]), "shards work")
    assert {name: state(name)["state"] for name in ids if ids[name]} == (
        dict.fromkeys(story.WAITING, "pending") | {"cancelled": "cancelled", "fired": "fired"}
    )
    assert server.admin("GET", "delay", "count")["count"] == len(story.WAITING)
    for name, after in (("once", timedelta(hours=1)), ("moved", story.MOVED_TO)):
        due = datetime.fromtimestamp(state(name)["due_ms"] / 1_000, UTC)
        recorded_at = datetime.fromtimestamp(recorded.facts["wall_ms"] / 1_000, UTC)
        assert recorded_at + after <= due < recorded_at + after + AFTER


def test_samples(recorded: Recorded) -> None:
    files = list(recorded.server.data_dir.glob("metrics/**/*.jsonl"))
    assert {path.name for path in files} > recorded.samples
    sends = Counter[str]()
    for path in files:
        assert parse(path.name)
        for line in map(decode, path.read_bytes().splitlines()):
            if line.metric == "ddmq_sends_total" and line.labels["code"] == "0":
                sends[line.labels["topic"]] += line.value  # type: ignore[assignment]
    assert sends["orders"] == story.ORDERS


# --- what goes on


def test_large_packed_and_binary_bodies_byte_by_byte(recorded: Recorded) -> None:
    recorded.server.admin("POST", "groups", "new", body={"topics": ["large"], "start": "first"})
    messages = recorded.take("new", "large", len(story.LARGE))
    assert {message.key: message.body for message in messages} == story.LARGE
    assert [message.message_id for message in messages] == [
        recorded.facts["messages"][key] for key in story.LARGE
    ]


def test_order_continues_and_a_parked_key_waits(recorded: Recorded) -> None:
    expected = {key: [n for n in numbers if n not in story.ORDERED_ACKED] for key, numbers in OF_KEY.items()}
    parked = expected.pop(story.PARKED)
    rest = sum(map(len, expected.values()))
    received: list[int] = []
    until(lambda: received.extend(recorded.orders("ordered", 1)) or len(received) >= rest, "all other keys")
    for key, numbers in expected.items():
        assert [n for n in received if story.key(n) == key] == numbers
    assert len(received) == rest
    body = {"action": "replay", "key": story.PARKED}
    recorded.server.admin("POST", "groups", "ordered", "keys", body=body)
    received.clear()
    until(
        lambda: received.extend(recorded.orders("ordered", 1)) or len(received) >= len(parked),
        "the parked key",
    )
    assert received == parked


def test_a_retry_comes_when_its_step_is_over(recorded: Recorded) -> None:
    [redelivered] = recorded.take("failing", "orders", 1)
    assert (redelivered.body, redelivered.attempt) == (b"order %d" % story.FAILED, 2)


def test_delayed_messages_fire_at_their_due_time(recorded: Recorded) -> None:
    ids = recorded.facts["delays"]

    def come(count: int) -> list[str]:
        return sorted(message.body.decode() for message in recorded.take("new", "reminders", count))

    recorded.server.admin("POST", "groups", "new", body={"topics": ["reminders"], "start": "first"})
    assert come(1) == ["fired"]
    recorded.go_to(timedelta(minutes=12))
    assert come(1) == ["series"]
    recorded.go_to(timedelta(minutes=35))
    assert come(3) == ["on a level", "series", "series"]
    recorded.restart()
    recorded.go_to(timedelta(minutes=45))
    assert come(1) == ["moved"]
    recorded.go_to(timedelta(minutes=65))
    assert come(1) == ["once"]
    recorded.go_to(timedelta(hours=25))
    assert come(1) == ["cron"]
    with recorded.producer() as producer:
        assert producer.cancel(ids["far"]).status is DelayStatus.CANCELLED
        assert producer.cancel(ids["once"]).status is DelayStatus.FIRED
        assert producer.cancel(ids["cancelled"]).status is DelayStatus.CANCELLED


def test_finished_messages_stay_finished_and_the_rest_is_delivered(recorded: Recorded) -> None:
    acked = {3 * offset + queue for offset in story.HOLES_ACKED for queue in range(3)}
    assert sorted(recorded.orders("holes", len(ALL - acked))) == sorted(ALL - acked)
    assert sorted(recorded.orders("tagged", story.ORDERS // 2)) == [n for n in ALL if n % 2]
    address = f"127.0.0.1:{recorded.server.ports['consumer']}"
    fetched: list[tuple[str, int]] = []
    with FetchConsumer(address, "loader") as consumer:
        until(
            lambda: (
                fetched.extend(
                    (batch.queue, m.offset) for batch in consumer.fetch(50) for m in batch.messages
                )
                or len(fetched) >= 9
            ),
            "what was not fetched",
        )
        assert consumer.ack()
    assert sorted(offset for _, offset in fetched) == sorted([5, 6, 7] * 3)
    recorded.restart()
    with recorded.producer() as producer:
        producer.send("orders", b"new", tags="red", properties={"n": "99"}, key="new")
    assert recorded.orders("holes", 1) == [99]
    assert recorded.orders("tagged", 1) == [99]
    stands = recorded.server.admin("GET", "groups", "loader", "offsets")
    assert [row["committed"] for row in stands] == [8] * 3


def test_a_dead_letter_is_resent(recorded: Recorded) -> None:
    recorded.server.admin("POST", "dlq", "spent", "resend", body={"all": True})
    received: list[Message] = []

    def pull_resent() -> list[Message]:
        received.extend(recorded.take("spent", "orders", 1))
        return [message for message in received if message.body == b"order %d" % story.FAILED]

    [message] = until(pull_resent, "the letter")
    assert message.attempt == 1
    assert recorded.server.admin("GET", "dlq")[0]["letters"] == 0
