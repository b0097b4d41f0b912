"""The list of levels, and records on their way through one."""

from __future__ import annotations

import pytest

from backend.internal_topics import REAL_QUEUE, REAL_TOPIC, real_record, schedule_record
from backend.records import NewRecord, StoredRecord
from ddmq_common.delays.levels import (
    DEFAULT_LEVELS,
    Levels,
    duration_text,
    parse_duration,
    parse_wait,
    wait_text,
)
from ddmq_common.delivery import encode
from ddmq_common.errors import DamagedError
from ddmq_common.names import SCHEDULE_TOPIC

ID = bytes(range(16))
DELIVERY = encode(b"k", b"\x00\xffbody", b"red", {b"a": b"b"})


def test_the_default_list_is_rocketmq_s() -> None:
    seconds = [wait // 1_000 for wait in DEFAULT_LEVELS.waits]
    assert seconds == [1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200]


@pytest.mark.parametrize(("level", "wait"), [(-1, 0), (0, 0), (1, 1_000), (18, 7_200_000), (99, 7_200_000)])
def test_above_the_last_is_the_last_and_0_is_none(level: int, wait: int) -> None:
    assert DEFAULT_LEVELS.wait_ms(level) == wait


@pytest.mark.parametrize("text", ["", "5", "0s", "-1s", "1.5s", "1w", "367d", "1s 5s", "１s"])
def test_invalid_waits_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is no wait; allowed"):
        parse_wait(text)


def test_a_wait_reads_back() -> None:
    assert [wait_text(parse_wait(text)) for text in ("250ms", "90s", "120s", "24h")] == [
        "250ms",
        "90s",
        "2m",
        "1d",
    ]


@pytest.mark.parametrize(
    ("waits", "says"),
    [([], "0 entries"), (["5s", "5s"], "level 2 is 5s, not longer than level 1"), (["2h", "1m"], "ascends")],
)
def test_invalid_lists_of_levels_are_rejected(waits: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Levels(waits)


def _record(queue_id: int = 3) -> NewRecord:
    return NewRecord("orders", queue_id, ID, 77, DELIVERY, b"k", b"red", 1, 0, {"origin": "x"})


def _stored(record: NewRecord, system: dict[str, str] | None = None) -> StoredRecord:
    fields = system if system is not None else dict(record.system or {})
    return StoredRecord(
        record.topic, record.queue_id, 9, 1000, record.message_id, record.born_ms, 500, record.flags,
        1_500, record.delivery, fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("level", "queue", "wait"), [(1, 0, 1_000), (18, 17, 7_200_000), (500, 17, 7_200_000)]
)
def test_there_and_back(level: int, queue: int, wait: int) -> None:
    there = schedule_record(_record(), level, DEFAULT_LEVELS)
    assert (there.topic, there.queue_id, there.due_ms) == (SCHEDULE_TOPIC, queue, -wait)
    assert there.system == {"origin": "x", REAL_TOPIC: "orders", REAL_QUEUE: "3"}
    back, before = real_record(_stored(there)), _record()
    for name in NewRecord.__slots__:  # type: ignore[attr-defined]
        assert getattr(back, name) == getattr(before, name), name


def test_a_record_without_other_system_properties_has_none_afterwards() -> None:
    record = _record()
    record.system = None
    assert real_record(_stored(schedule_record(record, 1, DEFAULT_LEVELS))).system is None


def test_level_0_is_no_delay() -> None:
    with pytest.raises(ValueError, match="level 0 is no delay"):
        schedule_record(_record(), 0, DEFAULT_LEVELS)


@pytest.mark.parametrize(
    "system",
    [{}, {REAL_TOPIC: "orders"}, {REAL_QUEUE: "1"}, {REAL_TOPIC: "orders", REAL_QUEUE: "-1"},
     {REAL_TOPIC: "orders", REAL_QUEUE: "x"}, {REAL_TOPIC: "", REAL_QUEUE: "0"}],
)  # fmt: skip
def test_a_record_without_its_target_is_damaged(system: dict[str, str]) -> None:
    with pytest.raises(DamagedError, match="REAL_QID"):
        real_record(_stored(_record(), system))


def test_unparsable_delivery_bytes_are_passed_on_unchanged() -> None:
    record = NewRecord("orders", 0, ID, 77, b"\xff\xff")
    back = real_record(_stored(schedule_record(record, 1, DEFAULT_LEVELS)))
    assert (back.delivery, back.key, back.tags) == (b"\xff\xff", b"", b"")


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (1, "1ms"),
        (90_000, "1m30s"),
        (5_400_000, "1h30m"),
        (63 * 86_400_000, "63d"),
        (86_400_001, "1d1ms"),
        (-5, "-5ms"),
    ],
)
def test_a_duration_is_written_as_people_do(ms: int, text: str) -> None:
    assert duration_text(ms) == text
    assert parse_duration(text.removeprefix("-"), 9) == abs(ms)
