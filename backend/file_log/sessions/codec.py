"""Frame bodies: the port's records as MessagePack arrays and back. Pure; parses in C, checks every type.

Decoding raises msgspec.MsgspecError on anything that does not have the documented shape. Errors travel
as (code, text); an error of a type without a code travels as its nearest base, a foreign one as
RemoteError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from backend.port import Join, ReadCall, Sharing
from backend.records import (
    CLUSTER_SETTINGS,
    AppendResult,
    AppendStatus,
    Bounds,
    Capabilities,
    CommitBatch,
    Durability,
    FirstStored,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    ReadBatch,
    ReadStatus,
    SettingsLimit,
    StoredRecord,
    TopicInfo,
)
from ddmq_common import errors

S = TypeVar("S")
Body = bytes | memoryview

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode
# As `encode`, what is in a set ascending.
encode_sorted: Callable[[Any], bytes] = msgspec.msgpack.Encoder(order="deterministic").encode


def make_decoder(shape: type[S] | Any) -> Callable[[Body], S]:
    """Return a reusable typed decoder for one body shape."""
    decode: Callable[[Body], S] = msgspec.msgpack.Decoder(shape).decode
    return decode


def make_row_getter(kind: type[Any]) -> Callable[[Any], Any]:
    """Return a function that converts a dataclass instance of type `kind` into a tuple of its fields.

    The order is that of the fields, so `kind(*row)` converts back. Topic settings that only other engines use
    are left out.
    """
    return attrgetter(*(field.name for field in fields(kind) if field.name not in CLUSTER_SETTINGS))


# --- errors; a code is never given to another class

_ERRORS: dict[int, type[Exception]] = {
    1: errors.CallerError,
    2: errors.UnknownTopicError,
    3: errors.TopicExistsError,
    4: errors.UnsupportedError,
    5: errors.ConfigError,
    6: errors.FencedError,
    7: errors.TryLaterError,
    8: errors.BoundReachedError,
    9: errors.DiskFullError,
    10: errors.DrainingError,
    11: errors.StorageError,
    12: errors.RefusedUntilRecoveredError,
    13: errors.DamagedError,
    14: errors.RemoteError,
    15: ValueError,
    16: errors.NewerFormatError,
    17: errors.NotWriterError,
}
_CODES = {kind: code for code, kind in _ERRORS.items()}
ErrorRow = tuple[int, str]
decode_error: Callable[[Body], ErrorRow] = make_decoder(ErrorRow)


def error_row(error: Exception) -> ErrorRow:
    """Convert an error into the (code, text) row that is sent over a session."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind], str(error)
    return _CODES[errors.RemoteError], f"internal error in the writer: {type(error).__name__}: {error}"


def error_from(row: ErrorRow) -> Exception:
    """Convert a received row into an error; a code from a newer version becomes RemoteError."""
    return _ERRORS.get(row[0], errors.RemoteError)(row[1])


# --- records and results


AppendRow = tuple[int, list[NewRecord]]
DeviationRow = tuple[int, int, int, ErrorRow | None, FirstStored | None]
ResultsRow = tuple[int, int, list[int], list[DeviationRow]]
decode_append: Callable[[Body], AppendRow] = make_decoder(AppendRow)
_decode_results: Callable[[Body], ResultsRow] = make_decoder(ResultsRow)


def encode_results(clock_ms: int, results: Sequence[AppendResult]) -> bytes:
    """Encode the results of an append: all offsets, the most common durability, and a row for each deviation.

    A result deviates if its record was rejected, was stored before, or has another durability.
    """
    common = results[0].durability if results else Durability.WRITTEN
    deviations = [
        (
            index,
            result.status,
            result.durability,
            None if result.error is None else error_row(result.error),
            result.first,
        )
        for index, result in enumerate(results)
        if result.status or result.durability is not common or result.first is not None
    ]
    return encode((clock_ms, common, [result.offset for result in results], deviations))


def decode_results(body: Body) -> tuple[int, list[AppendResult]]:
    """Decode the answer to an append into (store clock in ms, results)."""
    clock_ms, common, offsets, deviations = _decode_results(body)
    stored, durability = AppendStatus.STORED, Durability(common)
    results = [AppendResult(stored, offset, durability, None) for offset in offsets]
    for index, status, own, error, first in deviations:
        problem = None if error is None else error_from(error)
        results[index] = AppendResult(AppendStatus(status), offsets[index], Durability(own), problem, first)
    return clock_ms, results


# --- commits

DeltaRow = tuple[str, QueueRef, int, int, list[tuple[int, int]], list[tuple[int, int]], int | None]
CommitRow = tuple[
    int, Sequence[NewRecord], list[DeltaRow], dict[str, bytes | None], list[str], list[SettingsLimit]
]
_delta_row: Callable[[ProgressDelta], Any] = msgspec.structs.astuple
_decode_commit: Callable[[Body], CommitRow] = make_decoder(CommitRow)


def commit_row(batch: CommitBatch, remaining_ms: int) -> CommitRow:
    """Convert a commit batch with `remaining_ms` until its deadline into the row to send over a session."""
    deltas = [_delta_row(delta) for delta in batch.progress]
    return remaining_ms, batch.records, deltas, dict(batch.settings), list(batch.absent), list(batch.limits)


def decode_commit(body: Body) -> tuple[int, CommitBatch]:
    """Decode a commit request into (milliseconds until its deadline, batch)."""
    remaining_ms, records, deltas, settings, absent, limits = _decode_commit(body)
    return remaining_ms, CommitBatch(
        records, [ProgressDelta(*row) for row in deltas], settings, absent, limits
    )


# --- topics, bounds, progress, capabilities

TopicRow = tuple[str, int, int, Durability, bool, bool, str, int | None, str, tuple[str, ...]]
ViewRow = tuple[int | None, tuple[tuple[int, int], ...], dict[int, int], int, int]
CapabilitiesRow = tuple[str, bool, bool, bool, bool, frozenset[Durability], int, int, bytes, bool, bool]

topic_row: Callable[[TopicInfo], TopicRow] = make_row_getter(TopicInfo)
view_row: Callable[[ProgressView], ViewRow] = make_row_getter(ProgressView)
capabilities_row: Callable[[Capabilities], CapabilitiesRow] = make_row_getter(Capabilities)
decode_topic: Callable[[Body], TopicRow] = make_decoder(TopicRow)
decode_topics: Callable[[Body], tuple[list[TopicRow], list[str]]] = make_decoder(
    tuple[list[TopicRow], list[str]]
)
decode_settings: Callable[[Body], dict[str, bytes | None]] = make_decoder(dict[str, bytes | None])
decode_flag: Callable[[Body], bool] = make_decoder(bool)
decode_number: Callable[[Body], int] = make_decoder(int)
decode_bounds: Callable[[Body], list[Bounds | None]] = make_decoder(list[Bounds | None])
_decode_views: Callable[[Body], list[ViewRow]] = make_decoder(list[ViewRow])


def decode_views(body: Body) -> list[ProgressView]:
    """Decode the answer to a PROGRESS request."""
    return [ProgressView(*row) for row in _decode_views(body)]


WelcomeRow = tuple[int, int, int, CapabilitiesRow, str, str]
PongRow = tuple[int, bool, str]
decode_welcome: Callable[[Body], WelcomeRow] = make_decoder(WelcomeRow)
decode_pong: Callable[[Body], PongRow] = make_decoder(PongRow)
decode_assigned: Callable[[Body], tuple[list[QueueRef], int]] = make_decoder(tuple[list[QueueRef], int])
decode_revoked: Callable[[Body], tuple[list[QueueRef], int]] = make_decoder(tuple[list[QueueRef], int])
decode_queues: Callable[[Body], list[QueueRef]] = make_decoder(list[QueueRef])


# --- membership

JoinRow = tuple[str, str, str, frozenset[int] | None, str, str]
HolderRow = tuple[QueueRef, str]
encode_join: Callable[[Join], bytes] = encode_sorted
_decode_join: Callable[[Body], JoinRow] = make_decoder(JoinRow)
_decode_holders: Callable[[Body], list[HolderRow]] = make_decoder(list[HolderRow])


def decode_join(body: Body) -> Join:
    """Decode the body of a JOIN request. Raises ValueError for a sharing strategy unknown to this version."""
    group, topic, sharing, queues, address, member = _decode_join(body)
    return Join(group, topic, Sharing(sharing), queues, address, member)


def encode_holders(holders: Mapping[QueueRef, str]) -> bytes:
    """Encode the answer to a HOLDERS request: the address of each queue's holder."""
    return encode(list(holders.items()))


def decode_holders(body: Body) -> dict[QueueRef, str]:
    """Decode the answer to a HOLDERS request into each queue's holder address."""
    return dict(_decode_holders(body))


# --- reading


class _Meta(NamedTuple):
    message_id: bytes
    born_ms: int
    stored_ms: int
    due_ms: int
    system: dict[str, str]


# The fields of a ReadCall: `tags` was added later and is absent from older members; later ones are ignored.
_ReadCallRow: Any = msgspec.defstruct(
    "_ReadCallRow",
    [
        ("queue", QueueRef),
        ("offset", int),
        ("count_max", int),
        ("bytes_max", int),
        ("tags", frozenset[int] | None, None),
    ],
    array_like=True,
)
_decode_read_call: Callable[[Body], Any] = make_decoder(_ReadCallRow)


def decode_read_call(body: Body) -> ReadCall:
    """Decode the body of a READ request."""
    row = _decode_read_call(body)
    return ReadCall(row.queue, row.offset, row.count_max, row.bytes_max, row.tags)


ReadRow = tuple[int, list[int], list[int], list[int], list[int], list[bytes], int, Bounds | None, list[_Meta]]
_STATUSES = list(ReadStatus)
_decode_read: Callable[[Body], ReadRow] = make_decoder(ReadRow)
decode_stored: Callable[[Body], list[StoredRecord]] = make_decoder(list[StoredRecord])


class RemoteReadBatch(ReadBatch):
    """A batch of records that the writer read and sent over a session."""

    __slots__ = ("_meta", "_queue")

    def __init__(self, queue: QueueRef, row: ReadRow) -> None:
        status, self.offsets, self.positions, self.flags, self.tag_hashes, self.deliveries = row[:6]
        self.status = _STATUSES[status]
        self.next_offset, self.bounds, self._meta = row[6:]
        self._queue = queue

    def record(self, index: int) -> StoredRecord:
        meta = self._meta[index]
        return StoredRecord(
            self._queue.topic, self._queue.queue_id, self.offsets[index], self.positions[index],
            meta.message_id, meta.born_ms, meta.stored_ms, self.flags[index], meta.due_ms,
            self.deliveries[index], meta.system,
        )  # fmt: skip

    def stored_ms(self, index: int) -> int:
        return self._meta[index].stored_ms


def encode_read(batch: ReadBatch) -> bytes:
    """Encode a read batch: its columns, then the remaining fields of each record."""
    records = map(batch.record, range(len(batch.offsets)))
    meta = [(one.message_id, one.born_ms, one.stored_ms, one.due_ms, one.system) for one in records]
    return encode(
        (
            _STATUSES.index(batch.status), list(batch.offsets), list(batch.positions), list(batch.flags),
            list(batch.tag_hashes), list(batch.deliveries), batch.next_offset, batch.bounds, meta,
        )
    )  # fmt: skip


def decode_read(queue: QueueRef, body: Body) -> ReadBatch:
    """Decode a batch that the writer read from `queue`."""
    return RemoteReadBatch(queue, _decode_read(body))
