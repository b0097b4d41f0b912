"""Tag expressions, and the filter that wants them."""

from __future__ import annotations

import string

import pytest

from backend.records import tag_hash
from ddmq_common.delivery import encode
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.queue_feed import FILTERED, Filter
from proxy_consumer.filters.message_filters import HASHES_MAX, filter_for, find_expression_error, parse_tags


def message(tag: bytes = b"", key: bytes = b"", properties: dict[bytes, bytes] | None = None) -> bytes:
    return encode(key, b"body", tag, properties)


def tag_filter(*, tags: str = "*", sql: str = "") -> Filter:
    message_filter = filter_for(tags, sql)
    assert message_filter is not None
    return message_filter


@pytest.mark.parametrize("text", ["*", "", "  ", "A || *", "*||B", "A*"])
def test_a_star_anywhere_and_nothing_are_all(text: str) -> None:
    assert parse_tags(text) is None
    assert filter_for(text, "") is None


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("A", {"A"}),
        ("A || B", {"A", "B"}),
        ("A||B||A", {"A", "B"}),
        ("  ü 1 ||B ", {"ü 1", "B"}),
        ("A|B", {"A|B"}),
    ],
)
def test_tags_between_two_bars(text: str, tags: set[str]) -> None:
    assert parse_tags(text) == tags


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [("A ||", 5, "missing"), ("|| A", 1, "missing"), ("A || || B", 5, "missing"), ("A|||B", 2, "three bars")],
)
def test_a_bad_expression_says_where(text: str, at: int, what: str) -> None:
    error = find_expression_error(text, "")
    assert error is not None
    assert error.startswith(f"tags is {text!r}: at character {at}: ")
    assert what in error
    assert "allowed: TAG || TAG" in error


def test_the_longest_expression() -> None:
    assert find_expression_error("t" * 4096, "") is None
    assert "4097 bytes; allowed: at most 4096" in str(find_expression_error("t" * 4097, ""))


def test_tags_and_sql_together_are_refused() -> None:
    assert find_expression_error("*", "a = 1") is None
    assert find_expression_error("", "a = 1") is None
    error = find_expression_error("A", "a = 1")
    assert error is not None
    assert "tags is 'A' and sql is 'a = 1'" in error


def test_settings_are_checked_when_they_are_created() -> None:
    with pytest.raises(ValueError, match=r"tags is 'A \|\|': at character 5"):
        SubscriptionDefaults(tags="A ||")
    with pytest.raises(ValueError, match="sql is 'a >': at character 4: found the end; expected"):
        SubscriptionDefaults(sql="a >")
    with pytest.raises(ValueError, match="tags is 'A' and sql is"):
        SubscriptionDefaults(tags="A", sql="a > 1")


def test_the_filter_pushes_hashes_down_and_compares_texts() -> None:
    message_filter = tag_filter(tags="A || ü")
    assert message_filter.tags == {tag_hash(b"A"), tag_hash("ü".encode())}
    assert message_filter.find_rejection(message(b"A")) is None
    assert message_filter.find_rejection(message("ü".encode(), b"key", {b"p": b"v"})) is None
    for tag in (b"B", b"", b"a", b"A ", b"AA", b"A||B"):
        assert message_filter.find_rejection(message(tag)) is FILTERED


def test_a_tag_with_two_bars_is_one_tag() -> None:
    assert tag_filter(tags="A || B").find_rejection(message(b"A||B")) is FILTERED
    assert tag_filter(sql="TAGS = 'A||B'").find_rejection(message(b"A||B")) is None


def test_too_many_tags_are_compared_but_not_pushed_down() -> None:
    letters = string.ascii_letters + string.digits
    names = [*letters, *(one + other for one in letters for other in letters)]
    most = tag_filter(tags="||".join(names[:HASHES_MAX]))
    assert len(most.tags or ()) == HASHES_MAX
    more = tag_filter(tags="||".join(names[: HASHES_MAX + 1]))
    assert more.tags is None
    assert more.find_rejection(message(names[HASHES_MAX].encode())) is None
    assert more.find_rejection(message(names[HASHES_MAX + 1].encode())) is FILTERED


def test_a_message_that_does_not_parse_is_an_error() -> None:
    for message_filter in (tag_filter(tags="A"), tag_filter(sql="TAGS = 'A'"), tag_filter(sql="p = 'A'")):
        rejection = message_filter.find_rejection(b"\x18\x05ab")
        assert rejection is not None
        assert "do not parse" in rejection.error
