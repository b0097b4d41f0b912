"""The admin clients against a real server: what an operator does by command, done from Python."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import (
    Admin,
    Consumer,
    DelayStatus,
    Message,
    NotFoundError,
    Producer,
    RejectedError,
)
from ddmq_client.admin import KeyDescription
from ddmq_client.aio import AsyncAdmin
from tests.scenarios.real_server import RealServer
from tests.support.waits import until


class AnyAdmin:
    """An admin client of either kind, called alike."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def call(*args: Any, **named: Any) -> Any:
            if self._loop is None:
                return method(*args, **named)
            return self._loop.run_until_complete(method(*args, **named))

        return call


@pytest.fixture(params=["blocking", "asyncio"])
def admin(server: RealServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    addresses = {
        "servers": server.address("admin"),
        "producers": server.address("producer"),
        "timeout_ms": 60_000,
    }
    if request.param == "blocking":
        with Admin(**addresses) as client:
            yield AnyAdmin(client, None)
        return
    loop = asyncio.new_event_loop()
    async_admin = AsyncAdmin(**addresses)
    yield AnyAdmin(async_admin, loop)
    loop.run_until_complete(async_admin.aclose())
    loop.close()


def test_both_kinds_have_the_same_methods() -> None:
    def methods(kind: type[Any]) -> dict[str, str]:
        public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: str(inspect.signature(method)) for name, method in public.items()}

    blocking, awaited = methods(Admin), methods(AsyncAdmin)
    assert blocking | {"aclose": blocking["close"]} == awaited | {"close": blocking["close"]}


def test_a_topic_from_birth_to_death(admin: Any, topic: str) -> None:
    created = admin.create_topic(topic, queues=2, durability="written", trace_one_in=7)
    assert (created.name, created.queues, created.durability, created.source) == (topic, 2, "written", "log")
    with pytest.raises(RejectedError, match="exists"):
        admin.create_topic(topic, queues=2)
    assert admin.create_topic(topic, queues=9, exist_ok=True).queues == 2
    with pytest.raises(RejectedError, match="allowed: 1 to 1024"):
        admin.create_topic(f"{topic}-x", queues=0, exist_ok=True)
    assert admin.update_topic(topic, queues=3).queues == 3
    info = admin.get_topic(topic)
    assert ([each.queue_id for each in info.by_queue], info.trace_one_in) == ([0, 1, 2], 7)
    assert topic in {each.name for each in admin.list_topics()}
    assert any(each.internal for each in admin.list_topics(internal=True))
    admin.delete_topic(topic)
    for call in (admin.get_topic, admin.delete_topic):
        with pytest.raises(NotFoundError, match="does not exist"):
            call(topic)


def test_a_group_from_birth_to_death(admin: Any, topic: str) -> None:
    admin.create_topic(topic)
    group = admin.create_group(topic, topic, start=datetime(2026, 1, 1, tzinfo=UTC), order_key="KEY")
    assert (group.created, group.subscribed) == (True, (topic,))
    (subscription,) = group.subscriptions
    assert (subscription.order_key, subscription.settings["start"]) == ("KEY", "1767225600000")
    assert admin.create_group(topic, [topic, "owned"]).subscribed == ("owned",)
    change = admin.update_subscription(topic, topic, batch_max=7, unset=["order_key"])
    assert (change.created, change.settings["batch_max"]) == (False, 7)
    assert {(each.name, each.before, each.after) for each in change.changed} == {
        ("batch_max", 100, 7),
        ("order_key", "KEY", ""),
    }
    assert topic in {each.group for each in admin.list_groups()}
    assert admin.update_subscription(topic, f"{topic}-new").created
    admin.delete_group(topic, topic=f"{topic}-new")
    assert {each.topic for each in admin.list_lag(topic)} == {topic, "owned"}
    admin.delete_group(topic, topic="owned")
    assert [each.topic for each in admin.get_group(topic).subscriptions] == [topic]
    admin.delete_group(topic)
    for call in (admin.get_group, lambda group: admin.update_subscription(group, topic, batch_max=7)):
        with pytest.raises(NotFoundError):
            call(topic)
    assert topic not in {each.group for each in admin.list_groups()}


def test_offsets_are_shown_and_reset(server: RealServer, admin: Any, topic: str) -> None:
    admin.create_topic(topic, queues=2)
    admin.create_group(topic, topic)
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        producer.send(topic, b"one", queue=1)
        producer.send(topic, b"two", queue=1)
    until(lambda: sum(each.lag for each in admin.list_offsets(topic)) == 2)
    plan = admin.reset_offsets(topic, topic, "last", dry_run=True)
    assert (plan.dry_run, plan.passed_over) == (True, 2)
    done = admin.reset_offsets(topic, topic, 1, queue_id=1)
    assert [(each.queue_id, each.before, each.after) for each in done.queues] == [(1, 0, 1)]
    admin.reset_offsets(topic, topic, datetime.now(UTC) + timedelta(days=1))
    assert [each.lag for each in admin.list_offsets(topic, topic=topic)] == [0, 0]
    with pytest.raises(RejectedError, match="out of range"):
        admin.reset_offsets(topic, topic, 17)
    with pytest.raises(NotFoundError):
        admin.list_offsets(f"{topic}-none")


def fail_all(message: Message) -> None:
    message.fail(delay_ms=3_600_000, reason="out of stock")


def blocked(admin: Any, group: str) -> list[KeyDescription]:
    return list(admin.list_keys(group))


def test_a_key_is_parked_replayed_and_skipped(server: RealServer, admin: Any, topic: str) -> None:
    admin.create_topic(topic, queues=1)
    admin.create_group(topic, topic, order_key="KEY", start="first")
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        producer.send(topic, b"one", key="a")
        producer.send(topic, b"two", key="a")
    with Consumer(server.address("consumer"), topic, topic, handler=fail_all):
        until(lambda: [key for key in blocked(admin, topic) if key.error])
    (key,) = admin.list_keys(topic)
    assert (key.key, key.queue_id, key.offset, key.error, key.waiting) == ('"a"', 0, 0, "out of stock", 1)
    assert key.since is not None
    parked = admin.park_key(topic, "a")
    assert (parked.key, parked.was_parked, [each.outcome for each in parked.heads]) == (
        '"a"',
        False,
        ["parked"],
    )
    assert admin.get_group(topic).blocked_keys[0].state == "parked"
    replayed = admin.replay_key(topic, key.key)
    assert (replayed.was_parked, [each.outcome for each in replayed.heads]) == (True, ["replayed"])
    admin.park_key(topic, "a")
    assert admin.skip_key(topic, "a").heads[0].outcome in ("dead letter", "to the dead letters")
    until(lambda: [each.open for each in admin.count_dead_letters() if each.group == topic] == [1])
    with pytest.raises(NotFoundError):
        admin.park_key(f"{topic}-none", "a")


def test_dead_letters_are_listed_exported_resent_and_purged(
    server: RealServer, admin: Any, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, queues=1)
    admin.create_group(topic, topic, start="first")
    bodies = [b"one", b"\xff\x00", b"three"]
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        for body in bodies:
            producer.send(topic, body, key="k")

    def reject(message: Message) -> None:
        message.dead_letter(reason="no such customer")

    with Consumer(server.address("consumer"), topic, topic, handler=reject):
        until(lambda: len(admin.list_dead_letters(topic)) == 3)
    letters = admin.list_dead_letters(topic, limit=2, topic=topic)
    assert [(each.topic_offset, each.error, each.key) for each in letters] == [
        (0, "no such customer", "k"),
        (1, "no such customer", "k"),
    ]
    assert admin.list_dead_letters(topic, since=datetime.now(UTC) + timedelta(days=1)) == []
    file = tmp_path / "letters.jsonl"
    assert admin.export_dead_letters(topic, file) == 3
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row.get("body") or base64.b64decode(row["body_base64"]) for row in rows] == [
        "one",
        bodies[1],
        "three",
    ]
    assert [row["error"] for row in rows] == ["no such customer"] * 3
    with pytest.raises(FileExistsError):
        admin.export_dead_letters(topic, file)
    assert admin.resend_dead_letters(topic, dry_run=True).resent == {topic: 3}
    assert admin.resend_dead_letters(topic, offsets=[letters[0].offset]).resent == {topic: 1}
    assert admin.purge_dead_letters(topic, before=datetime(2020, 1, 1, tzinfo=UTC)) == 0
    assert admin.purge_dead_letters(topic) == 2
    assert admin.list_dead_letters(topic) == []


def test_delayed_messages_are_listed_counted_and_changed(server: RealServer, admin: Any, topic: str) -> None:
    admin.create_topic(topic, queues=1)
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        ids = [
            producer.send(topic, f"n{n}", key=f"k{n}", delay=timedelta(hours=n)).delay_id for n in (1, 2, 3)
        ]
    waiting = until(lambda: delays if len(delays := admin.list_delays(topic=topic)) == 3 else None)
    assert [each.delay_id for each in waiting] == ids
    assert [each.preview for each in admin.list_delays(topic=topic, limit=2)] == ["n1", "n2"]
    soon = datetime.now(UTC) + timedelta(minutes=90)
    assert [each.key for each in admin.list_delays(topic=topic, due_before=soon)] == ["k1"]
    assert [each.key for each in admin.list_delays(topic=topic, key="k3")] == ["k3"]
    assert admin.count_delays(topic=topic, due_from=soon).count == 2
    state = admin.get_delay(ids[0])
    assert (state.state, state.message.body, state.message.topic) == ("pending", b"n1", topic)
    assert admin.cancel_delay(ids[0]).status is DelayStatus.CANCELLED
    assert admin.get_delay(ids[0]).state == "cancelled"
    assert admin.get_delay(ids[0]).at is not None
    assert admin.reschedule_delay(ids[1], delay=timedelta(hours=9)).status is DelayStatus.RESCHEDULED
    assert admin.fire_delay(ids[2]).status is DelayStatus.FIRED
    until(lambda: admin.get_delay(ids[2]).state == "fired")
    assert server.bodies(topic) == ["n3"]
    with pytest.raises(RejectedError, match="neither a delay id nor a uuid"):
        admin.get_delay("rubbish")
