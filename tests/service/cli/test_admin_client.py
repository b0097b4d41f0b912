"""The admin clients against a real server: what an operator does by command, done from Python."""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ddmq_client import (
    Admin,
    Consumer,
    DelayStatus,
    Message,
    NotFoundError,
    OptionError,
    Producer,
    RejectedError,
    SendError,
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


@contextmanager
def opened_admin(kind: str, timeout_ms: int = 60_000, **arguments: Any) -> Iterator[Any]:
    if kind == "blocking":
        with Admin(**arguments, timeout_ms=timeout_ms) as client:
            yield AnyAdmin(client, None)
        return
    loop = asyncio.new_event_loop()
    async_admin = AsyncAdmin(**arguments, timeout_ms=timeout_ms)
    yield AnyAdmin(async_admin, loop)
    loop.run_until_complete(async_admin.aclose())
    loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def admin(server: RealServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    with opened_admin(request.param, servers=server.address("admin")) as client:
        yield client


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


def test_a_change_of_a_delayed_message_states_what_came_of_it(
    server: RealServer, admin: Any, topic: str
) -> None:
    fired, moved = (admin.send(topic, name, delay=timedelta(hours=1)).delay_id for name in ("a", "b"))
    before = datetime.now(UTC) - timedelta(seconds=1)
    outcome = admin.fire_delay(fired)
    assert (outcome.status, outcome.text) == (DelayStatus.FIRED, "")
    assert before < outcome.fired_at < datetime.now(UTC) + timedelta(seconds=1)
    assert admin.cancel_delay(fired).status is DelayStatus.FIRED
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=9)
    outcome = admin.reschedule_delay(moved, deliver_at=later)
    assert (outcome.status, outcome.due_at) == (DelayStatus.RESCHEDULED, later)
    assert admin.cancel_delay(moved).cancelled
    assert admin.cancel_delay(str(uuid4())).status is DelayStatus.UNKNOWN
    old = f"1500000000-2-1500172800-0-0-0-1-{uuid4()}"
    assert admin.cancel_delay(old).status is DelayStatus.TOO_OLD
    with pytest.raises(RejectedError, match=r"code 33"):
        admin.reschedule_delay(moved, delay=timedelta(days=900))
    with pytest.raises(OptionError, match="neither delay nor deliver_at is set"):
        admin.reschedule_delay(moved)


def test_delayed_messages_are_changed_by_the_producer_proxies_that_are_named(
    server: RealServer, topic: str
) -> None:
    for kind in ("blocking", "asyncio"):
        addresses = {"servers": server.address("admin"), "producers": server.address("producer")}
        with opened_admin(kind, **addresses) as admin:
            ids = [admin.send(topic, name, delay=timedelta(hours=1)).delay_id for name in ("a", "b")]
            moved = admin.reschedule_delay(ids[0], delay=timedelta(hours=2))
            assert moved.status is DelayStatus.RESCHEDULED
            assert admin.cancel_delay(ids[0]).status is DelayStatus.CANCELLED
            assert admin.fire_delay(ids[1]).status is DelayStatus.FIRED
        with (
            opened_admin(kind, 300, **addresses | {"producers": "127.0.0.1:1"}) as admin,
            pytest.raises(SendError),
        ):
            admin.cancel_delay(ids[0])


def test_messages_are_sent(server: RealServer, admin: Any, topic: str) -> None:
    admin.create_topic(topic, queues=3)
    sent = admin.send(topic, "tea", key="k", tags="t", properties={"a": "b"}, queue=2)
    assert (sent.topic, sent.queue_id, sent.offset, sent.delay_id) == (topic, 2, 0, None)
    binary = admin.send(topic, bytes(range(256)), shard_key=b"customer-17")
    with Producer(server.address("producer"), timeout_ms=60_000) as producer:
        assert producer.send(topic, "x", shard_key="customer-17").queue_id == binary.queue_id
    rows = {row["id"]: row for row in server.messages(topic)}
    first = rows[sent.message_id]
    assert (first["body"], first["key"], first["tags"], first["properties"]) == ("tea", "k", "t", {"a": "b"})
    assert base64.b64decode(rows[binary.message_id]["body_base64"]) == bytes(range(256))


def test_delayed_messages_are_sent(server: RealServer, admin: Any, topic: str) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=9)
    sent = admin.send(topic, "at", deliver_at=later)
    assert (sent.due_at, sent.queue_id, sent.offset, sent.message_id) == (later, None, None, None)
    repeated = admin.send(topic, "loop", every=timedelta(hours=1), times=3)
    weekly = admin.send(topic, "cron", cron="0 9 * * MON", zone="Asia/Tokyo", catch_up="skip", times=4)
    states = [admin.get_delay(each.delay_id).message for each in (sent, repeated, weekly)]
    assert [state.repeats for state in states] == [
        "",
        "every 3600 s 3 times",
        "cron 0 9 * * MON in Asia/Tokyo, 4 in all",
    ]
    at_level = admin.send(topic, "soon", level=1)
    assert (at_level.delay_id, at_level.offset, bool(at_level.message_id)) == (None, None, True)
    for error, options in (
        (RejectedError, {"level": 19}),
        (RejectedError, {"key": "k" * 256}),
        (OptionError, {"level": 1, "delay": timedelta(1)}),
        (OptionError, {"properties": {"a": 1}}),
    ):
        with pytest.raises(error):
            admin.send(topic, "x", **options)
