"""Dead letters that were resent to one group: every way of reading passes them over for the other groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backend.records import FLAG_ONE_GROUP, FLAG_PRESSURE, ONE_GROUP, NewRecord
from ddmq_common.delivery import encode
from proxy_consumer.config import SubscriptionDefaults
from tests.service.consumer.consumer_rig import FIRST, ConsumerRig
from tests.service.consumer.fetch_calls import fetch, values
from tests.service.consumer.test_order_keys_served import BY_KEY, bodies, result

Read = Callable[[ConsumerRig, str], list[bytes]]
EVERYONE = replace(FIRST, model="broadcasting")
EXACT = {"clientId": b"me", "topics": [b"T"], "model": b"broadcasting", "exact": True}


def put(rig: ConsumerRig, body: str, group: str = "", flags: int = 0, queue: int = 0) -> None:
    """Append a message whose key is the first letter of its body, for `group` alone where one is given."""
    key = body[:1].encode()
    record = NewRecord("T", queue, bytes(16), 1, encode(key, body.encode(), b"", None), key, flags=flags)
    if group:
        record.flags |= FLAG_ONE_GROUP
        record.system = {ONE_GROUP: group}
    rig.wait(rig.backend.append([record], rig.deadline()))


def pulled(rig: ConsumerRig, group: str) -> list[bytes]:
    return bodies(rig.pull(group=group.encode()))


def fetched(rig: ConsumerRig, group: str) -> list[bytes]:
    results = fetch(rig, group=group, offsets={"T": {0: 0}})
    return [value for one in results.values() for value in values(one)]


def range_read(rig: ConsumerRig, group: str) -> list[bytes]:
    return values(fetch(rig, group=group, offsets={"T": {0: 0}}, **EXACT)["T", 0])


WAYS: dict[str, tuple[Read, SubscriptionDefaults]] = {
    "pull": (pulled, FIRST),
    "pull, pressure traffic accepted": (pulled, replace(FIRST, pressure_traffic=True)),
    "pull, filtered": (pulled, replace(FIRST, sql="TAGS IS NULL OR TAGS = ''")),
    "pull, with an order key": (pulled, replace(FIRST, order_key="KEY")),
    "fetch": (fetched, FIRST),
    "broadcast fetch": (fetched, EVERYONE),
    "range by offset": (range_read, EVERYONE),
}


@pytest.mark.parametrize("way", WAYS)
def test_only_the_named_group_gets_a_resent_message(rig: ConsumerRig, way: str) -> None:
    read, config = WAYS[way]
    rig.ready(config=config)
    rig.subscribe("H", config=config)
    for body, group in (("a1", ""), ("b1", "G"), ("c1", "H"), ("d1", "gone"), ("e1", "")):
        put(rig, body, group)
    assert read(rig, "G") == [b"a1", b"b1", b"e1"]
    assert read(rig, "H") == [b"a1", b"c1", b"e1"]


def test_an_instance_of_a_broadcasting_group_passes_it_over(rig: ConsumerRig) -> None:
    rig.ready(config=EVERYONE)
    rig.subscribe("H", config=EVERYONE)
    for group in (b"G%one", b"H%one"):
        assert rig.pull(group=group).result.messages == []
    for body, group in (("a1", ""), ("b1", "G"), ("c1", "H")):
        put(rig, body, group)
    assert bodies(rig.pull(group=b"G%one")) == [b"a1", b"b1"]
    assert bodies(rig.pull(group=b"H%one")) == [b"a1", b"c1"]


def test_what_is_passed_over_is_finished_and_counted(rig: ConsumerRig) -> None:
    rig.ready()
    for body, group in (("b1", "H"), ("c1", "H")):
        put(rig, body, group)
    put(rig, "d1", "H", FLAG_PRESSURE)
    assert pulled(rig, "G") == []
    rig.advance(1)
    assert rig.progress().committed == 3
    assert rig.counted("ddmq_skipped_total", reason="resent to another group") == 3
    assert rig.counted("ddmq_skipped_total", reason="pressure") == 0
    rig.restart()
    put(rig, "e1")
    assert pulled(rig, "G") == [b"e1"]


def test_a_key_does_not_wait_for_what_was_resent_to_another_group(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    for body, group in (("a1", ""), ("a2", "H"), ("a3", "G"), ("a4", "")):
        put(rig, body, group)
    for body in (b"a1", b"a3", b"a4"):
        call = rig.pull()
        assert bodies(call) == [body]
        assert rig.pull().result.messages == []
        rig.submit(result(call))
    rig.advance(1)
    assert rig.progress().committed == 4


def test_messages_for_another_group_are_recognised_when_reread_behind_their_key(rig: ConsumerRig) -> None:
    """More of a key than a chain keeps: they are read again, and those of another group are finished."""
    rig.ready(config=BY_KEY)
    for number in range(60):
        put(rig, f"a{number}", "H" if number % 3 == 1 else "")
    delivered = []
    while got := bodies(call := rig.pull()):
        delivered += got
        rig.submit(result(call))
    assert delivered == [b"a%d" % number for number in range(60) if number % 3 != 1]


def test_attempts_of_a_resent_message_start_at_one(rig: ConsumerRig) -> None:
    rig.ready(config=replace(FIRST, retry_intervals_ms=(100,), retry_steps=0))
    put(rig, "a1", "G")
    for attempt in (1, 2):
        call = rig.pull(clientId=b"me")
        assert [message.attempt for message in call.result.messages] == [attempt]
        rig.submit(result(call, ack=False))
        rig.advance(0.2)
    assert rig.counted("ddmq_dead_letters_total", reason="failed") == 1
