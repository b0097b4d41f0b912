"""Each rejection with code 11: its reason, the invalid value, and what is allowed."""

import pytest

from ddmq_client.idl.codes import RESERVED_PROPERTIES
from proxy_producer.core.rejections import quote_text
from proxy_producer.core.validation import (
    ContentLimits,
    check_batch_size,
    check_content,
    check_topic_name,
    delay_level,
)

LIMITS = ContentLimits(body_bytes_max=100, properties_bytes_max=60)


def check(key=b"k", tags=b"t", body=b"body", properties=None, limits=LIMITS):
    return check_content(key, tags, body, properties, limits)


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"key": b"k" * 256}, "key_long", ["256 characters", "at most 255 characters"]),
        ({"tags": b"t" * 256}, "tags_long", ["256 characters", "at most 255 characters"]),
        ({"key": "é".encode() * 256}, "key_long", ["256 characters"]),
        ({"key": b"ok\xff\xfe"}, "not_utf8", ["key", "byte 0xff at position 2", "UTF-8"]),
        ({"tags": b"\xc3"}, "not_utf8", ["tags", "0xc3"]),
        ({"body": b""}, "body_empty", ["0 bytes", "1 to 100 bytes"]),
        ({"body": None}, "body_empty", ["0 bytes"]),
        ({"body": b"x" * 101}, "body_long", ["101 bytes", "1 to 100 bytes"]),
        ({"properties": {b"": b"v"}}, "property_blank", ["name '' is blank"]),
        ({"properties": {b" \t": b"v"}}, "property_blank", ["blank"]),
        ({"properties": {b"p": b""}}, "property_blank", ["'p'", "''"]),
        ({"properties": {b"p": b"  "}}, "property_blank", ["'p'", "'  '"]),
        ({"properties": {b"p": None}}, "property_blank", ["'p'"]),
        ({"properties": {b"p": "\u3000".encode()}}, "property_blank", ["'p'"]),
        ({"properties": {"\u3000".encode(): b"v"}}, "property_blank", ["name"]),
        ({"properties": {b"p": b"\xff"}}, "not_utf8", ["'p'", "0xff"]),
        ({"properties": {b"\x80": b"v"}}, "not_utf8", ["name", "0x80"]),
        ({"properties": {b"p": b"v" * 60}}, "properties_long", ["61 bytes", "at most 60 bytes"]),
        ({"properties": {b"DELAY": b"3s"}}, "property_reserved", ["DELAY", "'3s'", "whole number"]),
        ({"properties": {b"DELAY": b"-1"}}, "property_reserved", ["'-1'"]),
        ({"properties": {b"DELAY": b""}}, "property_reserved", ["DELAY", "''"]),
        ({"properties": {b"DELAY": "３".encode()}}, "property_reserved", ["DELAY"]),
    ],
)
def test_an_illegal_message_says_what_is_wrong(fields, reason, words):
    rejection = check(**fields)
    assert rejection is not None
    assert (rejection.code, rejection.reason) == (11, reason)
    assert rejection.text.startswith("FAILED: ")
    for word in words:
        assert word in rejection.text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"key": b"", "tags": b""},
        {"key": b"k" * 255, "tags": b"t" * 255},
        {"key": "é".encode() * 255, "tags": "😀".encode() * 255},
        {"body": b"x"},
        {"body": b"\xff" * 100},
        {"properties": {}},
        {"properties": {b"p": b"v" * 59}},
        {"properties": {b"p": b" v", b" q": b"\x01"}},
        {"properties": {b"DELAY": b"0"}},
        {"properties": {b"DELAY": b"18"}},
        {"properties": {"naïve".encode(): "é".encode()}},
        {"properties": {b"delay": b"x", b"Keys": b"y"}},
    ],
)
def test_a_legal_message_passes(fields):
    assert check(**fields) is None


def test_there_are_22_reserved_names_and_each_is_rejected():
    assert len(RESERVED_PROPERTIES) == 22
    for name in RESERVED_PROPERTIES - {"DELAY"}:
        rejection = check(properties={name.encode(): b"v"})
        assert rejection is not None
        assert rejection.reason == "property_reserved"
        assert name in rejection.text.split(";")[0]


def test_the_order_is_key_tags_properties_body():
    everything = {"key": b"k" * 256, "tags": b"t" * 256, "properties": {b"p": b""}, "body": b""}
    reasons = []
    for name, good in [("key", b"k"), ("tags", b"t"), ("properties", None), ("body", b"b")]:
        reasons.append(check(**everything).reason)
        everything[name] = good
    assert reasons == ["key_long", "tags_long", "property_blank", "body_empty"]
    assert check(**everything) is None


def test_bytes_that_the_engine_keeps_for_itself():
    limits = ContentLimits(100, 60, b"\x01\x02")
    assert check(limits=limits) is None
    for fields in ({"key": b"a\x01"}, {"tags": b"\x02"}, {"properties": {b"p\x01": b"v"}}):
        rejection = check(limits=limits, **fields)
        assert rejection is not None
        assert rejection.reason == "forbidden_byte"
    assert "0x02" in check(limits=limits, properties={b"p": b"v\x02"}).text
    assert check(limits=limits, body=b"\x01\x02") is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (None, "topic_name"),
        (b"", "topic_name"),
        (b"../etc", "topic_name"),
        (b"a b", "topic_name"),
        (b"a\x00", "topic_name"),
        ("tópico".encode(), "topic_name"),
        (b"\xff\xfe", "topic_name"),
        (b"x" * 128, "topic_name"),
        (b"%RETRY%group", "topic_reserved"),
        (b"%DLQ%group", "topic_reserved"),
        (b"SCHEDULE_TOPIC_XXXX", "topic_reserved"),
        (b"RMQ_SYS_TRANS_HALF_TOPIC", "topic_reserved"),
    ],
)
def test_names_that_no_clients_topic_may_have(name, reason):
    rejection = check_topic_name(name)
    assert rejection is not None
    assert (rejection.code, rejection.reason) == (11, reason)
    assert "allowed" in rejection.text


@pytest.mark.parametrize("name", [b"orders", b"x" * 127, b"a-b_C9", b"a%b", b"a|b"])
def test_names_that_topics_may_have(name):
    assert check_topic_name(name) is None


@pytest.mark.parametrize(
    ("value", "level"), [(b"0", 0), (b"000", 0), (b"3", 3), (b"018", 18), (b"9" * 5_000, 999_999)]
)
def test_the_level_that_delay_asks_for(value, level):
    assert check(properties={b"DELAY": value}, limits=ContentLimits(100, 10_000)) is None
    assert delay_level({b"DELAY": value}) == level


def test_batches_are_bounded_in_messages_and_bytes():
    assert check_batch_size(10, 1_000, 10, 1_000) is None
    assert "11 messages" in check_batch_size(11, 0, 10, 1_000).text
    assert "1001 bytes" in check_batch_size(1, 1_001, 10, 1_000).text


def test_a_clients_text_is_shown_on_one_short_line():
    assert quote_text(b"plain") == "'plain'"
    assert quote_text(b"a\nb") == "'a\\nb'"
    assert quote_text("é".encode() * 100) == repr("é" * 40) + "..."
    assert "\\\\xff" in quote_text(b"\xff")
