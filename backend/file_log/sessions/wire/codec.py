"""Frame bodies: the port's records as MessagePack arrays and back. Pure; parses in C, checks every type.

Decoding raises msgspec.MsgspecError on anything that does not have the documented shape. Errors travel
as (code, text); an error of a type without a code travels as its nearest base, a foreign one as
RemoteError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from backend.capabilities import Capabilities, Durability
from backend.port import Join, Sharing
from backend.records import (
    AppendResult,
    AppendStatus,
    Bounds,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    ReadBatch,
    ReadStatus,
    StoredRecord,
    TopicInfo,
)
from ddmq_common import errors

S = TypeVar("S")
Body = bytes | memoryview

encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


def decoder(shape: type[S] | Any) -> Callable[[Body], S]:
    """A reusable typed decoder for one body shape."""
    decode: Callable[[Body], S] = msgspec.msgpack.Decoder(shape).decode
    return decode


# --- errors; a code is never given to another class

_ERRORS: dict[int, type[Exception]] = {
    1: errors.CallerError,
    2: errors.NoSuchTopicError,
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
decode_fault: Callable[[Body], ErrorRow] = decoder(ErrorRow)


def error_row(error: Exception) -> ErrorRow:
    """An error as it travels."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind], str(error)
    return _CODES[errors.RemoteError], f"internal error in the writer: {type(error).__name__}: {error}"


def error_from(row: ErrorRow) -> Exception:
    """The error that `row` stands for; a code from a newer version becomes RemoteError."""
    return _ERRORS.get(row[0], errors.RemoteError)(row[1])


# --- records and results


RecordRow = tuple[str, int, bytes, int, bytes, bytes, bytes, int, int, dict[str, str] | None]
AppendRow = tuple[int, list[RecordRow]]
OddRow = tuple[int, int, int, ErrorRow | None]
ResultsRow = tuple[int, int, list[int], list[OddRow]]
decode_append: Callable[[Body], AppendRow] = decoder(AppendRow)
_decode_results: Callable[[Body], ResultsRow] = decoder(ResultsRow)


def record_row(r: NewRecord) -> RecordRow:
    """One record to append, as it travels."""
    system = dict(r.system) if r.system else None
    return (
        r.topic, r.queue_id, r.message_id, r.born_ms, r.delivery, r.key, r.tags, r.flags, r.due_ms, system,
    )  # fmt: skip


def records_from(rows: Sequence[RecordRow]) -> list[NewRecord]:
    """Records as the engine takes them."""
    return [NewRecord(*row) for row in rows]


def encode_results(clock_ms: int, results: Sequence[AppendResult]) -> bytes:
    """Offsets, one common durability, and the odd ones out: those not stored or of another class."""
    common = results[0].durability if results else Durability.WRITTEN
    odd = [
        (index, result.status, result.durability, None if result.error is None else error_row(result.error))
        for index, result in enumerate(results)
        if result.status or result.durability is not common
    ]
    return encode((clock_ms, common, [result.offset for result in results], odd))


def decode_results(body: Body) -> tuple[int, list[AppendResult]]:
    """(store clock in ms, results)."""
    clock_ms, common, offsets, odd = _decode_results(body)
    stored, durability = AppendStatus.STORED, Durability(common)
    results = [AppendResult(stored, offset, durability, None) for offset in offsets]
    for index, status, own, error in odd:
        problem = None if error is None else error_from(error)
        results[index] = AppendResult(AppendStatus(status), offsets[index], Durability(own), problem)
    return clock_ms, results


# --- commits

QueueRow = tuple[str, int, int]
DeltaRow = tuple[str, QueueRow, int, int, list[tuple[int, int]], list[tuple[int, int]], int | None]
CommitRow = tuple[int, list[RecordRow], list[DeltaRow], dict[str, bytes | None], list[str]]
_decode_commit: Callable[[Body], CommitRow] = decoder(CommitRow)


def commit_row(batch: CommitBatch, left_ms: int) -> CommitRow:
    """One commit as it travels."""
    deltas: list[DeltaRow] = [
        (d.group, d.queue, d.epoch, d.generation, list(d.finished), list(d.attempts), d.reset_to)
        for d in batch.progress
    ]
    records = [record_row(record) for record in batch.records]
    return left_ms, records, deltas, dict(batch.settings), list(batch.absent)


def decode_commit(body: Body) -> tuple[int, CommitBatch]:
    """(milliseconds left, the batch)."""
    left_ms, rows, deltas, settings, absent = _decode_commit(body)
    progress = [
        ProgressDelta(group, QueueRef(*queue), epoch, generation, finished, attempts, reset_to)
        for group, queue, epoch, generation, finished, attempts, reset_to in deltas
    ]
    return left_ms, CommitBatch(records_from(rows), progress, settings, absent)


# --- topics, bounds, progress, capabilities

TopicRow = tuple[str, int, int, int, bool, bool, str, int | None, str, tuple[str, ...]]
BoundsRow = tuple[int, int]
ViewRow = tuple[int | None, list[tuple[int, int]], dict[int, int], int, int]
CapabilitiesRow = tuple[str, bool, bool, bool, bool, list[int], int, int, bytes, bool, bool]


decode_topic: Callable[[Body], TopicRow] = decoder(TopicRow)
decode_topics: Callable[[Body], tuple[list[TopicRow], list[str]]] = decoder(tuple[list[TopicRow], list[str]])
decode_settings: Callable[[Body], dict[str, bytes | None]] = decoder(dict[str, bytes | None])
decode_flag: Callable[[Body], bool] = decoder(bool)
decode_number: Callable[[Body], int] = decoder(int)
_decode_bounds: Callable[[Body], list[BoundsRow | None]] = decoder(list[BoundsRow | None])
_decode_views: Callable[[Body], list[ViewRow]] = decoder(list[ViewRow])


def topic_row(i: TopicInfo) -> TopicRow:
    """A topic as it travels."""
    return (
        i.name, i.incarnation, i.queues, i.durability, i.readable, i.writable, i.delay, i.body_bytes_max,
        i.source, i.delay_dialects,
    )  # fmt: skip


def topic_from(row: TopicRow) -> TopicInfo:
    """The topic that `row` stands for."""
    name, incarnation, queues, durability, readable, writable, delay, body_bytes_max, source, dialects = row
    return TopicInfo(
        name, incarnation, queues, Durability(durability), readable, writable, delay, body_bytes_max, source,
        dialects,
    )  # fmt: skip


def decode_bounds(body: Body) -> list[Bounds | None]:
    """The answer of BOUNDS."""
    return [None if row is None else Bounds(*row) for row in _decode_bounds(body)]


def decode_views(body: Body) -> list[ProgressView]:
    """The answer of PROGRESS."""
    return [view_from(row) for row in _decode_views(body)]


def view_row(view: ProgressView) -> ViewRow:
    """Progress on one queue as it travels."""
    return view.committed, list(view.finished), dict(view.attempts), view.epoch, view.generation


def view_from(row: ViewRow) -> ProgressView:
    """The progress that `row` stands for."""
    committed, finished, attempts, epoch, generation = row
    return ProgressView(committed, tuple(finished), attempts, epoch, generation)


def capabilities_row(c: Capabilities) -> CapabilitiesRow:
    """The engine's capabilities as they travel."""
    return (
        c.engine, c.atomic, c.idempotent, c.find_by_key, c.topic_order, sorted(c.durability),
        c.body_bytes_max, c.properties_bytes_max, c.forbidden_bytes, c.empty_body, c.queues_can_grow,
    )  # fmt: skip


def capabilities_from(row: CapabilitiesRow) -> Capabilities:
    """The capabilities that `row` stands for."""
    engine, atomic, idempotent, find, order, classes, body, properties, forbidden, empty, grow = row
    durability = frozenset(Durability(number) for number in classes)
    return Capabilities(
        engine, atomic, idempotent, find, order, durability, body, properties, forbidden, empty, grow
    )


WelcomeRow = tuple[int, int, int, CapabilitiesRow, str, str]
PongRow = tuple[int, bool, str]
decode_welcome: Callable[[Body], WelcomeRow] = decoder(WelcomeRow)
decode_pong: Callable[[Body], PongRow] = decoder(PongRow)
decode_assigned: Callable[[Body], tuple[list[QueueRef], int]] = decoder(tuple[list[QueueRef], int])
decode_revoked: Callable[[Body], tuple[list[QueueRef], int]] = decoder(tuple[list[QueueRef], int])
decode_queues: Callable[[Body], list[QueueRef]] = decoder(list[QueueRef])


# --- membership

JoinRow = tuple[str, str, str, frozenset[int] | None, str, str]
HolderRow = tuple[QueueRef, str]
encode_join: Callable[[Join], bytes] = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_join: Callable[[Body], JoinRow] = decoder(JoinRow)
_decode_holders: Callable[[Body], list[HolderRow]] = decoder(list[HolderRow])


def decode_join(body: Body) -> Join:
    """The body of JOIN. Raises ValueError for a sharing that this version does not know."""
    group, topic, sharing, queues, address, member = _decode_join(body)
    return Join(group, topic, Sharing(sharing), queues, address, member)


def encode_holders(holders: Mapping[QueueRef, str]) -> bytes:
    """The answer of HOLDERS."""
    return encode(list(holders.items()))


def decode_holders(body: Body) -> dict[QueueRef, str]:
    """The answer of HOLDERS."""
    return dict(_decode_holders(body))


# --- reading

StoredRow = tuple[str, int, int, int, bytes, int, int, int, int, bytes, dict[str, str]]
MetaRow = tuple[bytes, int, int, int, dict[str, str]]
ReadRow = tuple[
    int, list[int], list[int], list[int], list[int], list[bytes], int, BoundsRow | None, list[MetaRow]
]
_STATUSES = list(ReadStatus)
_decode_read: Callable[[Body], ReadRow] = decoder(ReadRow)


def stored_row(r: StoredRecord) -> StoredRow:
    """A stored record as it travels."""
    return (*r[:-1], dict(r.system))


def stored_from(row: StoredRow) -> StoredRecord:
    """The stored record that `row` stands for."""
    return StoredRecord(*row)


_decode_stored: Callable[[Body], list[StoredRow]] = decoder(list[StoredRow])


def decode_stored(body: Body) -> list[StoredRecord]:
    """The answer of FIND."""
    return [stored_from(row) for row in _decode_stored(body)]


class _Meta(NamedTuple):
    message_id: bytes
    born_ms: int
    stored_ms: int
    due_ms: int
    system: Mapping[str, str]


class RemoteReadBatch(ReadBatch):
    """A ReadBatch that came over a session."""

    __slots__ = ("_meta", "_queue")

    def __init__(self, queue: QueueRef, row: ReadRow) -> None:
        status, self.offsets, self.positions, self.flags, self.tag_hashes, self.deliveries = row[:6]
        self.status = _STATUSES[status]
        self.next_offset = row[6]
        self.bounds = None if row[7] is None else Bounds(*row[7])
        self._queue = queue
        self._meta = row[8]

    def record(self, index: int) -> StoredRecord:
        meta = _Meta(*self._meta[index])
        return StoredRecord(
            self._queue.topic, self._queue.queue_id, self.offsets[index], self.positions[index],
            meta.message_id, meta.born_ms, meta.stored_ms, self.flags[index], meta.due_ms,
            self.deliveries[index], meta.system,
        )  # fmt: skip

    def stored_ms(self, index: int) -> int:
        return _Meta(*self._meta[index]).stored_ms


def encode_read(batch: ReadBatch) -> bytes:
    """What a read found, columns and the rest of each record."""
    meta: list[MetaRow] = []
    for index in range(len(batch.offsets)):
        record = batch.record(index)
        meta.append((record.message_id, record.born_ms, record.stored_ms, record.due_ms, dict(record.system)))
    return encode(
        (
            _STATUSES.index(batch.status), list(batch.offsets), list(batch.positions), list(batch.flags),
            list(batch.tag_hashes), list(batch.deliveries), batch.next_offset, batch.bounds, meta,
        )
    )  # fmt: skip


def decode_read(queue: QueueRef, body: Body) -> ReadBatch:
    """What a read of `queue` found."""
    return RemoteReadBatch(queue, _decode_read(body))
