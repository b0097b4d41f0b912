"""Bodies there and back; what does not have the shape never passes."""

from __future__ import annotations

import random

import msgspec
import pytest

from backend.file_log.lock import DirectoryInUseError
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import deadline_of, timeout_ms
from backend.port import Join, Sharing
from backend.records import (
    AppendResult,
    AppendStatus,
    Capabilities,
    CommitBatch,
    Durability,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    SettingsLimit,
    StoredRecord,
    TopicInfo,
)
from ddmq_common import errors

QUEUE = QueueRef("orders", 3, 1)
RECORD = NewRecord("orders", 1, b"i" * 16, 12345, b"\x00\xffbytes", b"key", b"tag", 1, 99, {"R": "ü"})


def fields(record: NewRecord) -> list[object]:
    return [getattr(record, name) for name in NewRecord.__struct_fields__]


def test_records_to_append() -> None:
    bare = NewRecord("t", 0, b"\0" * 16, 0, b"")
    remaining_ms, records = codec.decode_append(codec.encode((250, [RECORD, bare])))
    assert remaining_ms == 250
    assert [fields(record) for record in records] == [fields(RECORD), fields(bare)]


def test_results_with_every_status_and_class() -> None:
    results = [
        AppendResult(AppendStatus.STORED, 7, Durability.DURABLE, None),
        AppendResult(AppendStatus.STORED, 8, Durability.WRITTEN, None),
        AppendResult(AppendStatus.REFUSED, -1, Durability.DURABLE, errors.UnknownTopicError("no topic x")),
        AppendResult(AppendStatus.UNKNOWN, -1, Durability.WRITTEN, errors.RemoteError("late")),
        AppendResult(AppendStatus.NOT_STORED, -1, Durability.WRITTEN, errors.BoundReachedError("full")),
    ]
    clock_ms, decoded = codec.decode_results(codec.encode_results(1 << 40, results))
    assert clock_ms == 1 << 40
    assert [result[:3] for result in decoded] == [result[:3] for result in results]
    assert [repr(result.error) for result in decoded] == [repr(result.error) for result in results]
    assert codec.decode_results(codec.encode_results(0, [])) == (0, [])


def test_commits() -> None:
    batch = CommitBatch(
        [RECORD],
        [
            ProgressDelta("g", QUEUE, 4, 2, [(0, 5), (7, 9)], [(5, 3)]),
            ProgressDelta("g", QUEUE, 4, 3, [], [], 1 << 60),
        ],
        {"group/g": b"\x00x", "gone": None},
        ["group/g"],
        [SettingsLimit("group/", 10, "there are 10 groups")],
    )
    remaining_ms, decoded = codec.decode_commit(codec.encode(codec.commit_row(batch, 1)))
    assert remaining_ms == 1
    assert list(decoded.progress) == list(batch.progress)
    assert decoded.settings == batch.settings
    assert decoded.absent == batch.absent
    assert decoded.limits == batch.limits
    assert fields(decoded.records[0]) == fields(RECORD)


def test_topics_and_progress() -> None:
    info = TopicInfo("orders", 3, 8, Durability.WRITTEN, False, True, "only", 1000, "topics.yaml")
    assert TopicInfo(*codec.decode_topic(codec.encode(codec.topic_row(info)))) == info
    views = [ProgressView(None, (), {}, 0, 0), ProgressView(5, ((7, 9),), {6: 2}, 3, 1)]
    assert codec.decode_views(codec.encode([codec.view_row(view) for view in views])) == views


def test_bytes_are_those_of_the_documented_arrays() -> None:
    """docs/formats-sessions.md, "Values": processes of one version of the protocol understand each other."""
    queue, record = (
        ["orders", 3, 1],
        ["orders", 1, b"i" * 16, 12345, b"\x00\xffbytes", b"key", b"tag", 1, 99, {"R": "ü"}],
    )
    bare = ["t", 0, b"\0" * 16, 0, b"", b"", b"", 0, 0, None]
    assert codec.encode([RECORD, NewRecord("t", 0, b"\0" * 16, 0, b"")]) == codec.encode([record, bare])
    deltas = [ProgressDelta("g", QUEUE, 4, 2, ((0, 5), (7, 9)), [(5, 3)], None)]
    limits = (SettingsLimit("group/", 10, "there are 10 groups"),)
    commit = CommitBatch((RECORD,), deltas, {"b": None, "a": b"x"}, ("c",), limits)
    delta = ["g", queue, 4, 2, [[0, 5], [7, 9]], [[5, 3]], None]
    assert codec.encode(codec.commit_row(commit, 7)) == codec.encode(
        [7, [record], [delta], {"b": None, "a": b"x"}, ["c"], [["group/", 10, "there are 10 groups"]]]
    )
    info = TopicInfo("orders", 3, 8, Durability.DURABLE, False, True, "only", None, "log", ("rocketmq",))
    topic = ["orders", 3, 8, 1, False, True, "only", None, "log", ["rocketmq"]]
    assert codec.encode(codec.topic_row(info)) == codec.encode(topic)
    view = ProgressView(5, ((7, 9),), {6: 2}, 3, 1)
    assert codec.encode(codec.view_row(view)) == codec.encode([5, [[7, 9]], {6: 2}, 3, 1])
    classes = frozenset((Durability.DURABLE, Durability.WRITTEN))
    can = Capabilities("memory", True, False, True, True, classes, 10, 9, b"%", True, False)
    assert codec.encode_sorted(codec.capabilities_row(can)) == codec.encode(
        ["memory", True, False, True, True, [0, 1], 10, 9, b"%", True, False]
    )
    assert (
        Capabilities(
            *codec.make_decoder(codec.CapabilitiesRow)(codec.encode_sorted(codec.capabilities_row(can)))
        )
        == can
    )
    stored = StoredRecord("orders", 1, 4, 900, b"i" * 16, 5, 6, 1, 0, b"body", {"R": "1"})
    row = ["orders", 1, 4, 900, b"i" * 16, 5, 6, 1, 0, b"body", {"R": "1"}]
    assert codec.encode([stored]) == codec.encode([row])
    assert codec.decode_stored(codec.encode([row])) == [stored]


@pytest.mark.parametrize("kind", [*codec._ERRORS.values()])
def test_every_error_keeps_its_class_and_text(kind: type[Exception]) -> None:
    row = codec.decode_error(codec.encode(codec.error_row(kind("what was wrong"))))
    assert type(codec.error_from(row)) is kind
    assert str(codec.error_from(row)) == "what was wrong"


def test_every_error_of_the_tree_has_a_code_of_its_own() -> None:
    tree = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DdmqError) and kind is not errors.DdmqError
    }
    not_of_a_writer = {errors.TopicUnavailableError, errors.ConflictError}  # of Kafka, and of the admin API
    assert tree - not_of_a_writer <= set(codec._ERRORS.values())


def test_other_errors_travel_as_the_nearest() -> None:
    assert type(codec.error_from(codec.error_row(DirectoryInUseError("x")))) is errors.CallerError
    foreign = codec.error_from(codec.error_row(KeyError("x")))
    assert type(foreign) is errors.RemoteError
    assert "KeyError" in str(foreign)
    assert type(codec.error_from((200, "from a newer version"))) is errors.RemoteError


def test_mutated_bodies_raise_or_parse_but_never_anything_else() -> None:
    chance = random.Random(11)
    commit = codec.encode(codec.commit_row(CommitBatch([RECORD], [ProgressDelta("g", QUEUE, 1, 0)]), 9))
    decoders = [codec.decode_commit, codec.decode_append, codec.decode_results, codec.decode_topics]
    parsed = 0
    for _ in range(20_000):
        body = bytearray(commit)
        for _ in range(chance.randint(1, 4)):
            body[chance.randrange(len(body))] = chance.randrange(256)
        mutated = bytes(body[: chance.randint(0, len(body))] if chance.random() < 0.3 else body)
        try:
            chance.choice(decoders)(mutated)
            parsed += 1
        except (msgspec.MsgspecError, ValueError):
            pass
    assert 0 < parsed < 20_000


def test_deadlines_travel_as_time_left() -> None:
    assert timeout_ms(10.0, 9.9995) == 1
    assert timeout_ms(10.0, 11.0) == 0
    assert timeout_ms(float("inf"), 0.0) == 86_400_000
    assert deadline_of(1500, 100.0) == 101.5
    assert deadline_of(-5, 100.0) == 100.0


def test_a_join_travels_with_all_its_fields() -> None:
    some = frozenset({900, 3, 1})
    for join, row in (
        (Join("g", "orders"), ("g", "orders", "averagely", None, "", "")),
        (
            Join("g", "orders", Sharing.WHOLE_GROUP, some, "host:1", "me"),
            ("g", "orders", "whole group", [1, 3, 900], "host:1", "me"),
        ),
    ):
        assert codec.encode_join(join) == codec.encode(row)
        assert codec.decode_join(codec.encode_join(join)) == join
    with pytest.raises(ValueError, match="by lot"):
        codec.decode_join(codec.encode(("g", "orders", "by lot", None, "", "")))
