"""The records, results and settings that the backend port exchanges: plain data, shared by every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

import google_crc32c
import msgspec

from ddmq_common.errors import DamagedError

FLAG_PRESSURE = 1  # property isPressureTraffic=true; reaches only subscriptions that accept it
FLAG_ONE_GROUP = 2  # reaches only the consumer group that system property ONE_GROUP names
ONE_GROUP = "one-group"
PASSED_MAX = 1 << 16  # records that one read may pass over because of their tags


class Durability(IntEnum):
    """The durability of an answered append. The numbers are Result field 103 on the wire."""

    WRITTEN = 0  # handed to the operating system
    DURABLE = 1  # fsync has returned
    REPLICATED = 2  # on several machines


class QueueRef(NamedTuple):
    """One queue of one incarnation of a topic. A recreated topic has other QueueRefs."""

    topic: str
    incarnation: int
    queue_id: int


class NewRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True, eq=False):
    """One message to append; the order of its fields is also the form in which processes exchange it.

    `delivery`: the result of ddmq_common.delivery.encode.

    `key` (UTF-8 bytes, b"" = none) is for the key index and `tags` for the tag hash; `delivery` contains both
    too. `message_id`: 16 bytes, unchanged by delay, retry and dead letter. `born_ms`: wall clock at the
    producer proxy. `due_ms`: 0, or the due time of a delayed record (epoch milliseconds), or negative: so
    many milliseconds after its own store time. `system`: internal properties (reserved names) that never
    reach a client in this form; with IDENTITY among them (ddmq_common/send_identity.py) an `idempotent`
    engine appends the message once.
    """

    topic: str
    queue_id: int
    message_id: bytes
    born_ms: int
    delivery: bytes
    key: bytes = b""
    tags: bytes = b""
    flags: int = 0
    due_ms: int = 0
    system: Mapping[str, str] | None = None


class AppendStatus(IntEnum):
    """The outcome of appending one record."""

    STORED = 0
    NOT_STORED = 1  # certainly not stored: the caller may send it again without a duplicate
    UNKNOWN = 2  # may be stored or not
    REFUSED = 3  # not stored, and the class of `error` says who must act


class FirstStored(NamedTuple):
    """The location of the stored message that another send repeats.

    `differs`: the repetition has another body.
    """

    message_id: bytes
    queue_id: int
    offset: int
    differs: bool


class AppendResult(NamedTuple):
    """The result of appending one record. `offset` is -1 unless STORED.

    `first`: the message was stored before, so that this record was not stored (capability `idempotent`);
    `offset` is then the stored message's, in its own queue.
    """

    status: AppendStatus
    offset: int
    durability: Durability
    error: Exception | None
    first: FirstStored | None = None


class ReadStatus(Enum):
    """The outcome of a read: data, no data yet, or the reason why the queue cannot be read at this offset."""

    DATA = "data"
    NONE = "none"  # nothing at or after the offset yet
    OUT_OF_RANGE = "out of range"  # below min or above next; bounds are in the batch
    MOVED = "moved"  # this engine's queue is served elsewhere now; look it up again
    UNKNOWN_QUEUE = "gone"  # the topic (this incarnation) was deleted, or never had the queue


class StoredRecord(NamedTuple):
    """A record as an engine returns it, with all fields."""

    topic: str
    queue_id: int
    offset: int
    position: int  # log position where the engine has topic_order, else -1
    message_id: bytes
    born_ms: int
    stored_ms: int
    flags: int
    due_ms: int
    delivery: bytes
    system: Mapping[str, str]


class ShortRecord(NamedTuple):
    """The main fields of a stored record, and one of its system properties.

    `value`: that property (UTF-8), b"" if the record lacks it.
    """

    offset: int
    message_id: bytes
    born_ms: int
    flags: int
    value: bytes
    delivery: bytes


def short_record(record: StoredRecord, name: str) -> ShortRecord:
    """Return the short form of a record, with the system property `name`."""
    value, delivery = record.system.get(name, "").encode(), bytes(record.delivery)
    return ShortRecord(record.offset, record.message_id, record.born_ms, record.flags, value, delivery)


class ReadBatch(ABC):
    """Records of one queue in columns, so that a pull needs no object per message.

    Offsets ascend but may have gaps; continue at `next_offset`, never at the last offset + 1. A damaged
    record is left out and counted; its offset is a gap.
    """

    status: ReadStatus
    offsets: Sequence[int]
    positions: Sequence[int]
    flags: Sequence[int]
    tag_hashes: Sequence[int]
    deliveries: Sequence[bytes]
    next_offset: int
    bounds: Bounds | None  # set when OUT_OF_RANGE
    at_end: bool = False  # whether there was nothing at or past `next_offset` at the read

    @abstractmethod
    def record(self, index: int) -> StoredRecord:
        """Return the complete record at `index` of the columns."""

    def carried(self, name: str) -> list[ShortRecord]:
        """Return all records in the short form, with the system property `name`.

        Records that were damaged or deleted since the read are left out. An engine overrides this if it need
        not decode complete records.
        """
        records = []
        for index in range(len(self.offsets)):
            try:
                record = self.record(index)
            except DamagedError:
                continue
            records.append(short_record(record, name))
        return records

    def message_ids(self) -> list[bytes]:
        """Return the message ids of all records, b"" for a record that cannot be read any more.

        An engine overrides this if it need not decode complete records.
        """
        ids = []
        for index in range(len(self.offsets)):
            try:
                ids.append(self.record(index).message_id)
            except DamagedError:
                ids.append(b"")
        return ids

    def stored_ms(self, index: int) -> int:
        """Return the store time of the record at `index`, in epoch milliseconds; 0 if it cannot be read any
        more.
        """
        return self.record(index).stored_ms


def is_for_group(batch: ReadBatch, index: int, group: str) -> bool:
    """Return whether `group` may receive the record at `index`: every group may, unless the record names
    one.
    """
    if not batch.flags[index] & FLAG_ONE_GROUP:
        return True
    try:
        return batch.record(index).system.get(ONE_GROUP, group) == group
    except DamagedError:  # deleted since the read
        return True


class Bounds(NamedTuple):
    """The range `[min, next)`: the oldest readable offset, and the offset that the next append gets."""

    min: int
    next: int


# The settings of a topic on an engine that replicates; -1 ms: for ever.
CLUSTER_SETTINGS = ("replication_factor", "min_insync", "retention_ms")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The current settings of one topic.

    `delay`: both | none | only. `source`: "log", or the file that owns the topic. `delay_dialects`: the
    delay-property dialects accepted on plain sends (names.DELAY_DIALECTS).
    """

    name: str
    incarnation: int
    queues: int
    durability: Durability = Durability.DURABLE
    readable: bool = True
    writable: bool = True
    delay: str = "both"
    body_bytes_max: int | None = None
    source: str = "log"
    delay_dialects: tuple[str, ...] = ()
    replication_factor: int | None = None  # CLUSTER_SETTINGS; None: the engine's default
    min_insync: int | None = None
    retention_ms: int | None = None

    def refs(self) -> list[QueueRef]:
        """Return the topic's queues, ascending."""
        return [QueueRef(self.name, self.incarnation, queue_id) for queue_id in range(self.queues)]


class ProgressDelta(msgspec.Struct, frozen=True):
    """A change to one group's progress on one queue, applied or refused as a unit.

    `finished`: ranges `[start, end)` of offsets that are done, filtered out, or gaps; in any order, may
    repeat. `attempts`: (offset, attempts so far) of unfinished offsets, recorded on fail and time-out;
    ignored if the number is not above the stored one. `reset_to`: sets the committed offset, empties ack map
    and attempts, starts generation `generation` (which must be above the current one); `finished` and
    `attempts` are then empty. Refused with FencedError when `epoch` or `generation` is below what is
    recorded.
    """

    group: str
    queue: QueueRef
    epoch: int
    generation: int
    finished: Sequence[tuple[int, int]] = ()
    attempts: Sequence[tuple[int, int]] = ()
    reset_to: int | None = None


@dataclass(frozen=True, slots=True)
class ProgressView:
    """A group's complete recorded progress on one queue.

    `committed` is None when the group has none on this queue yet (it then starts at the queue's first
    message). `finished`: disjoint ascending ranges, all above `committed`. `attempts` of unfinished ones.
    """

    committed: int | None
    finished: tuple[tuple[int, int], ...]
    attempts: Mapping[int, int]
    epoch: int
    generation: int


class SettingsLimit(NamedTuple):
    """A bound: at most `count_max` settings may have keys that start with `folder` (NAME/ or NAME/NAME/).

    `rejection`: the text of the BoundReachedError.
    """

    folder: str
    count_max: int
    rejection: str


class CommitBatch(msgspec.Struct, frozen=True):
    """Records, progress and settings to commit, all or nothing if the engine is `atomic`.

    `settings`: key → value, None deletes. `absent`: settings that must not exist before; else the engine
    refuses the batch with FencedError. `limits`: bounds on settings; if the batch exceeds one, the engine
    refuses it with BoundReachedError. The engine decides both for all processes together.
    """

    records: Sequence[NewRecord] = ()
    progress: Sequence[ProgressDelta] = ()
    settings: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)
    absent: Sequence[str] = ()
    limits: Sequence[SettingsLimit] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The limits and optional abilities of one engine."""

    engine: str
    atomic: bool  # commit() of several queues and progress, all or nothing
    idempotent: bool  # appends of a message that was appended before are recognised by its IDENTITY
    find_by_key: bool  # find() by key or message id
    topic_order: bool  # one position orders all topics: queues can be merged by it
    durability: frozenset[Durability]  # classes it can answer with
    body_bytes_max: int
    properties_bytes_max: int
    forbidden_bytes: bytes  # never inside names, keys, property text
    empty_body: bool
    queues_can_grow: bool


def tag_hash(tags: bytes) -> int:
    """Return the hash of `tags` that a queue stores with each offset, so that filters need not read
    properties.

    It is 0 for no tags, else positive: a CRC-32C, the same in every engine and process. Two tags may share a
    hash, so a match is checked again on the text.
    """
    return google_crc32c.value(tags) or 1 if tags else 0
