"""Rows with keys: what they are, and what a task does where these are not taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import Row

from ddmq_client import (
    InvalidMessageError,
    NoSuchTopicError,
    NotStoredError,
    OutgoingMessage,
    SendResult,
    ThrottledError,
    UnknownOutcomeError,
)
from ddmq_client.core.sending import result_of
from ddmq_client.errors import SendError
from metrics_job.sparksource.options import WriteError
from metrics_job.sparksource.sink import RowStore, to_message, with_key

Answer = Callable[[OutgoingMessage], SendError | None]
REFUSED = InvalidMessageError("this engine takes no keys", 11, "mq:9613")
FULL = ThrottledError("500000 keys are known", 15, "mq:9613")


class ManualTime:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class ScriptedProducer:
    """Answers each message as it was told to; one that throttles takes all of the time for it."""

    def __init__(self, clock: ManualTime, answer: Answer) -> None:
        self._clock = clock
        self._answer = answer
        self.stored: list[OutgoingMessage] = []
        self.calls: list[tuple[int, int]] = []  # messages and timeout_ms

    def send_batch(self, messages: Sequence[OutgoingMessage], *, timeout_ms: int) -> list[SendResult]:
        self.calls.append((len(messages), timeout_ms))
        results = []
        for message in messages:
            error = self._answer(message)
            result = SendResult() if error is None else result_of(error)
            result.code = 0 if error is None else result.code
            results.append(result)
            if error is None:
                self.stored.append(message)
        if any(isinstance(result.error, ThrottledError) for result in results):
            self._clock.now += timeout_ms / 1000
        return results


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    clock_module = ManualTime()
    monkeypatch.setattr("metrics_job.sparksource.sink.time", clock_module)
    return clock_module


def rows(count: int, first: int = 0) -> list[OutgoingMessage]:
    return [to_message(Row(value=f"v{at}"), "t", f"q/0/1/{at}") for at in range(first, first + count)]


def keys(messages: Sequence[OutgoingMessage]) -> list[str | None]:
    return [message.idempotency_key for message in messages]


def send_rows(
    answer: Answer, clock: ManualTime, once: Any = "auto", has_key: bool = True
) -> tuple[Any, RowStore]:
    producer: Any = ScriptedProducer(clock, answer)
    return producer, RowStore(producer, 30_000, once, has_key)


# --- keys


def test_a_key_identifies_a_row_and_its_content() -> None:
    row_key = "q/0/1/2"
    plain = {"value": b"v", "key": "k", "tags": "t", "properties": {"a": "b", "c": "d"}, "queue": 1}
    first = with_key(to_message(Row(**plain), "t", row_key)).idempotency_key
    assert first is not None
    assert first.startswith("q/0/1/2/")
    assert len(first) == len(row_key) + 1 + 16
    turned = plain | {"properties": {"c": "d", "a": "b"}}
    assert with_key(to_message(Row(**turned), "t", row_key)).idempotency_key == first, "the same row"
    others = [
        with_key(to_message(Row(**(plain | change)), topic, at)).idempotency_key
        for change, topic, at in (
            ({"value": b"w"}, "t", row_key), ({"key": "l"}, "t", row_key), ({"tags": None}, "t", row_key),
            ({"properties": {"a": "b"}}, "t", row_key), ({"queue": 2}, "t", row_key), ({}, "u", row_key),
            ({}, "t", "q/0/1/3"),
        )
    ]  # fmt: skip
    assert len({first, *others}) == 8


def test_a_key_of_the_row_is_kept() -> None:
    message = to_message(Row(value="v", properties={"idempotency-key": "mine"}), "t", "q/0/1/2")
    assert with_key(message).idempotency_key is None
    assert (message.properties or {})["idempotency-key"] == "mine"


# --- a task


def test_a_task_that_is_repeated_has_the_same_keys(clock: ManualTime) -> None:
    first, store = send_rows(lambda message: None, clock)
    store.store_rows(rows(3))
    store.store_rows(rows(3, first=3))
    second, repeated = send_rows(lambda message: None, clock)
    repeated.store_rows(rows(6))
    assert keys(first.stored) == keys(second.stored)
    assert len(set(keys(first.stored)) - {None}) == 6


@pytest.mark.parametrize(("once", "has_key"), [("false", True), ("auto", False)])
def test_rows_without_keys(clock: ManualTime, once: str, has_key: bool) -> None:
    producer, store = send_rows(lambda message: None, clock, once, has_key)
    store.store_rows(rows(2))
    assert keys(producer.stored) == [None, None]
    assert producer.calls == [(2, 30_000)]


def test_an_engine_that_takes_no_keys_gets_none(clock: ManualTime, caplog: pytest.LogCaptureFixture) -> None:
    producer, store = send_rows(lambda message: REFUSED if message.idempotency_key else None, clock)
    with caplog.at_level(logging.WARNING, logger="ddmq.spark"):
        store.store_rows(rows(3))
        store.store_rows(rows(3, first=3))
    assert keys(producer.stored) == [None] * 6
    assert [count for count, _ in producer.calls] == [3, 3, 3], "it is asked once"
    assert "without idempotency keys" in caplog.text
    assert "takes no keys" in caplog.text


def test_stored_messages_are_not_resent_without_their_key(clock: ManualTime) -> None:
    """Some proxies of a cluster may take keys already."""
    producer, store = send_rows(
        lambda message: REFUSED if message.idempotency_key and message.body == "v1" else None, clock
    )
    store.store_rows(rows(3))
    assert [message.body for message in producer.stored] == ["v0", "v2", "v1"]
    assert [key is None for key in keys(producer.stored)] == [False, False, True]


def test_full_proxies_are_waited_for_and_then_get_no_keys(clock: ManualTime) -> None:
    producer, store = send_rows(lambda message: FULL if message.idempotency_key else None, clock)
    store.store_rows(rows(3))
    assert keys(producer.stored) == [None] * 3
    assert clock.now == 15.0, "half of the time"
    assert producer.calls == [(3, 15_000), (3, 30_000)]


def test_a_short_rejection_costs_no_keys(clock: ManualTime) -> None:
    errors: list[SendError] = [UnknownOutcomeError("lost"), NotStoredError("down")]
    producer, store = send_rows(lambda message: errors.pop() if errors else None, clock)
    store.store_rows(rows(1))
    store.store_rows(rows(1, first=1))
    assert None not in keys(producer.stored)


@pytest.mark.parametrize("error", [REFUSED, FULL])
def test_a_job_that_insists_fails_instead(clock: ManualTime, error: SendError) -> None:
    producer, store = send_rows(lambda message: error if message.idempotency_key else None, clock, "true")
    with pytest.raises(WriteError, match=r"3 of 3 messages were not stored, first: .*keys"):
        store.store_rows(rows(3))
    assert not producer.stored
    with pytest.raises(WriteError, match="no id of the query"):
        send_rows(lambda message: None, clock, "true", has_key=False)


@pytest.mark.parametrize(
    "error",
    [InvalidMessageError("body of 0 bytes", 11), NoSuchTopicError("no topic", 13, "mq:9613")],
)
def test_errors_unrelated_to_keys_fail_at_once(clock: ManualTime, error: SendError) -> None:
    producer, store = send_rows(lambda message: error, clock)
    with pytest.raises(WriteError, match=r"2 of 2 messages were not stored"):
        store.store_rows(rows(2))
    assert len(producer.calls) == 1


def test_an_invalid_message_is_retried_once(clock: ManualTime) -> None:
    producer, store = send_rows(lambda message: REFUSED, clock)
    with pytest.raises(WriteError, match=r"2 of 2"):
        store.store_rows(rows(2))
    assert len(producer.calls) == 2


def test_the_time_ends(clock: ManualTime) -> None:
    producer, store = send_rows(lambda message: NotStoredError("down"), clock)
    with pytest.raises(WriteError, match="down"):
        store.store_rows(rows(2))
    assert clock.now <= 30.0
    assert len(producer.calls) > 10
