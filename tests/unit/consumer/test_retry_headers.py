"""Retry headers and dead letters without a backend: what travels, which step is next, what comes back."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.internal_topics import read_dead_letter, real_record, resent_record, schedule_record
from backend.records import NewRecord, QueueRef, StoredRecord
from ddmq_common.delays.levels import DEFAULT_LEVELS
from ddmq_common.delivery import decode, encode
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.jobs import JobState, UpstreamJob
from proxy_consumer.retries.headers import (
    attempts_before,
    dead_letter,
    error_text,
    headers_after,
    headers_of,
    retry_record,
)
from proxy_consumer.retries.publisher import DEAD_LETTER, level_of, next_hop

ID = bytes(range(16))
DEFAULTS = SubscriptionDefaults()


def stored(new: NewRecord, offset: int) -> StoredRecord:
    """As it would be read again."""
    return StoredRecord(
        new.topic, new.queue_id, offset, offset, new.message_id, new.born_ms, 7, new.flags, 0, new.delivery,
        dict(new.system or {}),
    )  # fmt: skip


def message(system: dict[str, str] | None = None) -> StoredRecord:
    delivery = encode(b"k", b"v", b"t", {b"p": b"q"})
    return stored(NewRecord("T", 3, ID, 5, delivery, b"k", b"t", 1, system=system), 42)


def job(fails: int = 1, timeouts: int = 0, error: str = "") -> UpstreamJob:
    spent = UpstreamJob(42, JobState.SPENT, fails, timeouts)
    spent.reason, spent.error = "failed" if fails else "timed-out", error
    return spent


def through_the_level(record: StoredRecord, spent: UpstreamJob, step: int) -> StoredRecord:
    """One step: into the level and out of it."""
    headers = headers_after(record, spent, 1_000)
    retried = retry_record(QueueRef("%RETRY%G", 1, 9), record, headers._replace(steps=step))
    scheduled = schedule_record(retried, level_of(step), DEFAULT_LEVELS)
    return stored(real_record(stored(scheduled, 0)), 100 + step)


def test_sixteen_steps_from_ten_seconds_to_two_hours() -> None:
    waits = [DEFAULT_LEVELS.wait_ms(level_of(step)) for step in range(1, 17)]
    assert (waits[0], waits[1], waits[-1]) == (10_000, 30_000, 7_200_000)
    assert sum(waits) == ((4 * 60 + 45) * 60 + 40) * 1000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.integers(0, 16))
def test_every_step_until_they_are_used_up(deliveries: list[tuple[int, int]], retry_steps: int) -> None:
    """The naive model: a counter of steps, and a sum."""
    config = SubscriptionDefaults(retry_steps=retry_steps)
    record, total, steps = message({"other": "x"}), 0, 0
    for first, (fails, timeouts) in zip(chain((True,), repeat(False)), deliveries, strict=False):
        spent = job(fails, timeouts)
        total += fails + timeouts
        step = next_hop(spent, headers_after(record, spent, 1), config)
        steps += 0 if first else max(0, fails - 1)  # those that waited for a delay of their own
        assert step == (steps + 1 if steps < retry_steps else 0)
        if step == 0:
            break
        steps += 1
        record = through_the_level(record, spent, step)
        assert attempts_before(record.system) == total
    else:
        spent = job(0, 0)
    letter = read_dead_letter(
        stored(dead_letter("G", record, headers_after(record, spent, 1), spent.reason, 99), 1)
    )
    assert (letter.topic, letter.queue_id, letter.offset) == ("T", 3, 42)
    assert letter.attempts == total
    assert dict(letter.record.system) == {"other": "x"}


def test_what_travels_is_the_message_as_it_was() -> None:
    record = through_the_level(message({"other": "x"}), job(4, error="boom"), 1)
    assert (record.topic, record.queue_id) == ("%RETRY%G", 9)
    assert (record.message_id, record.born_ms, record.flags) == (ID, 5, 1)
    assert record.delivery == message().delivery
    assert dict(record.system) == {
        "other": "x",
        "RECONSUME_TIME": "1",
        "RETRY_TOPIC": "T",
        "retry-queue": "3",
        "retry-offset": "42",
        "retry-deliveries": "4",
        "retry-since-ms": "1000",
        "retry-error": "boom",
    }


def test_the_last_error_and_the_first_failure_are_carried_over_steps() -> None:
    first = through_the_level(message(), job(4, error="boom"), 1)
    headers = headers_after(first, job(0, 17), 2_000)
    assert (headers.error, headers.since_ms, headers.deliveries, headers.offset) == ("boom", 1_000, 21, 42)
    assert headers_after(first, job(error="bang"), 2_000).error == "bang"


def test_retry_headers_count_only_in_a_retry_topic() -> None:
    forged = message({"RETRY_TOPIC": "elsewhere", "RECONSUME_TIME": "16", "retry-deliveries": "99"})
    assert headers_of(forged) == (0, "T", 3, 42, 0, 0, "")


def test_retry_headers_that_are_no_numbers_hold_nothing_up() -> None:
    record = through_the_level(message(), job(), 1)
    broken = record._replace(system={**record.system, "RECONSUME_TIME": "²", "retry-queue": "-1"})
    assert (headers_of(broken).steps, headers_of(broken).queue_id, headers_of(broken).offset) == (0, 0, 42)
    assert attempts_before({}) == attempts_before({"retry-deliveries": "x"}) == 0
    assert attempts_before({"retry-deliveries": "9" * 18}) < 1 << 31, "a client is told it in 32 bits"


@pytest.mark.parametrize(
    "config", [SubscriptionDefaults(order_key="KEY"), SubscriptionDefaults(retry_steps=0)]
)
def test_ordered_ones_and_those_without_steps_are_dead_at_once(config: SubscriptionDefaults) -> None:
    assert next_hop(job(), headers_of(message()), config) == DEAD_LETTER


def test_a_final_job_is_dead_at_once() -> None:
    final = job()
    final.final = True
    assert next_hop(final, headers_of(message()), DEFAULTS) == DEAD_LETTER
    assert next_hop(job(), headers_of(message()), DEFAULTS) == 1


@given(st.text(max_size=1_000))
def test_error_texts_are_one_short_line(text: str) -> None:
    line = error_text(text)
    assert len(line) <= 200
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in line)
    line.encode()


def test_lone_surrogates_do_not_hold_an_error_up() -> None:
    assert error_text("a\ud800b\nc ") == "a?b c"


def test_a_dead_letter_and_the_message_it_is_resent_as() -> None:
    new = dead_letter("G", message(), headers_after(message(), job(4, error="boom"), 1), "failed", 99)
    assert (new.topic, new.queue_id, new.message_id, new.born_ms, new.flags) == ("%DLQ%G", 0, ID, 5, 1)
    assert decode(new.delivery) == (
        b"k",
        b"v",
        b"t",
        {
            b"p": b"q",
            b"dead-letter-reason": b"failed",
            b"dead-letter-error": b"boom",
            b"dead-letter-topic": b"T",
            b"dead-letter-queue": b"3",
            b"dead-letter-offset": b"42",
            b"dead-letter-attempts": b"4",
            b"dead-letter-time": b"99",
        },
    )
    resent = resent_record(read_dead_letter(stored(new, 8)), 4)
    assert (resent.topic, resent.queue_id, resent.key, resent.tags) == ("T", 3, b"k", b"t")
    assert (resent.message_id, resent.born_ms, resent.flags, resent.system) == (ID, 5, 1, None)
    assert decode(resent.delivery).properties == {b"p": b"q", b"dead-letter-resent": b"1"}


def test_resending_is_counted_through_the_next_death() -> None:
    record = message()
    for times in (1, 2, 3):
        letter = read_dead_letter(stored(dead_letter("G", record, headers_of(record), "failed", 1), 0))
        assert letter.resent == times - 1
        record = stored(resent_record(letter, 8), 50)
    assert decode(record.delivery).properties[b"dead-letter-resent"] == b"3"
    assert record.queue_id == 3


def test_a_queue_that_is_not_there_becomes_another() -> None:
    letter = read_dead_letter(stored(dead_letter("G", message(), headers_of(message()), "failed", 1), 0))
    assert resent_record(letter, 2).queue_id == 1


@pytest.mark.parametrize("bare", [True, False])
def test_bytes_that_do_not_parse_are_stored_with_the_facts_beside_them(bare: bool) -> None:
    record = message()._replace(delivery=b"\xff\xff")
    new = dead_letter("G", record, headers_after(record, job(error="e"), 1), "failed", 99, bare=bare)
    assert new.delivery == b"\xff\xff"
    letter = read_dead_letter(stored(new, 0))
    assert (letter.content, letter.reason, letter.error, letter.topic) == (None, "failed", "e", "T")
    resent = resent_record(letter, 4)
    assert (resent.delivery, resent.topic, resent.queue_id, resent.system) == (b"\xff\xff", "T", 3, None)


def test_a_bare_letter_says_the_same() -> None:
    letter = read_dead_letter(
        stored(dead_letter("G", message(), headers_of(message()), "failed", 99, bare=True), 0)
    )
    assert letter.content is not None
    assert (letter.reason, letter.topic, letter.time_ms) == ("failed", "T", 99)
