"""Filters: what the pull buffer asks of each message it read (core/message_filter.py)."""

from __future__ import annotations

from collections.abc import Callable

from backend.records import tag_hash
from ddmq_common.delivery_parts import key_of, properties_of, tag_of
from ddmq_common.errors import DamagedError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.core.message_filter import FILTERED, Filter, Refusal
from proxy_consumer.filters.expressions import compile_sql
from proxy_consumer.filters.tags import parse_tags

TAGS, KEYS = "TAGS", "KEYS"  # names in SQL for the message's tag and key
HASHES_MAX = 1024  # tags pushed down; with more, all are read and then looked at


def filter_for(config: SubscriptionDefaults) -> Filter | None:
    """The filter of these settings; None when everything is delivered. Raises ExpressionError."""
    if config.sql:
        return SqlFilter(config.sql)
    wanted = parse_tags(config.tags)
    return None if wanted is None else TagFilter(wanted)


class TagFilter:
    """Wants messages with one of some tags."""

    __slots__ = ("_texts", "tags")

    def __init__(self, wanted: frozenset[str]) -> None:
        self._texts = frozenset(tag.encode() for tag in wanted)
        hashes = frozenset(map(tag_hash, self._texts))
        self.tags: frozenset[int] | None = hashes if len(hashes) <= HASHES_MAX else None

    def judge(self, delivery: bytes) -> Refusal | None:
        """The tag's hash fitted, or was not looked at; now its text."""
        try:
            return None if tag_of(delivery) in self._texts else FILTERED
        except DamagedError as error:
            return Refusal(str(error))


class SqlFilter:
    """Wants messages whose properties fit an expression."""

    __slots__ = ("_key", "_match", "_names", "_tag", "tags")

    def __init__(self, sql: str) -> None:
        compiled = compile_sql(sql)
        self.tags: frozenset[int] | None = None
        self._match = compiled.match
        self._names = {name.encode(): name for name in compiled.names - {TAGS, KEYS}}
        self._tag = TAGS in compiled.names
        self._key = KEYS in compiled.names

    def judge(self, delivery: bytes) -> Refusal | None:
        """Only what the expression names is decoded."""
        try:
            return None if self._match(self._row(delivery)) else FILTERED
        except DamagedError as error:
            return Refusal(str(error))

    def _row(self, delivery: bytes) -> dict[str, str]:
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


def _put(row: dict[str, str], name: str, part: Callable[[bytes], bytes], delivery: bytes) -> None:
    value = part(delivery)
    if value:
        row[name] = value.decode("utf-8", "replace")
