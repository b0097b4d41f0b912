"""Order keys through a whole proxy: over topics and queues, restarts, and what operators do to a key."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from backend.records import NewRecord
from ddmq.server.admin import keys, offsets
from ddmq_common.delivery import encode
from ddmq_common.errors import CallerError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.order.chains import READY_MAX
from proxy_consumer.core.order.scope import READ_MIN
from proxy_consumer.groups.ordering import PARKED_MAX
from proxy_consumer.push.actions.config import HttpConfig, PushConfig
from proxy_consumer.subscription.subscription import LOST_S
from tests.service.consumer.consumer_rig import IDL, ConsumerRig, FakeCall

BY_KEY = SubscriptionDefaults(
    start="first", order_key="KEY", retry_intervals_ms=(100,), ordered_deliveries_max=3
)


def result(call: Any, ack: bool = True, reason: str = "") -> Any:
    """What a client says to everything that `call` delivered."""
    offsets = call.offsets
    given = (
        {"successOffsets": offsets}
        if ack
        else {"failOffsets": offsets, "failReasons": [reason] * len(offsets)}
    )
    return IDL.ConsumeResult(context=call.result.context, **given)


def bodies(call: Any) -> list[bytes]:
    return list(call.values)


def test_only_the_head_of_a_key_is_out_and_others_go_on(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2", "b1", "a3", "c1")
    first = rig.pull()
    assert bodies(first) == [b"a1", b"b1", b"c1"]
    assert rig.pull().result.messages == []
    rig.submit(result(first))
    second = rig.pull()
    assert bodies(second) == [b"a2"]
    rig.submit(result(second))
    assert bodies(rig.pull()) == [b"a3"]


def test_one_chain_over_the_queues_of_a_topic_in_log_order(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, queues=3)
    for number, queue in enumerate((2, 0, 1, 0, 2)):
        rig.put_keyed("a", f"a{number}", queue)
    for number in range(5):
        call = rig.pull()
        assert bodies(call) == [b"a%d" % number]
        assert rig.pull().result.messages == []
        rig.submit(result(call))


def test_one_chain_over_the_topics_of_a_group(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for number, topic in enumerate("TUUT"):
        rig.put_keyed("a", f"a{number}", topic=topic)
    assert rig.pull(topic=b"U").result.messages == []
    for number, topic in enumerate((b"T", b"U", b"U", b"T")):
        call = rig.pull(topic=topic)
        assert bodies(call) == [b"a%d" % number]
        rig.submit(result(call))


def test_a_pull_for_one_topic_is_answered_when_the_other_topics_head_is_done(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.keyed("a0", topic="T")
    rig.keyed("a1", topic="U")
    head = rig.pull(topic=b"T")
    waiting = rig.ask(topic=b"U", linger=20_000)
    rig.settle()
    assert not waiting.answered
    rig.submit(result(head))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"a1"]


def one_key_over(rig: ConsumerRig, topics: str) -> None:
    """Messages 0, 1, … of one key, one in each of these topics."""
    for number, topic in enumerate(topics):
        rig.put_keyed("a", str(number), topic=topic)


def in_order(rig: ConsumerRig, topics: str) -> list[int]:
    """What comes, one after the other, to a client that pulls these topics in turn."""
    seen = []
    for topic in 8 * topics:
        call = rig.pull(topic=topic.encode())
        seen += [int(each) for each in bodies(call)]
        rig.submit(result(call))
    return seen


def lose(rig: ConsumerRig, topic: str) -> None:
    """The queues of a topic are taken from us without a word."""
    subscription = rig.subscription(topic)
    subscription.membership.claims.lost(list(subscription.buffer.queues))


def lies_ready(rig: ConsumerRig) -> bool:
    return rig.subscription("U").buffer.has_ready


@pytest.mark.parametrize(
    "settings",
    [
        {"rate_max": 1},
        {"retrying_max": 1},
        {"actions": ("AsyncHttp",), "push": PushConfig(http=HttpConfig(urls=("http://10.1.2.3/",)))},
    ],
)
def test_what_lies_ready_and_may_not_go_now_does_not_hold_up_the_proxy(
    rig: ConsumerRig, settings: dict[str, Any]
) -> None:
    for topic, more in (("T", {}), ("U", settings)):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=replace(BY_KEY, **more))
    rig.put_keyed("u1", "u1", topic="U")
    rig.put_keyed("u2", "u2", topic="U")
    rig.put_keyed("t1", "t1", topic="T")
    if "actions" not in settings:
        first = rig.pull(topic=b"U", count=1)
        assert bodies(first) == [b"u1"]
        rig.submit(result(first, ack=False))
    assert bodies(rig.pull(topic=b"T")) == [b"t1"]
    assert lies_ready(rig)
    waiting = [rig.ask(topic=None, linger=20) for _ in range(3)]
    rig.settle()
    rig.advance(0.03)
    assert all(call.answered for call in waiting)


def test_a_topic_that_may_not_be_read_any_more_does_not_hold_up_the_proxy(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for topic in ("T", "U"):
        rig.put_keyed(topic, topic, topic=topic)
    rig.keyed("t", topic="T")
    assert bodies(rig.pull(topic=b"T")) == [b"T", b"t"]
    assert lies_ready(rig)
    info = rig.backend.topic("U")
    assert info is not None
    rig.wait(rig.backend.put_topic(replace(info, readable=False), rig.deadline()))
    rig.settle()
    waiting = [rig.ask(topic=None, linger=20) for _ in range(3)]
    rig.settle()
    rig.advance(0.03)
    assert all(call.answered and call.result.messages == [] for call in waiting)


def test_a_topic_of_its_own_where_the_scope_says_so(rig: ConsumerRig) -> None:
    own = SubscriptionDefaults(start="first", order_key="KEY", order_scope="topic")
    rig.ready(config=own, topics=("T", "U"))
    for topic in ("T", "U"):
        rig.put_keyed("a", f"{topic}1", topic=topic)
        rig.put_keyed("a", f"{topic}2", topic=topic)
    assert bodies(rig.pull(topic=b"T")) == [b"T1"]
    assert bodies(rig.pull(topic=b"U")) == [b"U1"]


def test_the_queue_is_the_key(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(start="first", order_key="QID"), queues=2)
    for number in range(4):
        rig.put_keyed("", f"m{number}", number % 2)
    first, second = rig.pull(), rig.pull()
    assert sorted([*bodies(first), *bodies(second)]) == [b"m0", b"m1"]
    assert rig.pull().result.messages == []
    rig.submit(result(first))
    assert bodies(rig.pull()) == [b"m2" if first.queue == 0 else b"m3"]


def test_a_path_into_the_body_and_messages_without_the_value(rig: ConsumerRig) -> None:
    rig.topic()
    by_path = SubscriptionDefaults(start="first", order_key="$.o.id")
    rig.subscribe(config=by_path)
    texts = (
        '{"o":{"id":1}}',
        '{"o":{"id":1.0}}',
        '{"o":{"id":"1"}}',
        '{"o":{}}',
        "no json",
        '{"o":{"id":null}}',
    )
    for text in texts:
        rig.put_keyed("", text)
    call = rig.pull()
    assert call.offsets == [0, 2, 3, 4, 5]
    assert rig.counted("ddmq_unkeyed_total", group="G", topic="T") == 3
    rig.submit(result(call))
    assert rig.pull().offsets == [1]


def test_a_failing_head_holds_its_key_and_ends_as_a_dead_letter(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2", "b1")
    rig.submit(result(rig.pull(count=1), ack=False, reason="no stock"))
    assert bodies(rig.pull()) == [b"b1"]
    (blocked,) = [key for key in rig.service.order_keys("G").blocked_keys(10) if key.key == '"a"']
    assert (blocked.attempts, blocked.state, blocked.error) == (1, "retrying", "no stock")
    assert (blocked.topic, blocked.queue_id, blocked.offset, blocked.waiting) == ("T", 0, 0, 1)
    for wait in (0.2, 1.2):
        rig.advance(wait)
        rig.submit(result(rig.pull(count=1), ack=False))
    rig.settle(lambda: rig.counted("ddmq_dead_letters_total") == 1)
    assert rig.counted("ddmq_dead_letters_total", reason="failed") == 1
    assert bodies(rig.pull()) == [b"a2"]


def test_the_key_stays_blocked_over_a_restart(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, queues=2)
    for number in range(6):
        rig.put_keyed("a" if number % 2 else "b", f"m{number}", number % 2)
    first = rig.pull(count=1)
    rig.submit(result(first, ack=False))
    rig.submit(result(rig.pull()))
    rig.restart()
    again = {bodies(call)[0]: call for call in (rig.pull(), rig.pull())}
    failed = bodies(first)[0]
    other = b"m3" if failed == b"m0" else b"m2"
    assert set(again) == {failed, other}
    assert rig.pull().result.messages == []


def test_a_parked_key_waits_for_its_replay_and_others_do_not(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2", "b1")
    rig.submit(result(rig.pull(count=1), ack=False))
    rig.wait(rig.service.order_keys("G").park('"a"'))
    rig.advance(5)
    assert bodies(rig.pull()) == [b"b1"]
    assert [key.state for key in rig.service.order_keys("G").blocked_keys(10) if key.key == '"a"'] == [
        "parked"
    ]
    rig.restart()
    assert bodies(rig.pull()) == [b"b1"]
    assert rig.pull().result.messages == []
    rig.wait(rig.service.order_keys("G").replay('"a"'))
    assert bodies(rig.pull()) == [b"a1"]


def test_a_skipped_head_is_a_dead_letter_and_the_next_goes_on(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.keyed("a1", "a2")
    held = rig.pull()
    assert bodies(held) == [b"a1"]
    rig.wait(rig.service.order_keys("G").skip('"a"'))
    assert rig.counted("ddmq_dead_letters_total", reason="skipped") == 1
    assert bodies(rig.pull()) == [b"a2"]
    rig.submit(result(held))
    assert rig.progress().committed == 1


def test_a_key_whose_head_lies_ready_where_nobody_pulls_is_shown_with_its_own_word(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for key, topic in (("a", "U"), ("b", "U"), ("b", "T"), ("c", "T"), ("c", "U"), ("a", "T")):
        rig.put_keyed(key, key, topic=topic)
    held = rig.pull(topic=b"T")
    assert bodies(held) == [b"c"]

    def shown() -> list[tuple[str, str, str, int, int]]:
        rows = keys.list_blocked_keys(rig.service, "G", 20)
        return [(row["key"], row["state"], row["topic"], row["attempts"], row["waiting"]) for row in rows]

    ready = [('"a"', "ready", "U", 0, 1), ('"b"', "ready", "U", 0, 1)]
    assert shown() == [('"c"', "in flight", "T", 1, 1), *ready]
    assert [row["since_ms"] > 0 for row in keys.list_blocked_keys(rig.service, "G", 20)] == [
        True,
        False,
        False,
    ]
    rig.submit(result(held))
    assert shown() == ready  # nothing waits behind the head of c any more
    rig.keyed("c", topic="T")
    assert rig.pull(topic=b"T").result.messages == []
    assert shown() == [*ready, ('"c"', "ready", "U", 0, 1)]  # let out by its chain, not read again yet


def test_a_head_is_as_old_as_its_delivery_whatever_was_extended_or_changed(rig: ConsumerRig) -> None:
    rig.ready(config=replace(BY_KEY, ack_timeout_ms=10_000))
    rig.keyed("a1", "a2")
    held = rig.pull(clientId=b"me")
    began_ms = rig.clock.wall_ms()
    rig.advance(8)
    rig.submit(IDL.ConsumeResult(context=held.result.context, extendLeases=[held.result.messages[0].leaseId]))
    rig.wait(rig.service.change_subscription("G", "T", {"ack_timeout_ms": 60_000}))
    rig.advance(5)
    (row,) = keys.list_blocked_keys(rig.service, "G", 20)
    assert (row["state"], row["since_ms"]) == ("in flight", pytest.approx(began_ms, abs=1_000))


def test_keys_that_are_not_blocked_are_said_so(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.pull()
    for call in (rig.service.order_keys("G").skip, rig.service.order_keys("G").replay):
        with pytest.raises(CallerError, match='key "z" of group G is not blocked or parked at this proxy'):
            call('"z"')
    assert PARKED_MAX == 1_000


def test_without_order_keys_nothing_can_be_parked(rig: ConsumerRig) -> None:
    rig.ready()
    with pytest.raises(CallerError, match="no subscription of group G has an order key"):
        rig.service.order_keys("G").park('"a"')


def test_several_of_a_key_in_one_answer(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(start="first", order_key="KEY", chain_batch=3))
    for number in range(5):
        rig.put_keyed("a", f"a{number}")
    first = rig.pull()
    assert first.offsets == [0, 1, 2]
    rig.submit(IDL.ConsumeResult(context=first.result.context, successOffsets=[0], failOffsets=[1]))
    rig.advance(0.2)
    assert rig.pull().offsets == [1]
    assert rig.progress().committed == 1


def test_another_order_key_starts_anew_and_loses_nothing(rig: ConsumerRig) -> None:
    rig.ready()
    rig.keyed("a1", "a2", "b1")
    held = rig.pull(count=1)
    assert bodies(held) == [b"a1"]
    rig.subscription("T").apply_config(BY_KEY)
    rig.settle()
    rig.submit(result(held))
    assert rig.progress().committed == 1
    assert bodies(rig.pull()) == [b"a2", b"b1"]


def test_ten_thousand_behind_a_blocked_key_are_not_held(rig: ConsumerRig) -> None:
    rig.ready(config=SubscriptionDefaults(start="first", order_key="KEY", ordered_deliveries_max=-1))
    delivery = encode(b"hot", b"body", b"", None)
    records = [NewRecord("T", 0, bytes(16), 0, delivery, b"hot") for _ in range(10_000)]
    rig.wait(rig.backend.append(records, rig.deadline()))
    rig.put_keyed("cold", "last")
    hot = rig.pull(count=1)
    cold = rig.ask(linger=20_000)
    for _ in range(100):
        if cold.answered:
            break
        rig.advance(0.01)
    assert bodies(cold) == [b"last"]
    ((state, stream),) = rig.subscription("T").ordered_streams()
    assert len(stream.ledger.table) == 2
    assert stream.ledger.table.kept <= 16
    assert len(state.table.jobs) == 0
    done = 0
    while done < 200:
        rig.submit(result(hot))
        hot = rig.pull(count=1)
        done += 1
        assert hot.offsets == [done]


def test_each_topic_of_a_group_has_its_own_chain_batch(rig: ConsumerRig) -> None:
    for topic, batch in (("U", 3), ("T", 1)):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=replace(BY_KEY, chain_batch=batch))
        for number in range(4):
            rig.put_keyed(f"k{topic}", f"{topic}{number}", topic=topic)
    assert bodies(rig.pull(topic=b"U")) == [b"U0", b"U1", b"U2"]
    first = rig.pull(topic=b"T")
    assert bodies(first) == [b"T0"]
    second = rig.pull(topic=b"T", result=result(first))
    assert bodies(second) == [b"T1"]
    rig.wait(rig.service.change_subscription("G", "T", {"chain_batch": 2}))
    rig.settle()
    assert bodies(rig.pull(topic=b"T", result=result(second))) == [b"T2", b"T3"]


def test_messages_without_a_key_are_counted_under_their_own_topic(rig: ConsumerRig) -> None:
    for topic, count in (("T", 1), ("U", 2)):
        rig.topic(topic)
        rig.subscribe(topic=topic, config=BY_KEY)
        for _ in range(count):
            rig.put_keyed("", "no key", topic=topic)
    for topic in (b"T", b"U"):
        rig.pull(topic=topic)
    counted = [rig.counted("ddmq_unkeyed_total", group="G", topic=topic) for topic in ("T", "U")]
    assert counted == [1, 2]


def test_a_changed_chain_batch_or_assignment_does_not_start_anew(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    for number in range(8):
        rig.put_keyed("k", f"m{number}")
    call = rig.pull()
    assert bodies(call) == [b"m0"]
    for batch, expected in ((3, [b"m1", b"m2", b"m3"]), (2, [b"m4", b"m5"]), (1, [b"m6"])):
        settings = {"chain_batch": batch, "assignment": "by-circle"}
        rig.wait(rig.service.change_subscription("G", "T", settings))
        rig.settle()
        assert rig.pull().result.messages == []
        call = rig.pull(result=result(call))
        assert bodies(call) == expected


def test_with_a_larger_chain_batch_nobody_joins_a_message_that_a_client_has(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.put_keyed("k", "m0")
    call = rig.pull()
    rig.wait(rig.service.change_subscription("G", "T", {"chain_batch": 3}))
    rig.settle()
    for number in (1, 2, 3):
        rig.put_keyed("k", f"m{number}")
    assert rig.pull().result.messages == []
    assert bodies(rig.pull(result=result(call))) == [b"m1", b"m2", b"m3"]


def test_another_order_key_of_one_topic_does_not_let_the_others_of_the_group_overtake(
    rig: ConsumerRig,
) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    body = '{"k": "a", "n": %d}'
    for number, topic in enumerate("TUTU"):
        rig.put_keyed("a", body % number, topic=topic)
    assert rig.pull(topic=b"U").result.messages == []
    first = rig.pull(topic=b"T")
    ahead = rig.ask(topic=b"U", linger=20_000)
    rig.wait(rig.service.change_subscription("G", "T", {"order_key": "$.k"}))
    for number, topic in enumerate((b"T", b"U", b"T", b"U")):
        rig.settle()
        if topic == b"T":
            assert not ahead.answered
            call = rig.pull(topic=topic) if number else first  # its client still has it
        else:
            call, ahead = ahead, rig.ask(topic=b"U", linger=20_000) if number < 3 else None
            rig.settle(lambda answered=call: answered.answered)
        assert [json.loads(each)["n"] for each in bodies(call)] == [number]
        rig.submit(result(call))


def test_a_topic_that_comes_into_the_scope_of_the_group_comes_before_what_is_younger(
    rig: ConsumerRig,
) -> None:
    for topic in ("T", "U"):
        rig.topic(topic)
        scope = "topic" if topic == "T" else ""
        rig.subscribe(topic=topic, config=replace(BY_KEY, order_scope=scope))
    one_key_over(rig, "UTUT")
    first = rig.pull(topic=b"U")
    rig.wait(rig.service.change_subscription("G", "T", {"order_scope": "group"}))
    rig.settle()
    rig.submit(result(first))
    assert in_order(rig, "UT") == [1, 2, 3]


def test_a_queue_that_is_lost_and_comes_back_is_not_overtaken_by_the_others_of_the_group(
    rig: ConsumerRig,
) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    one_key_over(rig, "TUTU")
    first = rig.pull(topic=b"T")
    lose(rig, "T")
    assert rig.pull(topic=b"U").result.messages == []
    rig.subscription("T").membership.leave()  # as a session that is over does; the next pull joins again
    assert in_order(rig, "UT") == []  # a client still has the first
    rig.submit(result(first))
    assert in_order(rig, "UT") == [1, 2, 3]


def test_all_queues_are_lost_and_come_back_one_after_the_other(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    one_key_over(rig, "TUTU")
    first = rig.pull(topic=b"T")
    for topic in ("T", "U"):
        lose(rig, topic)
        rig.subscription(topic).membership.leave()
    rig.subscription("U").join()
    rig.settle()
    assert not rig.subscription("U").buffer.has_ready
    assert in_order(rig, "UT") == []
    rig.submit(result(first))
    assert in_order(rig, "UT") == [1, 2, 3]


def test_a_queue_that_does_not_come_back_holds_up_the_others_for_a_while_only(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    for topic in ("T", "U"):
        rig.put_keyed("a", "0", topic=topic)
    first = rig.pull(topic=b"T")
    lose(rig, "T")  # its membership stays, and is given nothing
    rig.subscription("T").membership.load()
    waiting = rig.ask(topic=b"U", linger=20_000)
    rig.advance(LOST_S - 0.1)
    assert not waiting.answered
    rig.advance(0.2)
    rig.advance(0.1)
    assert rig.pull(topic=b"T").result.messages == []
    assert not waiting.answered
    rig.submit(result(first))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"0"]


def test_offsets_of_one_topic_that_are_reset_are_not_overtaken_by_the_others_of_the_group(
    rig: ConsumerRig,
) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    one_key_over(rig, "TUTU")
    for topic in (b"T", b"U"):
        rig.submit(result(rig.pull(topic=topic)))
    assert bodies(rig.pull(topic=b"T")) == [b"2"]
    offsets.reset(rig.backend, rig.clock, "G", "T", "first", None, False)
    rig.settle()
    assert in_order(rig, "UT") == [0, 2, 3]


def pulls(rig: ConsumerRig, topic: bytes, count: int) -> Any:
    """A pull that is waited for; clock and hub go on meanwhile."""
    call = rig.ask(topic=topic, count=count, linger=20_000)
    for _ in range(200):
        if call.answered:
            break
        rig.advance(0.01)
    return call


def test_a_topic_that_nobody_pulls_does_not_stop_the_others_of_the_group(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.send(6_000, topic="U")
    for number in (0, 1, 2):
        rig.put_keyed(f"t{number}", str(number), topic="T")
    rig.put_keyed("k5000", "behind", topic="T")
    rig.put_keyed("t3", "3", topic="T")
    call = pulls(rig, b"T", 10)
    assert bodies(call) == [b"0", b"1", b"2", b"3"]
    rig.submit(result(call))
    (scope,) = rig.subscription("T").buffer.ordered_scopes()
    assert scope.ledger.ready <= READY_MAX
    seen: list[int] = []
    while len(seen) < 6_000:
        call = pulls(rig, b"U", 100)
        seen += call.offsets
        rig.submit(result(call))
    assert sorted(seen) == list(range(6_000))
    assert bodies(rig.pull(topic=b"T")) == [b"behind"]
    assert len(scope.table) == 1


def test_what_lies_aside_has_its_bound_and_the_others_go_on_when_some_is_taken(
    rig: ConsumerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy_consumer.core.order.chains.READY_MAX", 10)
    monkeypatch.setattr("proxy_consumer.core.order.scope.ASIDE_MAX", 20)
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.send(3 * READ_MIN, topic="U")
    rig.keyed("t", topic="T")
    waiting = rig.ask(topic=b"T", linger=20_000)
    for _ in range(20):
        rig.advance(0.01)
    assert not waiting.answered
    ((state, stream),) = rig.subscription("U").ordered_streams()
    assert stream.ledger.ready + state.table.released <= 2 * READ_MIN
    taken = 0
    while not waiting.answered:
        taken += len(pulls(rig, b"U", 50).offsets)  # and never acknowledged
        rig.advance(0.02)
    assert taken <= 2 * READ_MIN
    assert bodies(waiting) == [b"t"]


def test_who_waits_gets_what_is_replayed_at_once(rig: ConsumerRig) -> None:
    rig.ready(config=replace(BY_KEY, retry_intervals_ms=(50_000,)))
    rig.keyed("a1")
    rig.submit(result(rig.pull(), ack=False))
    waiting = rig.ask(linger=20_000)
    rig.settle()
    assert not waiting.answered
    rig.service.order_keys("G").replay('"a"')
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"a1"]


def test_who_waits_gets_what_was_parked_at_once(rig: ConsumerRig) -> None:
    rig.ready(config=BY_KEY)
    rig.wait(rig.service.order_keys("G").park('"a"'))
    rig.keyed("a1")
    waiting = rig.ask(linger=20_000)
    rig.settle()
    assert not waiting.answered
    rig.wait(rig.service.order_keys("G").replay('"a"'))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"a1"]


def waiting_behind_another_topic(rig: ConsumerRig) -> FakeCall:
    """A pull of U, whose only message waits for one of its key that a client has from T."""
    rig.ready(config=BY_KEY, topics=("T", "U"))
    rig.keyed("a1", topic="T")
    rig.keyed("a2", topic="U")
    assert bodies(rig.pull(topic=b"T")) == [b"a1"]
    waiting = rig.ask(topic=b"U", linger=20_000)
    rig.settle()
    assert not waiting.answered
    return waiting


def test_who_waits_gets_what_a_deleted_subscription_let_go_at_once(rig: ConsumerRig) -> None:
    waiting = waiting_behind_another_topic(rig)
    rig.wait(rig.service.delete_group("G", "T"))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"a2"]


def test_who_waits_gets_what_a_topic_has_when_it_may_be_read_again(rig: ConsumerRig) -> None:
    info = rig.topic()
    rig.subscribe(config=BY_KEY)
    waiting = rig.ask(linger=20_000)
    rig.settle()
    rig.wait(rig.backend.put_topic(replace(info, readable=False), rig.deadline()))
    rig.settle()
    rig.keyed("a1")
    rig.settle()
    assert not waiting.answered
    rig.wait(rig.backend.put_topic(info, rig.deadline()))
    rig.settle(lambda: waiting.answered)
    assert bodies(waiting) == [b"a1"]


def test_who_waits_gets_what_a_deleted_topic_let_go_at_once(rig: ConsumerRig) -> None:
    waiting = waiting_behind_another_topic(rig)
    rig.wait(rig.backend.delete_topic("T", rig.deadline()))
    rig.advance(0.01)
    rig.advance(0.01)
    assert bodies(waiting) == [b"a2"]


@pytest.mark.parametrize("replayed", [True, False])
def test_a_key_parked_while_a_client_has_its_head_stays_that_clients(
    rig: ConsumerRig, replayed: bool
) -> None:
    rig.ready(config=replace(BY_KEY, ack_timeout_ms=1_000))
    rig.keyed("a1", "a2")
    held = rig.pull()
    assert bodies(held) == [b"a1"]
    rig.wait(rig.service.order_keys("G").park('"a"'))
    rig.settle()
    assert [key.state for key in rig.service.order_keys("G").blocked_keys(10)] == ["in flight"]
    if replayed:
        rig.wait(rig.service.order_keys("G").replay('"a"'))
        rig.settle()
    assert rig.pull().result.messages == []
    rig.submit(result(held))
    if not replayed:
        assert rig.pull().result.messages == []
        rig.wait(rig.service.order_keys("G").replay('"a"'))
    second = rig.pull()
    assert bodies(second) == [b"a2"]
    rig.submit(result(second))
    rig.advance(3)
    assert rig.pull().result.messages == []
