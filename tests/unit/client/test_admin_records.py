"""The records of the admin clients: rows of any release become records; settings are the server's."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from ddmq.server.config import TopicEntry
from ddmq.settings import BY_NAME
from ddmq_client.admin import (
    GroupDescription,
    GroupSettings,
    KeyDescription,
    QueueRange,
    SettingChange,
    TopicSettings,
)
from ddmq_client.admin.records import read_row, read_rows, settings_body
from ddmq_client.errors import AdminError, OptionError

RANGE = {"queue": 3, "min": 1, "next": 9, "messages": 8}
KEY = {
    "key": '"a"', "topic": "t", "queue_id": 1, "offset": 7, "attempts": 2, "state": "retrying",
    "error": "boom",
    "waiting": 4,
}  # fmt: skip


def test_a_row_becomes_a_record() -> None:
    assert read_row(QueueRange, RANGE) == QueueRange(queue_id=3, min_offset=1, next_offset=9, messages=8)


def test_what_a_newer_server_adds_is_skipped_and_what_an_older_one_lacks_has_a_default() -> None:
    assert read_row(QueueRange, RANGE | {"new": 1}) == read_row(QueueRange, RANGE)
    key = read_row(KeyDescription, KEY)
    assert (key.since, key.client, key.has_more) == (None, "", False)
    assert read_row(KeyDescription, KEY | {"since_ms": 0}).since is None
    later = read_row(
        KeyDescription, KEY | {"since_ms": 1_795_348_800_000, "until_ms": 1_795_348_800_001, "more": True}
    )
    assert later.since == datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert later.lease_ends_at == datetime(2026, 11, 22, 12, 0, 0, 1000, tzinfo=UTC)
    assert later.has_more


def test_rows_inside_rows_become_records() -> None:
    row = {"group": "g", "source": "log", "blocked_keys": [KEY], "clients": None}
    group = read_row(GroupDescription, row)
    assert group.blocked_keys == (read_row(KeyDescription, KEY),)
    assert group.clients == ()


def test_a_nested_value_in_place_of_a_row_is_named_by_its_type() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(AdminError, match="the answer has 'list' in place of a QueueRange"):
        read_row(QueueRange, nested)
    with pytest.raises(AdminError, match="the answer has 'dict' in place of a list"):
        read_rows(QueueRange, {"rows": nested})


def test_null_is_a_value_of_a_setting() -> None:
    change = read_row(SettingChange, {"key": "a", "before": None, "after": 1})
    assert (change.before, change.after) == (None, 1)


@pytest.mark.parametrize("row", [{}, {"queue": 1}, [], None, "text"])
def test_what_lacks_something_is_an_error(row: object) -> None:
    with pytest.raises(AdminError, match="QueueRange"):
        read_row(QueueRange, row)
    with pytest.raises(AdminError):
        read_rows(QueueRange, row if isinstance(row, str) else {"rows": row})


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read_row(QueueRange, RANGE).messages = 1  # type: ignore[misc]


def test_the_settings_are_those_of_the_server() -> None:
    assert GroupSettings.__annotations__.keys() == BY_NAME.keys()
    entry = {each.name for each in dataclasses.fields(TopicEntry)}
    assert TopicSettings.__annotations__.keys() == entry | {"trace_one_in"}


def test_times_are_sent_as_epoch_milliseconds() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert settings_body({"start": noon, "batch_max": 7, "actions": ("Json",)}) == {
        "start": "1795348800000",
        "batch_max": 7,
        "actions": ["Json"],
    }
    with pytest.raises(OptionError, match="no time zone"):
        settings_body({"start": noon.replace(tzinfo=None)})


@pytest.mark.parametrize("order_key", ["key", "Key", "qid"])
def test_a_path_that_looks_like_the_key_is_no_setting(order_key: str) -> None:
    with pytest.raises(
        OptionError, match=rf"order_key='{order_key}'; allowed: .* \$\.{order_key} for the field"
    ):
        settings_body({"order_key": order_key})


@pytest.mark.parametrize("order_key", ["", "KEY", "QID", "$.key", "order.key", "keys"])
def test_any_other_order_key_is_left_to_the_server(order_key: str) -> None:
    assert settings_body({"order_key": order_key}) == {"order_key": order_key}
