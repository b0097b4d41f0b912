"""Packs requests into one frame: the part of a group commit that costs processor time.

The loop over records is the hot spot of the write path (about 3 µs a record), so it is one function with
local names, and calls only C functions for a plain record. A packed frame has everything needed to undo it
(if nothing was written) and to complete it (when it is durable).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import google_crc32c

from backend.engine import SettingCounts
from backend.file_log.core.layout import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_CRC,
    FRAME_BYTES,
    FRONT,
    META_BYTES_MAX,
    NO_ID,
    RECORD_BYTES,
    RECORD_MAGIC,
    RECORD_VERSION,
    REST,
    Frame,
    RecordKind,
    encode_system,
    pack_frame,
    pack_record,
)
from backend.file_log.options import FileLogOptions
from backend.file_log.state import LogQueue, LogState, TopicState
from backend.idempotency import add_topic_name
from backend.progress.group_progress import Fence, Key
from backend.records import (
    AppendResult,
    AppendStatus,
    Durability,
    NewRecord,
    TopicInfo,
    tag_hash,
)
from ddmq_common.errors import CallerError, DdmqError, UnknownTopicError
from ddmq_common.names import is_internal
from ddmq_common.send_identity import IDENTITY

TAGS_REMEMBERED_MAX = 10_000
_I64 = 1 << 63
KEY_BYTES_MAX = 64 * 1024
Results = list[AppendResult]


class PackedFrame:
    """One group commit on its way to the disk."""

    __slots__ = (
        "applies", "batch_id", "columns", "count", "data", "durable", "end", "fences", "position", "requests",
        "sends_ms", "setting_counts", "settings", "stored_ms", "sync", "topics", "topics_more", "touched",
    )  # fmt: skip

    def __init__(self, position: int, batch_id: int, durable: int, stored_ms: int) -> None:
        self.position = position
        self.batch_id = batch_id
        self.durable = durable
        self.stored_ms = stored_ms
        self.sends_ms = 0  # the store time on the clock of StoredSends
        self.end = position + FRAME_BYTES
        self.count = 0
        self.sync = False
        self.data = b""
        self.requests: list[Any] = []
        self.touched: list[tuple[LogQueue, int]] = []  # queue, its next offset before the frame
        self.columns: tuple[list[int], list[str], list[bytes], list[bytes]] = ([], [], [], [])
        self.applies: list[Callable[[], None]] = []
        self.fences: dict[Key, Fence] = {}  # the fences after the progress in this frame
        self.settings: dict[str, bool] = {}  # that this frame sets (True) or deletes
        self.setting_counts: SettingCounts | None = None  # the changes to the counts by this frame
        self.topics: dict[str, TopicInfo | None] = {}  # topics after this frame; None = deleted
        self.topics_more = 0  # created by this frame, minus those that it deletes

    def add_setting_change(self, key: str, before: bool, after: bool) -> None:
        """Record that a commit of this frame creates, changes or deletes a setting."""
        before = self.settings.get(key, before)
        self.settings[key] = after
        if before != after:
            if self.setting_counts is None:  # nearly no frame has settings
                self.setting_counts = SettingCounts()
            self.setting_counts.add_change(key, 1 if after else -1)

    def release_offsets(self) -> None:
        """Release the offsets of a frame that was not written."""
        for queue, assigned in self.touched:
            queue.assigned = assigned
            queue.pending.clear()


class Mark(NamedTuple):
    """The extent of a frame while it is being packed; packing can be undone back to it."""

    end: int
    chunks: int
    records: int
    applies: int
    sync: bool
    pending_sends: int


def _check_numbers(record: NewRecord) -> DdmqError | None:
    for name, low in (("born_ms", -_I64), ("due_ms", -_I64 // 2)):
        if not low <= getattr(record, name) < _I64:
            return CallerError(f"{name} {getattr(record, name)}; allowed: {low} to {_I64 - 1}")
    if not record.system:
        return None
    try:
        size = len(encode_system(dict(record.system)))
    except (AttributeError, UnicodeEncodeError) as error:
        return CallerError(f"system properties: {error}")
    if size > META_BYTES_MAX - RECORD_BYTES - KEY_BYTES_MAX - 256:
        return CallerError(
            f"system properties of {size} bytes; allowed: at most about {META_BYTES_MAX >> 20} MiB"
        )
    return None


def rejected_result(error: Exception) -> AppendResult:
    """Return the result for a record that is refused with `error`."""
    return AppendResult(AppendStatus.REFUSED, -1, Durability.WRITTEN, error)


class FramePacker:
    """Packs requests into frames, one frame at a time."""

    def __init__(self, state: LogState, options: FileLogOptions, salt: int) -> None:
        """Create a packer of frames. `salt`: the start value of the CRCs in this directory; not 0."""
        self._state = state
        self._salt = salt
        self._delivery_bytes_max = options.delivery_bytes_max
        self._moved_bytes_max = options.moved_bytes_max
        self._tags: dict[bytes, int] = {b"": 0}
        self._chunks: list[bytes] = []
        self.frame = PackedFrame(0, 0, 0, 0)

    def begin(self, position: int, durable: int, stored_ms: int, now_s: float) -> PackedFrame:
        """Start a frame at a log position; `now_s`: monotonic."""
        self._chunks = [b""]
        self.frame = PackedFrame(position, self._state.batch_id, durable, stored_ms)
        self.frame.sends_ms = self._state.sends.stamp(stored_ms, now_s)
        return self.frame

    def mark_extent(self) -> Mark:
        """Return the frame's present extent, for `back_to`."""
        frame = self.frame
        chunks, records, pending_sends = (
            len(self._chunks),
            len(frame.columns[0]),
            len(self._state.sends.pending),
        )
        return Mark(frame.end, chunks, records, len(frame.applies), frame.sync, pending_sends)

    def back_to(self, mark: Mark) -> None:
        """Remove the records packed since `mark` and release their offsets."""
        frame, touched = self.frame, []
        del self._chunks[mark.chunks :], frame.applies[mark.applies :]
        for column in frame.columns:
            del column[mark.records :]
        frame.end, frame.sync = mark.end, mark.sync
        self._state.sends.back_to(mark.pending_sends)
        for queue, assigned in frame.touched:
            pending = queue.pending
            while pending and ENTRY.unpack_from(pending, len(pending) - ENTRY_BYTES)[0] >= mark.end:
                del pending[-ENTRY_BYTES:]
            queue.assigned = assigned + len(pending) // ENTRY_BYTES
            if pending:
                touched.append((queue, assigned))
        frame.touched = touched

    def find_rejection(self, record: NewRecord) -> DdmqError | None:
        """Return why a record cannot be accepted, or None."""
        topic = self._state.topics.get(record.topic)
        if (
            topic is not None and topic.writable and 0 <= record.queue_id < len(topic.queues)
            and len(record.delivery) <= self._delivery_bytes_max and len(record.message_id) == len(NO_ID)
            and not record.flags >> 8 and not record.system and len(record.key) <= KEY_BYTES_MAX
            and 0 <= record.born_ms < _I64 and 0 <= record.due_ms < _I64
        ):  # fmt: skip
            return None  # nearly all records are
        if topic is None:
            return UnknownTopicError(f"topic {record.topic} does not exist")
        if not 0 <= record.queue_id < len(topic.queues):
            return UnknownTopicError(
                f"topic {record.topic} has no queue {record.queue_id}; it has 0 to {len(topic.queues) - 1}"
            )
        if not topic.writable:
            return CallerError(f"topic {record.topic} is not writable")
        size = len(record.delivery)
        bytes_max = self._bytes_max_in(record.topic)
        if size > bytes_max:
            return CallerError(f"record of {size} bytes; allowed: at most {bytes_max}")
        if len(record.message_id) != len(NO_ID):
            return CallerError(f"message id of {len(record.message_id)} bytes; allowed: {len(NO_ID)}")
        if record.flags >> 8:
            return CallerError(f"flags {record.flags}; allowed: 0 to 255")
        if len(record.key) > KEY_BYTES_MAX:
            return CallerError(f"key of {len(record.key)} bytes; allowed: at most {KEY_BYTES_MAX}")
        return _check_numbers(record)

    def _bytes_max_in(self, topic: str) -> int:
        return self._moved_bytes_max if is_internal(topic) else self._delivery_bytes_max

    def add_records(self, records: Sequence[NewRecord], once: bool) -> Results:
        """Pack records into the frame and return their results. These count only once the frame is written.

        With `once`, a record whose identity was stored before is not stored again.
        """
        return self.add_lists((records,), once)[0]

    # Longer than sixty lines because it is the hot loop: every call out of it costs 5 % of the write path.
    def add_lists(self, lists: Iterable[Sequence[NewRecord]], once: bool = True) -> list[Results]:
        """Pack the records of many requests into the frame; see `add_records`."""
        frame, chunks, tags = self.frame, self._chunks, self._tags
        topics, position, stored_ms, sends_ms = self._state.topics, frame.end, frame.stored_ms, frame.sends_ms
        positions, names, keys, ids = frame.columns
        crc, add_crc, pack_rest, pack_front = google_crc32c.value, google_crc32c.extend, REST.pack, FRONT.pack
        salt = self._salt
        pack_entry, pack_crc, bytes_max = ENTRY.pack, ENTRY_CRC.pack, self._delivery_bytes_max
        new, status, add_pending = tuple.__new__, AppendStatus.STORED, self._state.sends.add_pending
        answers: list[Results] = []
        for records in lists:
            results: Results = []
            answers.append(results)
            for record in records:
                topic = topics.get(record.topic)
                delivery, key, message_id = record.delivery, record.key, record.message_id
                try:
                    if (
                        topic is None or record.queue_id < 0 or not topic.writable
                        or (len(delivery) > bytes_max and len(delivery) > self._bytes_max_in(record.topic))
                        or len(message_id) != 16 or len(key) > KEY_BYTES_MAX or record.flags >> 8
                    ):  # fmt: skip
                        raise IndexError
                    queue = topic.queues[record.queue_id]
                    tag = tags.get(record.tags)
                    if tag is None:
                        tag = self._hash_tags(record.tags)
                    system = record.system
                    identity = system.get(IDENTITY) if system else None
                    if once and identity is not None and self._answered_before(identity, topic, results):
                        continue
                    tail = topic.name_bytes + key + (encode_system(dict(system)) if system else b"")
                    meta_bytes = RECORD_BYTES + len(tail)
                    size = meta_bytes + len(delivery)
                    packed, offset, due_ms = meta_bytes << 8 | record.flags, queue.assigned, record.due_ms
                    if due_ms < 0:
                        due_ms = stored_ms - due_ms
                    meta = pack_rest(
                        position, size, tag, due_ms, packed, offset, stored_ms, record.born_ms, message_id,
                        topic.incarnation, record.queue_id, len(key), 1, RECORD_VERSION, topic.name_size,
                    ) + tail  # fmt: skip
                    entry = pack_entry(position, size, tag, due_ms, packed)
                except (IndexError, struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
                    results.append(rejected_result(self._explain_error(record, error)))
                    continue
                meta_crc = add_crc(salt, meta)
                chunks += (pack_front(RECORD_MAGIC, meta_crc, add_crc(meta_crc, delivery)), meta, delivery)
                pending = queue.pending
                if not pending:
                    frame.touched.append((queue, offset))
                    frame.sync = frame.sync or topic.durable
                pending += entry
                pending += pack_crc(crc(entry))
                queue.assigned = offset + 1
                positions.append(position)
                names.append(record.topic)
                keys.append(key)
                ids.append(message_id)
                position += size
                results.append(new(AppendResult, (status, offset, topic.durability, None, None)))
                if identity is not None:
                    add_pending(identity, message_id, offset, record.queue_id, topic.incarnation, sends_ms)
        frame.end = position
        return answers

    def _answered_before(self, identity: str, topic: TopicState, results: Results) -> bool:
        """Add a result if the identity was stored before or is refused; return whether a result was added."""
        try:
            first = self._state.sends.find_first(identity, topic.incarnation, self.frame.sends_ms)
        except DdmqError as error:
            results.append(rejected_result(add_topic_name(topic.info.name, error)))
            return True
        if first is not None:
            result = AppendResult(AppendStatus.STORED, first.offset, topic.durability, None, first)
            results.append(result)
        return first is not None

    def _explain_error(self, record: NewRecord, error: Exception) -> DdmqError:
        rejection = self.find_rejection(record)
        return CallerError(f"the record cannot be stored: {error}") if rejection is None else rejection

    def _hash_tags(self, tags: bytes) -> int:
        value = tag_hash(tags)
        if len(self._tags) < TAGS_REMEMBERED_MAX:
            self._tags[tags] = value
        return value

    def add_internal(self, kind: RecordKind, apply: Callable[[], None], **fields: Any) -> None:
        """Pack a record that is not a message. `apply` runs when it is durable."""
        frame = self.frame
        data = pack_record(kind, frame.end, frame.stored_ms, **fields, salt=self._salt)
        self._chunks.append(data)
        frame.end += len(data)
        frame.sync = True
        frame.applies.append(apply)

    def finish_frame(self) -> PackedFrame:
        """Add the header and return the frame, ready to write."""
        frame = self.frame
        frame.count = len(frame.columns[0]) + len(frame.applies)
        self._chunks[0] = pack_frame(
            Frame(
                frame.count,
                frame.end - frame.position - FRAME_BYTES,
                self._state.writer_epoch,
                frame.position,
                frame.batch_id,
                frame.durable,
                frame.stored_ms,
            ),
            self._salt,
        )
        frame.data = b"".join(self._chunks)
        self._chunks = []
        self._state.batch_id += 1
        return frame
