"""The records of the admin clients: rows of any release become records; settings are the server's."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ddmq.server.config import TopicEntry
from ddmq.settings import BY_NAME
from ddmq_client import Admin
from ddmq_client.admin import (
    GroupDescription,
    GroupSettings,
    KeyDescription,
    QueueRange,
    SettingChange,
    TopicSettings,
)
from ddmq_client.admin.records import group_settings_body, read_row, read_rows, topic_settings_body
from ddmq_client.admin.sends import change_body, message_body, read_outcome
from ddmq_client.admin.settings import DEAD_LETTER_REASONS, DeadLetterChoice
from ddmq_client.delays import CancelOutcome, DelayStatus, When
from ddmq_client.errors import AdminError, OptionError
from ddmq_client.outgoing import OutgoingMessage
from delay_service.due import backend as delays
from proxy_consumer.core import retry_policy
from proxy_consumer.groups import ordering
from proxy_producer.transactions import deciding, left_overs
from proxy_producer.transactions.core import shard

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
    assert GroupSettings.__annotations__.keys() == BY_NAME.keys() | {"paused"}
    entry = {each.name for each in dataclasses.fields(TopicEntry)}
    assert TopicSettings.__annotations__.keys() == entry | {"trace_one_in", "hold_delays"}


def test_times_are_sent_as_epoch_milliseconds() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert group_settings_body({"start": noon, "batch_max": 7, "actions": ("Json",)}) == {
        "start": "1795348800000",
        "batch_max": 7,
        "actions": ["Json"],
    }
    with pytest.raises(OptionError, match="no time zone"):
        group_settings_body({"start": noon.replace(tzinfo=None)})


@pytest.mark.parametrize("order_key", ["key", "Key", "qid"])
def test_a_path_that_looks_like_the_key_is_no_setting(order_key: str) -> None:
    with pytest.raises(
        OptionError, match=rf"order_key='{order_key}'; allowed: .* \$\.{order_key} for the field"
    ):
        group_settings_body({"order_key": order_key})


@pytest.mark.parametrize("order_key", ["", "KEY", "QID", "$.key", "order.key", "keys"])
def test_any_other_order_key_is_left_to_the_server(order_key: str) -> None:
    assert group_settings_body({"order_key": order_key}) == {"order_key": order_key}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "max_retries",
            r"^a group has no setting 'max_retries'; the group's settings retry_intervals_ms, retry_steps",
        ),
        ("max_attempts", "retry_steps and ordered_deliveries_max say how often"),
        ("auto_offset_reset", r"did you mean start\? \(docs/configuration\.md\)"),
        ("dead_letter_topic", "any consumer of the topic %DLQ%GROUP"),
    ],
)
def test_a_group_setting_with_the_name_of_another_system_is_explained(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        group_settings_body({name: 3})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("partitions", r"^a topic has no setting 'partitions'; did you mean queues\?"),
        ("retention", r"`retention` in file_log\.yaml says .* on Kafka a topic has the setting retention_ms"),
    ],
)
def test_a_topic_setting_with_the_name_of_another_system_is_explained(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        topic_settings_body({name: 3})


def test_a_setting_that_a_newer_server_may_have_is_left_to_it() -> None:
    assert group_settings_body({"max_timeout_redelivery": 3}) == {"max_timeout_redelivery": 3}
    assert topic_settings_body({"queus": 3}) == {"queus": 3}


def test_the_reasons_of_dead_letters_are_those_of_the_servers_parts() -> None:
    written = {
        retry_policy.REASON_FAILED, retry_policy.REASON_TIMED_OUT, retry_policy.REASON_GIVEN_UP,
        ordering.REASON_SKIPPED, delays.TOPIC_DELETED, delays.REJECTED, delays.UNREADABLE,
        deciding.TOPIC_DELETED, deciding.REFUSED, deciding.DAMAGED, left_overs.LARGE,
        shard.UNANSWERED, shard.TOO_OLD,
    }  # fmt: skip
    assert set(DEAD_LETTER_REASONS) == written
    assert len(DEAD_LETTER_REASONS) == len(written)


@pytest.mark.parametrize("method", ["list_dead_letters", "resend_dead_letters", "export_dead_letters"])
def test_a_reason_that_no_dead_letter_has_is_rejected(method: str, tmp_path: Path) -> None:
    choice: DeadLetterChoice = {"reason": "fialed"}  # type: ignore[typeddict-item]
    arguments = [tmp_path / "letters"] if method == "export_dead_letters" else []
    with (
        Admin("127.0.0.1:9") as admin,
        pytest.raises(
            OptionError, match="reason='fialed'; allowed: failed, timed-out, given-up, skipped, topic gone"
        ),
    ):
        getattr(admin, method)("billing", *arguments, **choice)


def test_the_body_of_a_send_has_only_what_is_stated() -> None:
    assert message_body(OutgoingMessage("t", "é"), None, None) == {"topic": "t", "body": "é"}
    when = When(delay_ms=5, period_ms=7, repeat=-1)
    assert message_body(OutgoingMessage("t", b"\xff", shard_key="a"), when, 3) == {
        "topic": "t", "body_base64": "/w==", "shard_key": 3904355907, "times": 3, "delay_ms": 5,
        "every_ms": 7,
    }  # fmt: skip
    assert change_body("reschedule", When(due_ms=9)) == {"action": "reschedule", "due_ms": 9}
    assert change_body("fire", None) == {"action": "fire"}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (OutgoingMessage("t", 7), "body is int; allowed: bytes or str"),
        (OutgoingMessage("t", "x", properties=["a"]), "properties is list"),  # type: ignore[arg-type]
        (OutgoingMessage("t", "x", properties={"a": 1}), "the value of property 'a' is int 1"),  # type: ignore[dict-item]
        (OutgoingMessage("t", "x", properties={"\ud800": "a"}), "the name of a property is '\\ud800'"),
        (OutgoingMessage("t", "x", shard_key=1 << 63), "is not a signed 64-bit number"),
    ],
)
def test_a_message_of_wrong_types_is_not_sent(message: OutgoingMessage, error: str) -> None:
    with pytest.raises(OptionError) as raised:
        message_body(message, None, None)
    assert error in str(raised.value)


def test_an_outcome_of_any_release_is_read() -> None:
    due = datetime(2027, 1, 15, 8, tzinfo=UTC)
    row = {"id": "i", "outcome": "rescheduled", "fired_ms": None, "due_ms": 1_800_000_000_000, "more": 1}
    assert read_outcome(row) == CancelOutcome(DelayStatus.RESCHEDULED, None, due)
    assert read_outcome({"outcome": "too_old"}) == CancelOutcome(DelayStatus.TOO_OLD)
    assert read_outcome({"outcome": "new"}) == CancelOutcome(DelayStatus.PENDING), "one of a newer release"
    for answer in ({}, [], {"outcome": 7}):
        with pytest.raises(AdminError, match="lacks 'outcome'"):
            read_outcome(answer)
