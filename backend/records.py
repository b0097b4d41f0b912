"""What goes into the backend and what comes out of it: plain data, shared by every engine."""

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
    """What an answered append has reached. The numbers are Result field 103 on the wire."""

    WRITTEN = 0  # handed to the operating system
    DURABLE = 1  # fsync has returned
    REPLICATED = 2  # on several machines


class QueueRef(NamedTuple):
    """One queue of one incarnation of a topic. A recreated topic has other QueueRefs."""

    topic: str
    incarnation: int
    queue_id: int


class NewRecord(msgspec.Struct, array_like=True, forbid_unknown_fields=True, eq=False):
    """One message to append; its fields in their order are also how it travels between processes.

    `delivery` is what ddmq_common.delivery.encode gave.

    `key` (UTF-8 bytes, b"" = none) is for the key index and `tags` for the tag hash; both also stand
    inside `delivery`. `message_id`: 16 bytes, kept through delay, retry and dead letter. `born_ms`:
    wall clock at the producer proxy. `due_ms`: 0, or when a held record is due (epoch milliseconds), or
    negative: so many milliseconds after its own store time. `system`: internal
    properties (reserved names) that never reach a client as they are; with IDENTITY among them
    (ddmq_common/send_identity.py) an `idempotent` engine appends the message once.
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
    """What became of one record."""

    STORED = 0
    NOT_STORED = 1  # certainly not there: the caller may send it again without a duplicate
    UNKNOWN = 2  # may or may not be there
    REFUSED = 3  # not there, and `error` says who must act


class FirstStored(NamedTuple):
    """Where a message stands that was sent again. `differs`: the later one had another body."""

    message_id: bytes
    queue_id: int
    offset: int
    differs: bool


class AppendResult(NamedTuple):
    """Per record of an append, in the order given. `offset` is -1 unless STORED.

    `first`: the record was not stored, because its message was before (capability `idempotent`); `offset` is
    that one's, in its own queue.
    """

    status: AppendStatus
    offset: int
    durability: Durability
    error: Exception | None
    first: FirstStored | None = None


class ReadStatus(Enum):
    """What a read found."""

    DATA = "data"
    NONE = "none"  # nothing at or after the offset yet
    OUT_OF_RANGE = "out of range"  # below min or above next; bounds are in the batch
    MOVED = "moved"  # this engine's queue is served elsewhere now; look it up again
    GONE = "gone"  # the topic (this incarnation) was deleted


class StoredRecord(NamedTuple):
    """One record in full."""

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
    """A record in short. `value`: one of its system properties (UTF-8), b"" where it has none such."""

    offset: int
    message_id: bytes
    born_ms: int
    flags: int
    value: bytes
    delivery: bytes


def short_record(record: StoredRecord, name: str) -> ShortRecord:
    """Its short form, with the system property `name`."""
    value, delivery = record.system.get(name, "").encode(), bytes(record.delivery)
    return ShortRecord(record.offset, record.message_id, record.born_ms, record.flags, value, delivery)


class ReadBatch(ABC):
    """Records of one queue in columns: a pull touches slices and offsets, not an object a message.

    Offsets ascend but may have gaps; continue at `next_offset`, never at the last offset + 1.
    A record that was found damaged is left out and counted; its offset is a gap.
    """

    status: ReadStatus
    offsets: Sequence[int]
    positions: Sequence[int]
    flags: Sequence[int]
    tag_hashes: Sequence[int]
    deliveries: Sequence[bytes]
    next_offset: int
    bounds: Bounds | None  # set when OUT_OF_RANGE
    at_end: bool = False  # known when it was read: nothing at or past `next_offset` yet

    @abstractmethod
    def record(self, index: int) -> StoredRecord:
        """The record at `index` of the columns, in full."""

    def carried(self, name: str) -> list[ShortRecord]:
        """All of them in short, with the system property `name`; what was damaged, or deleted, since the
        read is left out. An engine that need not take a whole record apart for it does better than this."""
        found = []
        for index in range(len(self.offsets)):
            try:
                record = self.record(index)
            except DamagedError:
                continue
            found.append(short_record(record, name))
        return found

    def message_ids(self) -> list[bytes]:
        """Those of all of them; b"" where one cannot be told any more. An engine that need not take a whole
        record apart for it does better than this."""
        found = []
        for index in range(len(self.offsets)):
            try:
                found.append(self.record(index).message_id)
            except DamagedError:
                found.append(b"")
        return found

    def stored_ms(self, index: int) -> int:
        """When the record at `index` was stored, epoch milliseconds; 0 when that cannot be told any more."""
        return self.record(index).stored_ms


def is_for_group(batch: ReadBatch, index: int, group: str) -> bool:
    """Whether `group` may have the record at `index`: all groups may, but where the record names one."""
    if not batch.flags[index] & FLAG_ONE_GROUP:
        return True
    try:
        return batch.record(index).system.get(ONE_GROUP, group) == group
    except DamagedError:  # deleted since the read
        return True


class Bounds(NamedTuple):
    """`[min, next)`: oldest readable offset, and where the next append lands."""

    min: int
    next: int


# What a topic has on an engine that replicates; -1 ms: for ever.
CLUSTER_SETTINGS = ("replication_factor", "min_insync", "retention_ms")


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as it stands. `delay`: both | none | only. `source`: "log", or the file that owns it.
    `delay_dialects`: in whose words properties of a plain send ask for a delay (names.DELAY_DIALECTS)."""

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
    replication_factor: int | None = None  # CLUSTER_SETTINGS; None: as the engine has it
    min_insync: int | None = None
    retention_ms: int | None = None

    def refs(self) -> list[QueueRef]:
        """Its queues, ascending."""
        return [QueueRef(self.name, self.incarnation, queue_id) for queue_id in range(self.queues)]


class ProgressDelta(msgspec.Struct, frozen=True):
    """A change to one group's progress on one queue; applied whole or refused whole.

    `finished`: ranges `[start, end)` of offsets done, filtered out, or gaps; any order, may repeat.
    `attempts`: (offset, attempts so far) of unfinished ones; recorded on fail and time-out.
    `reset_to`: sets the committed offset, empties ack map and attempts, starts generation
    `generation` (which must be above the current one); `finished` and `attempts` are then empty.
    Refused with FencedError when `epoch` or `generation` is below what is recorded.
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
    """A group's whole progress on one queue, as recorded.

    `committed` is None when the group has none on this queue yet (it then starts at the queue's first
    message). `finished`: disjoint ascending ranges, all above `committed`. `attempts` of unfinished ones.
    """

    committed: int | None
    finished: tuple[tuple[int, int], ...]
    attempts: Mapping[int, int]
    epoch: int
    generation: int


class SettingsLimit(NamedTuple):
    """At most `count_max` settings may have keys that start with `folder`, which is NAME/ or NAME/NAME/.

    `rejection`: the text of the BoundReachedError.
    """

    folder: str
    count_max: int
    rejection: str


class CommitBatch(msgspec.Struct, frozen=True):
    """All or nothing where the engine is `atomic`. `settings`: key → value, None deletes.

    `absent`: settings that must not be there before it; refused with FencedError when one is.
    `limits`: refused with BoundReachedError when it makes a setting beyond one of them. The engine decides
    both for all processes together.
    """

    records: Sequence[NewRecord] = ()
    progress: Sequence[ProgressDelta] = ()
    settings: Mapping[str, bytes | None] = msgspec.field(default_factory=dict)
    absent: Sequence[str] = ()
    limits: Sequence[SettingsLimit] = ()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """One engine's limits and abilities."""

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
    """What stands beside an offset, so that filtering reads no properties; 0 for no tags, else above.

    CRC-32C, so every engine and every process says the same. Two tags may share a hash: a match is checked
    again on the text.
    """
    return google_crc32c.value(tags) or 1 if tags else 0
