"""The filter of a subscription: checks its expression, and decides about each message.

A tag expression is `A || B`, or `*` for all. A message has one tag, which is compared as a whole, even if it
is `A||B`. A `*` anywhere in the expression means all, and so does an empty one; spaces around a tag are
ignored; two bars separate tags, so that a tag with two bars in it cannot be named here (SQL can).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from backend.records import tag_hash
from ddmq_common.delivery import key_of, properties_of, tag_of
from ddmq_common.errors import CallerError, DamagedError
from proxy_consumer.core.queue_feed import FILTERED, Filter, Rejection
from proxy_consumer.filters.sql_matcher import Matcher, build_matcher, names_in
from proxy_consumer.filters.sql_parser import ExpressionError, check_size, parse_sql

ALLOWED = "allowed: TAG || TAG …, or * for all"
COMPILED_MAX = 1024  # cached expressions; others are compiled again
TAGS, KEYS = "TAGS", "KEYS"  # SQL names of the message's tag and key
HASHES_MAX = 1024  # most tags passed to the backend; with more, all messages are read and then filtered


def parse_tags(text: str) -> frozenset[str] | None:
    """Return the tags of an expression; None if it selects all. Raises ExpressionError."""
    if "*" in text or not text.strip():
        return None
    check_size(text)
    names: set[str] = set()
    at = 0
    for name in text.split("||"):
        tag = name.strip()
        if not tag:
            raise ExpressionError(f"a tag is missing; {ALLOWED}", at + 1)
        if name.startswith("|"):
            raise ExpressionError(f"three bars; {ALLOWED}", at - 1)
        names.add(tag)
        at += len(name) + 2
    return frozenset(names)


class Compiled(NamedTuple):
    """A compiled SQL expression, and the properties that it uses."""

    match: Matcher
    names: frozenset[str]


@lru_cache(maxsize=COMPILED_MAX)
def compile_sql(sql: str) -> Compiled:
    """Compile an SQL expression. Raises ExpressionError."""
    condition = parse_sql(sql)
    return Compiled(build_matcher(condition), frozenset(names_in(condition)))


def find_expression_error(tags: str, sql: str) -> str | None:
    """Return why a pair of settings is invalid, with key, value and position; None if it is valid.

    `tags` "" and "*" are no filter; `sql` "" is none. Only one of the two may filter.
    """
    key, text = "tags", tags
    try:
        names = parse_tags(tags)
        if sql:
            key, text = "sql", sql
            compile_sql(sql)
    except ExpressionError as error:
        return f"{key} is {_shorten_text(text)}: {error}"
    if names is not None and sql:
        return (
            f"tags is {_shorten_text(tags)} and sql is {_shorten_text(sql)}; allowed is one of them "
            "(tags: \"*\" with sql; in sql, a tag is TAGS = 'A')"
        )
    return None


def check_stated(sql: str) -> None:
    """Check an SQL filter by the stricter rules for new settings; raises CallerError."""
    try:
        if sql:
            parse_sql(sql, strict=True)
    except ExpressionError as error:
        raise CallerError(f"sql is {_shorten_text(sql)}: {error}") from error


def _shorten_text(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def filter_for(tags: str, sql: str) -> Filter | None:
    """Build the filter of these settings; None if every message is delivered. Raises ExpressionError."""
    if sql:
        return SqlFilter(sql)
    names = parse_tags(tags)
    return None if names is None else TagFilter(names)


class TagFilter:
    """Delivers messages that have one of these tags."""

    __slots__ = ("_texts", "tags")

    def __init__(self, tags: frozenset[str]) -> None:
        self._texts = frozenset(tag.encode() for tag in tags)
        hashes = frozenset(map(tag_hash, self._texts))
        self.tags: frozenset[int] | None = hashes if len(hashes) <= HASHES_MAX else None

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        """Return FILTERED unless the message has one of the tags, compared as text.

        The backend compares only the hash of a tag, if it compares at all.
        """
        try:
            return None if tag_of(delivery) in self._texts else FILTERED
        except DamagedError as error:
            return Rejection(str(error))


class SqlFilter:
    """Delivers messages whose properties match an SQL expression."""

    __slots__ = ("_key", "_match", "_names", "_tag", "tags")

    def __init__(self, sql: str) -> None:
        compiled = compile_sql(sql)
        self.tags: frozenset[int] | None = None
        self._match = compiled.match
        self._names = {name.encode(): name for name in compiled.names - {TAGS, KEYS}}
        self._tag = TAGS in compiled.names
        self._key = KEYS in compiled.names

    def find_rejection(self, delivery: bytes) -> Rejection | None:
        """Return FILTERED unless the message matches; only properties in the expression are decoded."""
        try:
            return None if self._match(self._decode_row(delivery)) else FILTERED
        except DamagedError as error:
            return Rejection(str(error))

    def _decode_row(self, delivery: bytes) -> dict[str, str]:
        row: dict[str, str] = {}
        names = self._names
        if names:
            for name, value in properties_of(delivery, names).items():
                row[names[name]] = value.decode("utf-8", "replace")
        if self._tag:
            _put(row, TAGS, tag_of, delivery)
        if self._key:
            _put(row, KEYS, key_of, delivery)
        return row


def _put(row: dict[str, str], name: str, read_field: Callable[[bytes], bytes], delivery: bytes) -> None:
    value = read_field(delivery)
    if value:
        row[name] = value.decode("utf-8", "replace")
