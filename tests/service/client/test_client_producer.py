"""The blocking producer against a proxy that fails in every way."""

import threading
import time
from concurrent.futures import CancelledError, Future
from datetime import timedelta

import pytest

from ddmq_client import (
    BusyError,
    ClosedError,
    InvalidMessageError,
    NotStoredError,
    OptionError,
    OutgoingMessage,
    Producer,
    SendResult,
    UnknownOutcomeError,
)
from ddmq_client.core.nodes import ProxyAddress
from tests.service.client.standin import (
    AFTER,
    BEFORE,
    FAULT,
    GARBAGE,
    HALF,
    HOLD,
    OTHER_SEQUENCE,
    Standin,
    refuse,
)
from tests.support.ports import port_of, reserved

UNKNOWN = [AFTER, BEFORE, HALF, GARBAGE, OTHER_SEQUENCE, FAULT, refuse(10), refuse(12)]


def messages(count: int) -> list[OutgoingMessage]:
    return [OutgoingMessage("t", b"m%d" % at) for at in range(count)]


def test_send(proxy: Standin) -> None:
    with Producer(proxy.address, client_id="me") as producer:
        result = producer.send(
            "t", "grün", key="k", tags="a", properties={"p": "ü"}, shard_key="user-7", timeout_ms=2_000
        )
        assert (result.stored, result.offset, result.queue_id, result.proxy) == (True, 0, 0, proxy.address)
        producer.send("t", b"\xff\x00", queue=3)
    first, second = proxy.stored
    assert (first.body, first.key, first.tags, first.properties) == ("grün".encode(), "k", "a", {"p": "ü"})
    assert (first.partitionId, first.hashId, first.clientId) == (-1, 2537939745, "me")
    assert (second.body, second.partitionId, second.key) == (b"\xff\x00", 3, None)
    assert proxy.connections == 1
    with pytest.raises(ClosedError):
        producer.send("t", b"late")


@pytest.mark.parametrize("fault", UNKNOWN)
def test_what_may_be_stored_is_not_resent(proxy: Standin, fault: object) -> None:
    proxy.faults["sendSync"].append(fault)
    with Producer(proxy.address) as producer:
        with pytest.raises(UnknownOutcomeError):
            producer.send("t", b"x")
        assert len(proxy.calls) == 1
        assert producer.send("t", b"y").stored, "the producer goes on"


@pytest.mark.parametrize("fault", UNKNOWN)
def test_unless_the_application_allows_it(proxy: Standin, fault: object) -> None:
    proxy.faults["sendSync"].append(fault)
    with Producer(proxy.address, retry_unknown=True) as producer:
        assert producer.send("t", b"x").stored
    assert len(proxy.calls) == 2


@pytest.mark.parametrize("code", [15, 20])
def test_what_is_not_stored_is_resent_until_the_deadline(proxy: Standin, code: int) -> None:
    proxy.faults["sendSync"].extend([refuse(code)] * 2)
    with Producer(proxy.address) as producer:
        assert producer.send("t", b"x").stored
        assert len(proxy.calls) == 3
        proxy.faults["sendSync"].extend([refuse(code)] * 100)
        with pytest.raises(NotStoredError, match=f"told to answer {code}") as raised:
            producer.send("t", b"x", timeout_ms=1_000)  # over in a pause, not in an attempt
    assert (raised.value.code, raised.value.proxy) == (code, proxy.address)
    assert len(proxy.stored) == 1


def test_each_proxy_is_tried_once_when_all_reject(proxy: Standin, other: Standin) -> None:
    for standin in (proxy, other):
        standin.faults["sendSync"].append(refuse(21))
    with Producer([proxy.address, other.address]) as producer:
        with pytest.raises(NotStoredError, match="21"):
            producer.send("t", b"x")
        assert len(proxy.calls) == len(other.calls) == 1, "each is asked once"
        assert producer.send("t", b"y").stored
    assert len(proxy.stored) + len(other.stored) == 1


def test_a_rejection_of_the_message_itself_is_final(proxy: Standin, other: Standin) -> None:
    for standin in (proxy, other):
        standin.faults["sendSync"].append(refuse(11))
    with Producer([proxy.address, other.address]) as producer, pytest.raises(InvalidMessageError):
        producer.send("t", b"x")
    assert len(proxy.calls) + len(other.calls) == 1


def test_a_dead_proxy_is_left_out_and_comes_back(proxy: Standin, other: Standin) -> None:
    proxy.stop()
    with Producer([proxy.address, other.address]) as producer:
        assert {producer.send("t", b"x").proxy for _ in range(10)} == {other.address}
        assert (proxy.address, False) in producer.proxies()
        proxy.restart()
        proxy.wait(lambda: proxy.heartbeats > 0)
        proxy.wait(lambda: (proxy.address, True) in producer.proxies())
        assert {producer.send("t", b"x").proxy for _ in range(4)} == {proxy.address, other.address}
    assert len(proxy.stored) + len(other.stored) == 14


def test_no_proxy_at_all() -> None:
    started = time.monotonic()
    with (
        reserved() as dead,
        Producer(f"127.0.0.1:{port_of(dead)}") as producer,
        pytest.raises(NotStoredError, match="cannot connect"),
    ):
        producer.send("t", b"x", timeout_ms=300)
    assert time.monotonic() - started < 20
    with Producer("no-such-host.invalid") as producer, pytest.raises(NotStoredError, match="no name"):
        producer.send("t", b"x", timeout_ms=300)


def test_a_silent_proxy_costs_the_timeout_and_no_more(proxy: Standin) -> None:
    with Producer(proxy.address) as producer:
        assert producer.send("t", b"connected").stored
        proxy.faults["sendSync"].append(HOLD)
        started = time.monotonic()
        with pytest.raises(UnknownOutcomeError, match="within"):
            producer.send("t", b"x", timeout_ms=500)
        assert time.monotonic() - started < 10
        proxy.release()
        assert producer.send("t", b"y").stored, "the late answer is not taken for another one's"


def test_an_idle_connection_that_the_proxy_closed_costs_nothing(
    proxy: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddmq_client.net.connection.IDLE_CHECK_S", 0.0)
    with Producer(proxy.address) as producer:
        producer.send("t", b"x")
        proxy.stop()
        proxy.restart()
        assert producer.send("t", b"y").stored
        assert len(proxy.stored) == 2


def test_a_batch_is_split_and_answered_message_by_message(proxy: Standin) -> None:
    proxy.faults["sendBatch"].append(refuse(11))
    with Producer(proxy.address, batch_messages=4) as producer:
        outgoing = [
            *messages(9),
            OutgoingMessage("t", b""),
            OutgoingMessage("t", b"d", properties={"DELAY": "2"}),
        ]
        results = producer.send_batch(outgoing)
        assert producer.send_batch([]) == []
    assert [result.stored for result in results] == [False] + [True] * 8 + [False, True]
    assert [method for method, _ in proxy.calls] == ["sendBatch", "sendBatch", "sendSync", "sendSync"]
    assert isinstance(results[0].error, InvalidMessageError)
    assert isinstance(results[9].error, InvalidMessageError)
    assert [message.body for message in proxy.stored] == [b"m%d" % at for at in range(1, 9)] + [b"d"]
    for at in range(1, 9):
        assert proxy.stored[results[at].offset or 0].body == b"m%d" % at


def test_only_the_rejected_member_of_a_batch_is_resent(proxy: Standin) -> None:
    proxy.faults["sendBatch"].extend([refuse(15), refuse(15)])
    with Producer(proxy.address) as producer:
        results = producer.send_batch(messages(3))
    assert all(result.stored for result in results)
    assert [message.body for message in proxy.stored] == [b"m1", b"m2", b"m0"]


def test_large_batches_stay_within_the_frame(proxy: Standin) -> None:
    with Producer(proxy.address, timeout_ms=30_000) as producer:
        results = producer.send_batch([OutgoingMessage("t", b"x" * 1_500_000)] * 5)
    assert all(result.stored for result in results)
    assert [len(args.messages) for _, args in proxy.calls if hasattr(args, "messages")] == [2, 2]


def test_many_threads_share_a_producer(proxy: Standin) -> None:
    with Producer(proxy.address, connections_max=4) as producer:
        threads = [
            threading.Thread(target=lambda: [producer.send("t", b"x") for _ in range(20)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(proxy.stored) == 160
    assert proxy.connections <= 4


def test_connections_are_bounded(proxy: Standin) -> None:
    proxy.faults["sendSync"].append(HOLD)
    with Producer(proxy.address, connections_max=1) as producer:
        first = threading.Thread(target=lambda: producer.send("t", b"x"))
        first.start()
        proxy.wait(lambda: len(proxy.calls) == 1)
        with pytest.raises(BusyError, match="all 1 connections"):
            producer.send("t", b"y", timeout_ms=50)
        proxy.release()
        first.join(20)
    assert len(proxy.stored) == 1


def test_sends_in_the_background(proxy: Standin) -> None:
    proxy.faults["sendSync"].append(refuse(11))
    done: list[SendResult] = []
    with Producer(proxy.address, async_workers=1) as producer:
        with pytest.raises(InvalidMessageError):
            producer.send_async(messages(1)[0], on_done=done.append).result(20)
        proxy.faults["sendSync"].append(HOLD)
        first, *others = messages(60)
        futures = [producer.send_async(first, on_done=done.append)]
        proxy.wait(lambda: len(proxy.calls) == 2)
        futures += [producer.send_async(message, on_done=done.append) for message in others]
        assert not producer.flush(20)
        proxy.release()
        assert producer.flush(20_000)
        offsets = [future.result(0).offset for future in futures]
    assert offsets == list(range(60)), "one worker keeps the order"
    assert [result.stored for result in done] == [False] + [True] * 60
    assert len(proxy.calls) == 3, "what waited went together"


def test_background_sends_are_bounded_and_can_be_cancelled(proxy: Standin) -> None:
    proxy.faults["sendSync"].append(HOLD)
    with Producer(proxy.address, in_flight_max=2, async_workers=1) as producer:
        first = producer.send_async(messages(1)[0])
        proxy.wait(lambda: len(proxy.calls) == 1)
        second = producer.send_async(messages(2)[1])
        with pytest.raises(BusyError, match="2 sends are in flight"):
            producer.send_async(messages(3)[2], timeout_ms=50)
        assert second.cancel()
        proxy.release()
        assert first.result(20).stored
    with pytest.raises(CancelledError):
        second.result(0)
    assert len(proxy.stored) == 1


def test_close_sends_what_waits_until_its_deadline(proxy: Standin) -> None:
    producer = Producer(proxy.address, async_workers=1, batch_messages=1)
    proxy.faults["sendSync"].append(HOLD)
    futures = [producer.send_async(message) for message in messages(5)]
    proxy.release()
    producer.close(20_000)
    assert all(future.result(0).stored for future in futures)
    producer = Producer(proxy.address, async_workers=1, batch_messages=1)
    proxy.faults["sendSync"].append(HOLD)
    futures = [producer.send_async(message) for message in messages(5)]
    proxy.wait(lambda: len(proxy.calls) == 6)
    producer.close(50)
    with pytest.raises(UnknownOutcomeError):
        futures[0].result(20)
    proxy.release()
    for future in futures[1:]:
        with pytest.raises(NotStoredError, match="closed first"):
            future.result(20)


def test_oneway(proxy: Standin, other: Standin) -> None:
    other.stop()
    with Producer([other.address, proxy.address]) as producer:
        for message in messages(6):
            producer.send_oneway(message)
        assert producer.send("t", b"after").stored
        proxy.wait(lambda: len(proxy.stored) == 7)
    with Producer(other.address) as producer, pytest.raises(NotStoredError):
        producer.send_oneway(messages(1)[0], timeout_ms=200)


def test_a_name_is_resolved_repeatedly(
    proxy: Standin, other: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = [proxy]
    monkeypatch.setattr(
        "ddmq_client.net.router.resolve_addresses",
        lambda addresses, cached: [ProxyAddress("127.0.0.1", standin.port) for standin in resolved],
    )
    monkeypatch.setattr("ddmq_client.net.router.RESOLVE_EVERY_S", 0.05)
    with Producer("proxies.example:1") as producer:
        assert producer.send("t", b"x").proxy == proxy.address
        resolved[:] = [other]
        other.wait(lambda: producer.proxies() == [(other.address, True)])
        assert producer.send("t", b"x").proxy == other.address


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout_ms": 0},
        {"connections_max": 0},
        {"in_flight_max": 0},
        {"batch_bytes": 5_000_000},
        {"client_id": "x" * 256},
        {"selector": "best"},
        {"observer": "me"},
    ],
)
def test_settings_are_checked(settings: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(settings))):
        Producer("h:1", **settings)  # type: ignore[arg-type]


def test_a_callback_that_exits_ends_no_worker(proxy: Standin) -> None:
    def leave(result: SendResult) -> None:
        raise SystemExit(1)

    with Producer(proxy.address, async_workers=1) as producer:
        for message in messages(3):
            assert producer.send_async(message, on_done=leave).result(20).stored
        assert producer.flush()


def test_a_callback_of_a_future_that_exits_ends_no_worker(proxy: Standin) -> None:
    def leave(future: Future[SendResult]) -> None:
        raise SystemExit(1)

    proxy.faults["sendSync"].append(HOLD)
    with Producer(proxy.address, async_workers=1) as producer:
        producer.send_async(messages(1)[0]).add_done_callback(leave)
        proxy.release()
        assert producer.send_async(messages(1)[0]).result(20).stored
        assert producer.flush()


@pytest.mark.parametrize(
    "invalid",
    [
        {"queue": -1}, {"queue": "1"}, {"queue": 1.5}, {"shard_key": 3.5}, {"shard_key": 2**70},
        {"body": None}, {"body": b""}, {"key": 5}, {"properties": {"a": None}}, {"topic": "\udc80"},
    ],
)  # fmt: skip
def test_one_invalid_message_of_a_batch_fails_alone(proxy: Standin, invalid: dict[str, object]) -> None:
    bad = OutgoingMessage(**{"topic": "t", "body": b"x", **invalid})  # type: ignore[arg-type]
    with Producer(proxy.address) as producer:
        results = producer.send_batch([OutgoingMessage("t", b"a"), bad, OutgoingMessage("t", b"b")])
        assert [result.stored for result in results] == [True, False, True]
        assert isinstance(results[1].error, InvalidMessageError)
        with pytest.raises((InvalidMessageError, OptionError)):
            producer.send_message(bad)
    assert len(proxy.stored) == 2


@pytest.mark.parametrize("proxies", [None, 9613, [("h", 1)], [], "", "h:0", "h:x"])
def test_invalid_addresses_are_named(proxies: object) -> None:
    with pytest.raises(OptionError, match=r"prox|the address of the producer is missing"):
        Producer(proxies)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="selector"):
        Producer("h:1", selector=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "invalid",
    [
        {"cron": "* * * * *", "zone": 5}, {"cron": "\udc80"}, {"every": timedelta(1), "times": 2**63},
        {"delay": timedelta(1), "catch_up": ["all"]}, {"delay": timedelta.min},
    ],
)  # fmt: skip
def test_invalid_times_are_named(proxy: Standin, invalid: dict[str, object]) -> None:
    with Producer(proxy.address) as producer:
        with pytest.raises(OptionError, match="|".join(invalid)):
            producer.send("t", b"x", **invalid)  # type: ignore[arg-type]
        producer.send("t", b"x", delay=timedelta.max)  # the proxy says what is too far
    assert len(proxy.delayed) == 1
