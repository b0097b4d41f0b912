"""The blocking consumer against a proxy that leases, and fails, as told."""

import itertools
import sys
import threading
import time
from asyncio import CancelledError
from contextlib import suppress
from types import FrameType

import pytest

from ddmq_client import ClientError, ClosedError, Consumer, Message, OptionError, Outcome, Producer, PullError
from ddmq_client.core.nodes import ProxyAddress
from tests.service.client.standin import (
    AFTER,
    BEFORE,
    FAULT,
    GARBAGE,
    HALF,
    HOLD,
    PULL_ERROR,
    Standin,
    standing_in,
)


def bodies(count: int) -> list[bytes]:
    return [b"m%d" % at for at in range(count)]


def settled(proxy: Standin) -> dict[int, str]:
    """offset -> s, f: what the proxy was told."""
    outcomes = {}
    for result in proxy.results:
        outcomes.update(dict.fromkeys(result.successOffsets or (), "s"))
        outcomes.update(dict.fromkeys(result.failOffsets or (), "f"))
    return outcomes


def inside_of_its_handler(proxy: Standin) -> tuple[Consumer, threading.Event]:
    """A consumer whose handler has a message until the event is set."""
    proxy.put("t", b"x")
    entered, leave = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        entered.set()
        assert leave.wait(60)

    consumer = Consumer(proxy.address, "g", "t", handler=handle, linger_ms=20)
    consumer.start()
    assert entered.wait(60)
    return consumer, leave


def test_a_handler_gets_everything_that_was_sent(proxy: Standin) -> None:
    got: list[Message] = []
    with Producer(proxy.address) as producer:
        producer.send("t", "grün", key="k", tags="a", properties={"p": "ü"})
        for body in bodies(99):
            producer.send("t", body)
    with Consumer(proxy.address, "g", "t", handler=got.append) as consumer:
        proxy.wait(lambda: len(proxy.done) == 100)
    first = min(got, key=lambda message: message.offset)
    assert (first.topic, first.queue, first.group, first.text()) == ("t", "q0", "g", "grün")
    assert (first.key, first.tags, first.properties, first.attempt) == ("k", "a", {"p": "ü"}, 1)
    assert first.outcome is Outcome.ACKED
    assert sorted(message.offset for message in got) == list(range(100))
    assert consumer.counts().acked == consumer.counts().pulled == 100
    assert consumer.last_error is None


def test_results_ride_on_the_next_pull(proxy: Standin) -> None:
    proxy.put("t", *bodies(200))
    with Consumer(proxy.address, "g", "t", handler=lambda message: None, ack_flush_ms=60_000) as consumer:
        proxy.wait(lambda: len(proxy.done) == 200)
    carried = [args.request.result for method, args in proxy.calls if method == "pull"]
    assert sum(len(result.successOffsets) for result in carried if result) > 100
    assert consumer.counts().submits <= 3
    for result in proxy.results:
        assert [lease // 1000 for lease in result.successLeases] == [1] * len(result.successOffsets)


def test_batches(proxy: Standin) -> None:
    proxy.put("t", *bodies(25))
    batch_sizes: list[int] = []

    def handle(messages: list[Message]) -> None:
        batch_sizes.append(len(messages))
        messages[0].fail(delay_ms=60_000)
        if messages[0].body == b"m0" and messages[0].attempt == 1:
            raise ValueError("a batch that breaks")

    with Consumer(proxy.address, "g", "t", batch_handler=handle, max_batch=10, threads=1) as consumer:
        proxy.wait(lambda: len(settled(proxy)) == 25)
        proxy.wait(lambda: len(proxy.done) + len(proxy.leases) >= 25)
    assert max(batch_sizes) == 10
    failed = {offset for result in proxy.results for offset in result.failOffsets or ()}
    assert failed >= set(range(batch_sizes[0])), "a raise fails all of the batch"
    assert consumer.counts().handler_errors == 1


def test_an_exception_fails_the_message_and_it_is_redelivered(proxy: Standin) -> None:
    proxy.put("t", b"poison", b"good")
    attempts: list[int | None] = []

    def handle(message: Message) -> None:
        if message.body == b"poison":
            attempts.append(message.attempt)
            if len(attempts) < 3:
                raise ValueError("told to fail")

    with Consumer(proxy.address, "g", "t", handler=handle):
        proxy.wait(lambda: len(proxy.done) == 2)
    assert attempts == [1, 2, 3]


def test_fail_skip_extend_and_manual_acks(proxy: Standin) -> None:
    proxy.put("t", *bodies(4))
    unsettled: list[Message] = []
    with Consumer(proxy.address, "g", "t", handler=unsettled.append, auto_ack=False) as consumer:
        proxy.wait(lambda: len(unsettled) == 4)
        unsettled.sort(key=lambda message: message.offset)
        assert not proxy.results
        assert unsettled[3].extend()
        proxy.wait(lambda: any(result.extendLeases for result in proxy.results))
        unsettled[0].ack()
        unsettled[1].skip()
        unsettled[2].fail(delay_ms=1500)
        unsettled[3].fail()
        proxy.wait(lambda: len(settled(proxy)) == 4)
    outcomes = settled(proxy)
    assert (outcomes[0], outcomes[1], outcomes[2], outcomes[3]) == ("s", "s", "f", "f")
    delays = {
        offset: (result.failDelaysMs or [-1] * 9)[at]
        for result in proxy.results
        for at, offset in enumerate(result.failOffsets or ())
    }
    assert (delays[2], delays[3]) == (1500, -1)
    assert consumer.counts().skipped == 1


@pytest.mark.parametrize("fault", [BEFORE, AFTER, HALF, GARBAGE, FAULT, PULL_ERROR])
def test_results_of_a_failed_pull_are_resent(proxy: Standin, fault: object) -> None:
    proxy.put("t", *bodies(3))
    with Consumer(proxy.address, "g", "t", ack_flush_ms=60_000) as consumer:
        for message in consumer.pull(3, 20_000):
            message.ack()
        proxy.faults["pull"].append(fault)
        proxy.put("t", b"next")
        if fault is AFTER or fault is HALF:  # its answer was lost with its lease
            proxy.wait(lambda: consumer.counts().pull_errors == 0)
            threading.Thread(target=_requeue_when_failed, args=(proxy, consumer), daemon=True).start()
        (message,) = consumer.pull(1, 20_000)
        assert message.body == b"next"
        assert proxy.done >= {("t", 0), ("t", 1), ("t", 2)}
        assert consumer.counts().pull_errors == 1
        message.ack()
    assert settled(proxy)[3] == "s"


def _requeue_when_failed(proxy: Standin, consumer: Consumer) -> None:
    proxy.wait(lambda: consumer.counts().pull_errors == 1)
    proxy.requeue("t", 3)


@pytest.mark.parametrize("fault", [BEFORE, AFTER, HALF, GARBAGE, FAULT])
def test_results_of_a_failed_submit_are_resent(proxy: Standin, fault: object) -> None:
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t", ack_flush_ms=1, linger_ms=20) as consumer:
        (message,) = consumer.pull(1, 20_000)
        proxy.faults["submit"].append(fault)
        message.ack()
        proxy.wait(lambda: sum(method == "submit" for method, _ in proxy.calls) == 2)
        proxy.wait(lambda: ("t", 0) in proxy.done)
        assert consumer.counts().submit_errors == 1


def test_the_rest_is_submitted_at_the_end_and_once_more(proxy: Standin) -> None:
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t", ack_flush_ms=60_000) as consumer:
        (message,) = consumer.pull(1, 20_000)
        message.ack()
        proxy.faults["submit"].append(BEFORE)
    assert proxy.done == {("t", 0)}
    assert consumer.counts().submit_errors == 1


@pytest.mark.slow
def test_a_parked_pull_does_not_hold_back_results(proxy: Standin) -> None:
    handled = threading.Event()

    def handle(message: Message) -> None:
        assert handled.wait(30)

    proxy.put("t", b"x")
    with Consumer(
        proxy.address, "g", "t", handler=handle, linger_ms=25_000, ack_flush_ms=60_000, threads=1
    ) as consumer:
        proxy.wait(lambda: sum(method == "pull" for method, _ in proxy.calls) == 2)
        started = time.monotonic()
        handled.set()
        proxy.wait(lambda: ("t", 0) in proxy.done)
        assert time.monotonic() - started < 20, "went by itself, not with the pull after the next"
        proxy.wait(lambda: consumer.counts().submits == 1)


def test_several_proxies_and_topics(proxy: Standin, other: Standin) -> None:
    for standin in (proxy, other):
        standin.put("t", *bodies(20))
        standin.put("u", *bodies(20))
    received: list[tuple[str, bytes]] = []
    addresses = f"{proxy.address},{other.address}"
    with Consumer(addresses, "g", ["t", "u"], handler=lambda m: received.append((m.topic, m.body))):
        proxy.wait(lambda: len(proxy.done) == 40)
        other.wait(lambda: len(other.done) == 40)
    assert sorted(received) == sorted([(topic, body) for topic in "tu" for body in bodies(20)] * 2)
    assert {args.request.topic for method, args in proxy.calls if method == "pull"} == {"t", "u"}


def test_pulls_resume_after_a_proxy_restarts(proxy: Standin) -> None:
    proxy.put("t", *bodies(3))
    with Consumer(proxy.address, "g", "t", handler=lambda message: None, linger_ms=50) as consumer:
        proxy.wait(lambda: len(proxy.done) == 3)
        proxy.stop()
        proxy.wait(lambda: consumer.counts().pull_errors > 0)
        assert "127.0.0.1" in (consumer.last_error or "")
        proxy.restart()
        proxy.put("t", *bodies(3))
        proxy.wait(lambda: len(proxy.done) == 6)


def test_a_vanished_proxy_leaves_its_results_to_another(
    proxy: Standin, other: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = [proxy]
    monkeypatch.setattr(
        "ddmq_client.net.worker_pool.resolve_addresses",
        lambda addresses, cached: [ProxyAddress("127.0.0.1", standin.port) for standin in resolved],
    )
    monkeypatch.setattr("ddmq_client.net.worker_pool.RESOLVE_EVERY_S", 0.05)
    proxy.put("t", *bodies(2))
    unsettled: list[Message] = []
    with Consumer("proxies.example:1", "g", "t", handler=unsettled.append, auto_ack=False, linger_ms=50):
        proxy.wait(lambda: len(unsettled) == 2)
        resolved[:] = [other]
        other.wait(lambda: any(method == "pull" for method, _ in other.calls))
        proxy.stop()
        for message in unsettled:
            message.ack()
        other.wait(lambda: other.done == {("t", 0), ("t", 1)})


def test_stop_handles_what_is_here_and_submits_the_rest(proxy: Standin) -> None:
    proxy.put("t", *bodies(30))
    go = threading.Event()
    started = threading.Event()

    def handle(message: Message) -> None:
        started.set()
        assert go.wait(30)

    consumer = Consumer(proxy.address, "g", "t", handler=handle, max_batch=30, linger_ms=20)
    consumer.start()
    assert started.wait(20)
    stopping: list[bool] = []
    thread = threading.Thread(target=lambda: stopping.append(consumer.stop(20_000)))
    thread.start()
    go.set()
    thread.join(30)
    assert stopping == [True]
    assert len(proxy.done) == 30
    assert consumer.stop()
    with pytest.raises(ClientError, match="started once"):
        consumer.start()


def test_stop_tells_when_results_were_not_delivered(proxy: Standin) -> None:
    proxy.put("t", *bodies(3))
    consumer = Consumer(proxy.address, "g", "t", ack_flush_ms=60_000)
    for message in consumer.pull(3, 20_000):
        message.ack()
    proxy.stop()
    assert not consumer.stop(1_000)
    assert consumer.counts().results_dropped == 3


def test_stop_gives_up_at_its_deadline(proxy: Standin) -> None:
    consumer, leave = inside_of_its_handler(proxy)
    started = time.monotonic()
    assert not consumer.stop(200)
    assert time.monotonic() - started < 10
    leave.set()


def test_pull_requests_no_more_than_its_caller(proxy: Standin) -> None:
    proxy.put("t", *bodies(10))
    consumer = Consumer(proxy.address, "g", "t")
    first = consumer.pull(3, 20_000)
    assert [message.body for message in first] == bodies(3)
    assert len(proxy.leases) == 3
    for message in first:
        message.ack()
    assert len(consumer.pull(100, 20_000)) == 7
    assert consumer.pull(1, 50) == []
    assert consumer.stop()
    assert {offset for _, offset in proxy.done} == {0, 1, 2}
    with pytest.raises(ClosedError):
        consumer.pull()


def test_what_a_caller_of_pull_hands_back_is_free_at_once(proxy: Standin) -> None:
    proxy.lease_ms = 30_000
    proxy.put("t", *bodies(3))
    with Consumer(proxy.address, "g", "t", ack_flush_ms=60_000) as first:
        one, two, three = first.pull(3, 20_000)
        assert one.ack()
        assert (two.hand_back(), three.hand_back(), two.ack(), one.hand_back()) == (True, True, False, False)
        with Consumer(proxy.address, "g", "t") as second:
            redelivered = second.pull(3, 20_000)
            assert [message.body for message in redelivered] == [b"m1", b"m2"]
            for message in redelivered:
                message.ack()
    assert (first.counts().returned, first.counts().acked) == (2, 1)
    assert {offset for _, offset in proxy.done} == {0, 1, 2}


def test_iterating(proxy: Standin) -> None:
    proxy.put("t", *bodies(6))
    consumer = Consumer(proxy.address, "g", "t")
    received = []
    for message in consumer:
        received.append(message.body)
        message.ack()
        if len(received) == 2:
            break
    for message in consumer:
        received.append(message.body)
        message.ack()
        if len(received) == 6:
            consumer.stop()
    assert received == bodies(6)
    assert len(proxy.done) == 6


@pytest.mark.slow
def test_a_rejected_pull_raises_in_the_caller(proxy: Standin) -> None:
    proxy.faults["pull"].extend([PULL_ERROR] * 50)
    consumer = Consumer(proxy.address, "g", "t", tags="a ||")
    with pytest.raises(PullError, match="filter is wrong at 3") as raised:
        consumer.pull(1, 2_000)
    assert raised.value.code == 7
    assert raised.value.proxy == proxy.address
    proxy.faults["pull"].clear()
    consumer.stop()
    request = next(args.request for method, args in proxy.calls if method == "pull")
    assert (request.filterType, request.filter) == ("TAG", "a ||")


def test_what_waited_past_its_lease_is_not_handled(proxy: Standin) -> None:
    proxy.put("t", *bodies(2))
    attempts: list[int | None] = []
    entered, leave = threading.Event(), threading.Event()

    def handle(message: Message) -> None:
        attempts.append(message.attempt)
        entered.set()
        if len(attempts) == 1:
            assert leave.wait(30)

    with Consumer(proxy.address, "g", "t", handler=handle, threads=1, lease_ms=800, linger_ms=20) as consumer:
        assert entered.wait(20)
        until = time.monotonic() + 0.81
        proxy.wait(lambda: time.monotonic() > until)
        leave.set()
        proxy.wait(lambda: consumer.counts().expired == 1)
        proxy.requeue("t", 1)
        proxy.wait(lambda: len(proxy.done) == 2)
    assert attempts == [1, 2]


def test_an_unreachable_proxy_is_tried_until_it_is_there() -> None:
    with standing_in() as proxy:
        proxy.stop()
        proxy.put("t", b"x")
        with Consumer(proxy.address, "g", "t", handler=lambda message: None) as consumer:
            proxy.wait(lambda: consumer.counts().pull_errors >= 2)
            proxy.restart()
            proxy.wait(lambda: len(proxy.done) == 1)


def test_arguments_are_checked(proxy: Standin) -> None:
    for settings in ({"threads": 0}, {"linger_ms": 0}, {"prefetch": 3, "max_batch": 4}):
        with pytest.raises(OptionError):
            Consumer("h:1", "g", "t", **settings)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="both set"):
        Consumer("h:1", "g", "t", handler=print, batch_handler=print)
    with pytest.raises(OptionError, match="sql"):
        Consumer("h:1", "g", "t", tags="a", sql="b = 1")
    with pytest.raises(ClientError, match="has a handler"):
        Consumer("h:1", "g", "t", handler=print).pull()


def test_a_submit_on_hold_does_not_stop_pulling(proxy: Standin) -> None:
    proxy.put("t", b"x")
    proxy.faults["submit"].append(HOLD)
    with Consumer(proxy.address, "g", "t", handler=lambda message: None, linger_ms=50, ack_flush_ms=1):
        proxy.wait(lambda: len(proxy.done) == 1 or proxy.faults["submit"] == type(proxy.faults["submit"])())
        proxy.put("t", *bodies(5))
        proxy.wait(lambda: len(proxy.leases) == 6)
        proxy.release()
        proxy.wait(lambda: len(proxy.done) == 6)


def test_a_handlers_exception_is_the_reason(proxy: Standin) -> None:
    proxy.put("t", b"a", b"b")

    def handle(message: Message) -> None:
        if message.body == b"b":
            message.fail(60_000, reason="out of\n stock")
        elif message.attempt == 1:
            raise ValueError("no such order " + "x" * 300)

    with Consumer(proxy.address, "g", "t", handler=handle):
        proxy.wait(lambda: ("t", 0) in proxy.done and "f" in settled(proxy).values())
    reasons = {
        offset: reason
        for result in proxy.results
        for offset, reason in zip(result.failOffsets or (), result.failReasons or (), strict=False)
    }
    assert reasons[0].startswith("ValueError: no such order xxx")
    assert len(reasons[0]) == 200
    assert reasons[1] == "out of stock"


def test_leases_live_while_a_handler_runs(proxy: Standin) -> None:
    proxy.put("t", b"a")
    extended = threading.Event()

    def handle(message: Message) -> None:
        assert extended.wait(20)

    with Consumer(proxy.address, "g", "t", handler=handle, lease_ms=600):
        proxy.wait(lambda: sum(len(result.extendLeases or ()) for result in proxy.results) >= 3)
        extended.set()
        proxy.wait(lambda: ("t", 0) in proxy.done)


def test_leases_are_not_extended_when_that_is_switched_off(proxy: Standin) -> None:
    proxy.put("t", b"a", b"b")
    pause = threading.Event()

    def handle(message: Message) -> None:
        if message.body == b"a":
            pause.wait(0.8)  # longer than it takes until leases are extended

    with Consumer(proxy.address, "g", "t", handler=handle, lease_ms=1_000, prefetch=32, extend_for_ms=0):
        proxy.wait(lambda: ("t", 0) in proxy.done)
    assert not any(result.extendLeases for result in proxy.results)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (OSError("no file a\udc80b"), r"OSError: no file a\udc80b"),
        (Unreadable(), "Unreadable: (its text cannot be read)"),
        (SystemExit(3), "SystemExit: 3"),
        (CancelledError(), "CancelledError"),
    ],
    ids=["surrogate", "unreadable", "exit", "cancelled"],
)
def test_whatever_a_handler_raises_fails_the_message_alone(
    proxy: Standin, raised: BaseException, reason: str
) -> None:
    proxy.put("t", *bodies(9))

    def handle(message: Message) -> None:
        if message.attempt == 1:
            raise raised

    with Consumer(proxy.address, "g", "t", handler=handle, threads=1) as consumer:
        proxy.wait(lambda: len(proxy.done) == 9)
    assert consumer.counts().handler_errors == 9
    reasons = {reason for result in proxy.results for reason in result.failReasons or ()}
    assert reasons == {reason}


@pytest.mark.parametrize("delay_ms", [1.5, "7", True, -1])
def test_an_invalid_delay_is_rejected_and_harms_nothing(proxy: Standin, delay_ms: object) -> None:
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t") as consumer:
        (message,) = consumer.pull(1, 20_000)
        with pytest.raises(ValueError, match="whole number"):
            message.fail(delay_ms=delay_ms)  # type: ignore[arg-type]
        message.fail(delay_ms=0)
        (redelivered,) = consumer.pull(1, 20_000)
        redelivered.ack()
    assert proxy.done == {("t", 0)}


def test_options_that_the_wire_cannot_carry_are_rejected_before_a_pull(proxy: Standin) -> None:
    invalid: list[dict[str, object]] = [
        {"tags": 5}, {"sql": "a = '\udc80'"}, {"linger_ms": 50.5}, {"max_batch": "8"}, {"handler": 5},
        {"timeout_ms": True}, {"batch_handler": "print"}, {"client_id": "\udc80"},
    ]  # fmt: skip
    for settings in invalid:
        with pytest.raises(OptionError, match=next(iter(settings))):
            Consumer(proxy.address, "g", "t", **settings)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="group"):
        Consumer(proxy.address, "\udc80", "t")
    with pytest.raises(OptionError, match="topics=None"):
        Consumer(proxy.address, "g", None)  # type: ignore[arg-type]
    proxy.put("t", b"x")
    with Consumer(proxy.address, "g", "t") as consumer:
        with pytest.raises(OptionError, match=r"max_messages=2\.5"):
            consumer.pull(2.5)  # type: ignore[arg-type]
        assert len(consumer.pull(2, 20_000)) == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_may_stop_its_consumer(proxy: Standin, threads: int) -> None:
    proxy.put("t", *bodies(3))
    outcomes: list[bool] = []
    stopping = threading.Lock()

    def handle(message: Message) -> None:
        if stopping.acquire(blocking=False):
            message.ack()
            outcomes.append(consumer.stop(20_000))

    consumer = Consumer(proxy.address, "g", "t", handler=handle, threads=threads, max_batch=1, linger_ms=20)
    started = time.monotonic()
    consumer.start()
    proxy.wait(lambda: len(outcomes) == 1)
    assert time.monotonic() - started < 10
    assert consumer.stop()
    assert proxy.done


def test_a_second_stop_waits_for_the_first(proxy: Standin) -> None:
    consumer, leave = inside_of_its_handler(proxy)
    first = threading.Thread(target=consumer.stop)
    first.start()
    proxy.wait(lambda: consumer._coordinator.pulling_stopped)
    assert not consumer.stop(10), "the first one is under way"
    leave.set()
    assert consumer.stop(20_000)
    assert len(proxy.done) == 1
    first.join(20)


def test_what_a_loop_has_not_looked_at_goes_to_a_pull(proxy: Standin) -> None:
    proxy.put("t", *bodies(3))
    with Consumer(proxy.address, "g", "t") as consumer:
        next(iter(consumer)).ack()
        assert [message.body for message in consumer.pull(9, 20_000)] == [b"m1", b"m2"]


def test_an_older_proxys_leases_are_extended_by_the_configured_time(proxy: Standin) -> None:
    proxy.put("t", *bodies(2))
    extended = threading.Event()

    def handle(message: Message) -> None:
        assert extended.wait(20)

    with Consumer(proxy.address, "g", "t", handler=handle, lease_ms=300):
        proxy.wait(
            lambda: len({lease for result in proxy.results for lease in result.extendLeases or ()}) == 2
        )
        extended.set()
        proxy.wait(lambda: len(proxy.done) == 2)


def test_short_pulls_of_nothing_are_followed_by_no_pause(
    proxy: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(
        "ddmq_client.net.coordinator.Coordinator.pause_puller",
        lambda coordinator, source, pause: pauses.append(pause),
    )
    with Consumer(proxy.address, "g", "t", linger_ms=10_000) as consumer:
        for _ in range(4):
            assert consumer.pull(1, 30) == []
    assert sum(method == "pull" for method, _ in proxy.calls) >= 2
    assert not pauses


def test_a_submit_that_hangs_is_broken_off_when_the_time_to_stop_is_over(proxy: Standin) -> None:
    proxy.put("t", b"x")
    proxy.faults["submit"].append(HOLD)
    consumer = Consumer(proxy.address, "g", "t", ack_flush_ms=1, timeout_ms=20_000)
    consumer.pull(1, 20_000)[0].ack()
    proxy.wait(lambda: any(method == "submit" for method, _ in proxy.calls))
    assert not consumer.stop(50)
    assert consumer.counts().results_dropped == 1
    proxy.release()


def test_a_paused_consumer_pulls_nothing_until_it_resumes(proxy: Standin) -> None:
    got: list[Message] = []
    with Consumer(proxy.address, "g", "t", handler=got.append, linger_ms=20) as consumer:
        proxy.put("t", b"one")
        proxy.wait(lambda: len(proxy.done) == 1)
        consumer.pause()
        proxy.wait(lambda: not consumer._coordinator._parked)
        pulls = [method for method, _ in proxy.calls].count("pull")
        with Producer(proxy.address) as producer:
            for _ in range(20):
                producer.send("t", b"two")
        assert [method for method, _ in proxy.calls].count("pull") == pulls
        consumer.resume()
        proxy.wait(lambda: len(proxy.done) == 21)
        consumer.pause()
    assert len(got) == 21


def test_a_consumer_that_was_stopped_before_it_began_runs_no_more(proxy: Standin) -> None:
    consumer = Consumer(proxy.address, "g", "t", handler=lambda message: None)
    assert consumer.stop()
    assert consumer.run()
    reader = Consumer(proxy.address, "g", "t")
    assert reader.stop()
    with pytest.raises(ClosedError):
        reader.pull()
    assert proxy.calls == []


def test_the_first_pull_starts_the_consumer_and_others_share_it(proxy: Standin) -> None:
    proxy.put("t", *bodies(8))
    consumer = Consumer(proxy.address, "g", "t")
    got: list[Message] = []
    together = threading.Barrier(8)

    def pull() -> None:
        together.wait(60)
        got.extend(consumer.pull(1, timeout_ms=60_000))

    threads = [threading.Thread(target=pull) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(message.offset for message in got) == list(range(8))
    assert consumer.stop()


class Interrupted:
    """Stops a consumer as a signal handler does, before the nth line of the client or of `threading`."""

    def __init__(self, consumer: Consumer, line: int) -> None:
        self._consumer = consumer
        self.left = line
        self.answer: bool | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> "Interrupted | None":
        if "ddmq_client" not in (path := frame.f_code.co_filename) and not path.endswith("threading.py"):
            return None
        self.left -= event == "line"
        if self.left == 0 and event == "line":
            self.answer = self._consumer.stop(20_000)
        return self

    def __enter__(self) -> "Interrupted":
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


@pytest.mark.slow
def test_a_signal_handler_stops_a_consumer_at_any_line_of_its_start(proxy: Standin) -> None:
    lines = itertools.count(1, 7)
    for line in lines:
        consumer = Consumer(proxy.address, "g", "t", handler=lambda message: None, threads=2, linger_ms=20)
        started = time.monotonic()
        with suppress(ClientError), Interrupted(consumer, line) as interrupted:
            consumer.start()
        assert consumer.stop(20_000), f"interrupted before line {line}"
        assert time.monotonic() - started < 15, f"interrupted before line {line}: waited for itself"
        if interrupted.left > 0:
            break
    assert line > 100


def test_a_signal_handler_stops_a_consumer_at_any_line_of_its_stop(proxy: Standin) -> None:
    for line in range(1, 31):
        consumer = Consumer(proxy.address, "g", "t", linger_ms=20)
        consumer.start()
        started = time.monotonic()
        with Interrupted(consumer, line) as interrupted:
            assert consumer.stop(20_000), f"interrupted before line {line}"
        assert time.monotonic() - started < 15, f"interrupted before line {line}: waited for itself"
        assert interrupted.left <= 0


def test_a_signal_handler_stops_a_consumer_that_pulls_and_settles(proxy: Standin) -> None:
    for line in range(3, 200, 9):
        proxy.put("t", b"x")
        consumer = Consumer(proxy.address, "g", "t", linger_ms=20)
        for message in consumer:
            with Interrupted(consumer, line) as interrupted:
                message.ack()
                consumer.counts()
                with suppress(ClosedError):
                    consumer.pull(1, 100)
            break
        assert consumer.stop(20_000), f"interrupted before line {line}"
        if interrupted.left > 0:
            break
    assert line > 100
