"""Messages to Kafka's records and back: whole, also what is no message of ours."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.kafka.records import RECORD_EXTRA, KafkaRecord, foreign_id, size_in_kafka
from backend.kafka.records import encode as to_kafka
from backend.records import FLAG_PRESSURE, NewRecord, tag_hash
from ddmq_common.delivery import Content, decode, encode
from ddmq_common.errors import CallerError, DamagedError


class KafkaMessage:
    """What confluent_kafka.Message answers."""

    def __init__(self, key: Any, value: Any, headers: Any, offset: int = 7, stored_ms: int = 1_000) -> None:
        self._fields = key, value, headers, offset, stored_ms

    def key(self) -> Any:
        return self._fields[0]

    def value(self) -> Any:
        return self._fields[1]

    def headers(self) -> Any:
        return self._fields[2]

    def offset(self) -> int:
        return self._fields[3]

    def partition(self) -> int:
        return 2

    def timestamp(self) -> tuple[int, int]:
        return 2, self._fields[4]


def came_back(record: NewRecord, stored_ms: int = 1_000) -> KafkaRecord:
    return KafkaRecord(KafkaMessage(*to_kafka(record), stored_ms=stored_ms), b"topic-id")


def read(key: Any = None, value: Any = None, headers: Any = None) -> tuple[KafkaRecord, Content]:
    record = KafkaRecord(KafkaMessage(key, value, headers), b"topic-id")
    return record, decode(record.delivery)


TEXT = st.text(max_size=12).map(str.encode)
NAMES = st.one_of(TEXT, st.binary(max_size=5), TEXT.map(b"ddmq-".__add__), st.just(b"ddmq-id"))


@given(
    key=TEXT,
    value=st.binary(max_size=200),
    tag=TEXT,
    properties=st.dictionaries(NAMES, st.one_of(TEXT, st.binary(max_size=6)), max_size=4),
    flags=st.integers(0, 3),
    due_ms=st.integers(-(10**9), 10**13),
    system=st.dictionaries(
        st.text(st.characters(exclude_characters="\0", codec="utf-8")), st.text(), max_size=3
    ),
)
def test_every_message_comes_back_as_it_was(
    key: bytes, value: bytes, tag: bytes, properties: dict[bytes, bytes], flags: int, due_ms: int, system: Any
) -> None:
    delivery = encode(key, value, tag, properties)
    new = NewRecord("t", 2, b"i" * 16, 500, delivery, key, tag, flags, due_ms, system)
    record = came_back(new)
    assert bytes(record.delivery) == delivery
    assert (record.message_id, record.born_ms, record.flags) == (b"i" * 16, 500, flags)
    assert record.due_ms == (due_ms if due_ms >= 0 else 1_000 - due_ms)
    assert record.tag_hash == tag_hash(tag)
    assert dict(record.system) == system
    stored = record.to_stored_record("t", 2)
    assert (stored.offset, stored.position, stored.stored_ms) == (7, -1, 1_000)
    assert record.to_short_record("x").value == system.get("x", "").encode()


@given(delivery=st.binary(max_size=60), tag=TEXT)
def test_bytes_that_are_no_message_come_back_as_one(delivery: bytes, tag: bytes) -> None:
    """Else no client could read the answer that they are in, with the messages of others."""
    record = came_back(NewRecord("t", 2, b"i" * 16, 500, delivery, b"k", tag))
    assert record.tag_hash == tag_hash(tag)
    try:
        decode(delivery)
    except DamagedError:
        [(name, raw)] = decode(record.delivery).properties.items()
        assert delivery == {b"ddmq-raw": raw}.get(name) or delivery == b64decode(raw)
    else:
        assert record.delivery == delivery


def test_records_as_other_tools_read_them() -> None:
    delivery = encode(b"k", b"body", b"red", {b"colour": "grün".encode(), b"ddmq-x": b"1", b"a\0": b"2"})
    new = NewRecord("t", 0, b"i" * 16, 500, delivery, b"k", b"red", FLAG_PRESSURE, -5, {"REAL_TOPIC": "o"})
    assert to_kafka(new) == (
        b"k",
        b"body",
        [
            ("ddmq-id", b"i" * 16),
            ("ddmq-born", b"500"),
            ("ddmq-tag", b"red"),
            ("ddmq-flags", b"1"),
            ("ddmq-due", b"-5"),
            ("ddmq-s-REAL_TOPIC", b"o"),
            ("colour", "grün".encode()),
            ("ddmq-p-ddmq-x", b"1"),
            ("ddmq-b-YQA=", b"2"),
        ],
    )
    plain = NewRecord("t", 0, b"i" * 16, 500, encode(b"", b"", b"", None))
    assert to_kafka(plain) == (None, b"", [("ddmq-id", b"i" * 16), ("ddmq-born", b"500")])


def test_nothing_at_all_is_an_empty_message() -> None:
    record, content = read()
    assert content == Content(b"", b"", b"", {})
    assert record.message_id == foreign_id(b"topic-id", 2, 7) != foreign_id(b"topic-id", 2, 8)
    assert (record.born_ms, record.due_ms, record.flags, record.tag_hash) == (1_000, 0, 0, 0)


def test_headers_of_others_are_properties() -> None:
    _, content = read(b"k", b"v", [("a", b"1"), ("b", None), ("a", b"2"), ("bin", b"\xff\0")])
    assert content.properties == {b"a": b"2", b"b": b"", b"bin;base64": b64encode(b"\xff\0")}


def test_a_key_that_is_no_text_comes_as_base64_and_says_so() -> None:
    _, content = read(b"\xff\x01", b"v")
    assert (content.key, content.properties) == (b64encode(b"\xff\x01"), {b"ddmq-key": b"base64"})


def test_invalid_headers_of_ddmq_are_ignored() -> None:
    nonsense = [("ddmq-id", b"short"), ("ddmq-born", b"x"), ("ddmq-flags", None), ("ddmq-due", b"9" * 40)]
    record, content = read(b"k", b"v", [*nonsense, ("ddmq-tag", b"\xff"), ("ddmq-later", b"1")])
    assert (record.born_ms, record.due_ms, record.flags, len(record.message_id)) == (1_000, 0, 0, 16)
    assert content == Content(b"k", b"v", b"", {})


def test_test_traffic_of_others_is_marked_by_its_header() -> None:
    assert read(headers=[("isPressureTraffic", b"true")])[0].flags == FLAG_PRESSURE
    assert read(headers=[("isPressureTraffic", b"false")])[0].flags == 0


def test_a_system_property_that_no_header_can_be_named_after() -> None:
    with pytest.raises(CallerError, match="NUL"):
        to_kafka(NewRecord("t", 0, b"i" * 16, 0, encode(b"", b"", b"", None), system={"a\0b": "c"}))


@pytest.mark.parametrize(
    ("properties", "system"),
    [
        ({b"ddmq-%d" % n: b"" for n in range(400)}, None),
        ({b"\0%d" % n: b"" for n in range(400)}, None),
        ({b"n" * 70 + b"%d" % n: b"v" * 70 for n in range(400)}, None),
        ({}, {"retry-error": "\u00fc" * 5_000}),
        ({}, None),
    ],
)
def test_the_size_in_kafka_is_estimated_closely(properties: dict[bytes, bytes], system: Any) -> None:
    """Names of headers may be longer than those of properties, and system properties are beside them."""
    delivery = encode(b"k", b"v" * 50, b"tag", properties)
    new = NewRecord("t", 2, b"i" * 16, 500, delivery, b"k", b"tag", system=system)
    key, value, headers = to_kafka(new)
    assert key is not None
    least = 61 + len(key) + len(value) + sum(len(name.encode()) + len(text) + 2 for name, text in headers)
    assert size_in_kafka(new, least) > least
    assert size_in_kafka(new, least) < least + len(headers) * 4 + RECORD_EXTRA
    assert size_in_kafka(new, 1 << 30) < 1 << 30


@pytest.mark.parametrize("flags", [b"-7", b"-1", b"256", b"1e3", b"", None])
def test_unknown_flags_of_other_programs_are_ignored(flags: bytes | None) -> None:
    assert read(headers=[("ddmq-flags", flags)])[0].flags == 0


def test_a_born_time_before_1970_is_not_there() -> None:
    assert read(headers=[("ddmq-born", b"-5")])[0].born_ms == 1_000
