"""Layout of the log's bytes (docs/formats.md): frame headers, records, consume-queue entries.

One frame of the commit log is one group commit. A header is valid only if its CRC is right, it names the
position where it was found, and its durable position is not after itself. The CRC starts from the directory's
salt, or from 0 in older segments, so that a client cannot forge a frame inside a message.

A record is its header, topic, key, system properties (together: the meta part, under one CRC) and delivery
bytes (under a second CRC, over all of the record). An entry repeats 28 bytes of the header, so that each of
them confirms the other. packing.py packs records in bulk; this module packs single ones and does all parsing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import google_crc32c

from ddmq_common.delivery import decode, encode_properties
from ddmq_common.errors import DamagedError

_SIZES = [bytes([size]) for size in range(128)]  # varints of one byte
FRAME_MAGIC = b"DQF1"
FRAME_VERSION = 2  # with a salt
UNSALTED_VERSION = 1
_FRAME_FRONT = struct.Struct("<4sI")
_FRAME_REST = struct.Struct("<B3xIIIQQQq")
FRAME_BYTES = _FRAME_FRONT.size + _FRAME_REST.size


class Salting(NamedTuple):
    """The start value of the CRCs of frames and records in one directory, from 1 to 2^32 − 1.

    It is random and secret, so that recovery, which searches for the next valid frame or record, cannot take
    bytes that a client sent for one. Segments that start before `since` have no salt (salt 0).
    """

    salt: int
    since: int  # log position where the first segment with the salt starts

    def of_segment(self, start: int) -> int:
        """Return the salt of the segment that starts at this log position, or 0 if it has none."""
        return self.salt if start >= self.since else 0


UNSALTED = Salting(0, 0)


class Frame(NamedTuple):
    """A valid frame header."""

    records: int
    payload_bytes: int
    writer_epoch: int
    position: int
    batch_id: int
    durable: int  # everything below was durable before this frame was written
    stored_ms: int

    @property
    def end(self) -> int:
        """The log position after the frame."""
        return self.position + FRAME_BYTES + self.payload_bytes


def version_of(salt: int) -> int:
    """Return the format version of frames and records that are written with this salt."""
    return FRAME_VERSION if salt else UNSALTED_VERSION


def pack_frame(frame: Frame, salt: int = 0) -> bytes:
    """Encode a frame header."""
    rest = _FRAME_REST.pack(version_of(salt), *frame)
    return _FRAME_FRONT.pack(FRAME_MAGIC, google_crc32c.extend(salt, rest)) + rest


def unpack_frame(data: bytes, position: int, salt: int = 0) -> Frame | None:
    """Decode the header at the start of `data`, read at log position `position`; None if it is not valid."""
    if frame_version(data, position, salt) != version_of(salt):
        return None
    frame = Frame(*_FRAME_REST.unpack(data[_FRAME_FRONT.size : FRAME_BYTES])[1:])
    return frame if frame.durable <= position else None


def frame_version(data: bytes, position: int, salt: int) -> int | None:
    """Return the version, known or not, of the header in `data`; None if its CRC or position is wrong."""
    if len(data) < FRAME_BYTES:
        return None
    magic, crc = _FRAME_FRONT.unpack_from(data)
    rest = data[_FRAME_FRONT.size : FRAME_BYTES]
    if magic != FRAME_MAGIC or google_crc32c.extend(salt, rest) != crc:
        return None
    version: int = rest[0]
    return version if _FRAME_REST.unpack(rest)[4] == position else None


def salt_of(data: bytes, position: int) -> tuple[int, int] | None:
    """Compute (version, salt) of the header in `data` from its CRC; None if its magic or position is wrong.

    Another record has to confirm the salt.
    """
    if len(data) < FRAME_BYTES:
        return None
    magic, crc = _FRAME_FRONT.unpack_from(data)
    rest = data[_FRAME_FRONT.size : FRAME_BYTES]
    if magic != FRAME_MAGIC or _FRAME_REST.unpack(rest)[4] != position:
        return None
    return rest[0], crc_start(rest, crc)


def crc_start(data: bytes, crc: int) -> int:
    """Return the start value with which the CRC of `data` is `crc`; the CRC is linear in its start value."""
    zero = google_crc32c.extend(0, data)
    rows = [(google_crc32c.extend(1 << bit, data) ^ zero, 1 << bit) for bit in range(32)]
    difference, start = crc ^ zero, 0
    for bit in reversed(range(32)):
        pivot = next(row for row in rows if row[0].bit_length() == bit + 1)
        rows = [
            (row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0].bit_length() == bit + 1 else row
            for row in rows
            if row is not pivot
        ]
        if difference >> bit & 1:
            difference, start = difference ^ pivot[0], start ^ pivot[1]
    return start


RECORD_MAGIC = b"DQR1"
RECORD_VERSION = 2  # with a salt, as frames; without one, in what is older: 1
FLAG_DELETED = 1  # of topic and setting records
NO_ID = bytes(16)

FRONT = struct.Struct("<4sII")  # magic, CRC of the meta part behind it, CRC of all behind it
REST = struct.Struct("<QIIqIqqq16sIIIBBB9x")
VOUCH = struct.Struct("<I28sq")  # header bytes 8–47: CRC of all, what the entry repeats, queue offset
VOUCH_AT = 8
RECORD_BYTES = FRONT.size + REST.size
META_BYTES_MAX = (1 << 24) - 1

ENTRY = struct.Struct("<QIIqI")  # position, length, tag hash, due, flags | delivery start << 8
ENTRY_ROWS = struct.Struct("<QIIqI4x")
RAW_ENTRIES = struct.Struct("<28s4x")
ENTRY_CRC = struct.Struct("<I")
ENTRY_BYTES = ENTRY.size + ENTRY_CRC.size
ENTRY_AT = 12  # where an entry's fields stand in a record
STORED_MS = struct.Struct("<q")
STORED_MS_AT = 48  # where the store time stands in a record
MESSAGE_ID_AT = 64


class RecordKind(IntEnum):
    """The content of a log record: a message, or a change of progress, of a topic or of a setting."""

    MESSAGE = 1
    PROGRESS = 2
    TOPIC = 3
    SETTING = 4


class Record(NamedTuple):
    """A record's valid meta part; `record_crc` still has to be compared with the delivery bytes."""

    record_crc: int
    meta_crc: int
    position: int
    size: int
    tag_hash: int
    due_ms: int
    packed: int
    offset: int
    stored_ms: int
    born_ms: int
    message_id: bytes
    incarnation: int
    queue_id: int
    key_bytes: int
    kind: int
    version: int
    topic_bytes: int
    meta: bytes  # the whole meta part, header included

    @property
    def end(self) -> int:
        """The log position after the record."""
        return self.position + self.size

    @property
    def meta_bytes(self) -> int:
        """The index at which the delivery bytes start."""
        return self.packed >> 8

    def delivery_is(self, delivery: bytes) -> bool:
        """Return whether these are the record's delivery bytes."""
        return bool(google_crc32c.extend(self.meta_crc, delivery) == self.record_crc)

    @property
    def flags(self) -> int:
        return self.packed & 255

    @property
    def topic(self) -> str:
        return self.meta[RECORD_BYTES : RECORD_BYTES + self.topic_bytes].decode()

    @property
    def key(self) -> bytes:
        start = RECORD_BYTES + self.topic_bytes
        return self.meta[start : start + self.key_bytes]

    @property
    def system(self) -> dict[str, str]:
        """The record's internal properties."""
        return decode_system(self.meta[RECORD_BYTES + self.topic_bytes + self.key_bytes :])


def pack_record(
    kind: int,
    position: int,
    stored_ms: int,
    *,
    topic: bytes = b"",
    incarnation: int = 0,
    queue_id: int = 0,
    offset: int = 0,
    key: bytes = b"",
    system: bytes = b"",
    delivery: bytes = b"",
    message_id: bytes = NO_ID,
    born_ms: int = 0,
    due_ms: int = 0,
    tag_hash: int = 0,
    flags: int = 0,
    salt: int = 0,
) -> bytes:
    """Encode one record. Raises struct.error if a number does not fit."""
    tail = topic + key + system
    meta_bytes = RECORD_BYTES + len(tail)
    rest = REST.pack(
        position,
        meta_bytes + len(delivery),
        tag_hash,
        due_ms,
        meta_bytes << 8 | flags,
        offset,
        stored_ms,
        born_ms,
        message_id,
        incarnation,
        queue_id,
        len(key),
        kind,
        version_of(salt),
        len(topic),
    )
    meta = rest + tail
    meta_crc = google_crc32c.extend(salt, meta)
    front = FRONT.pack(RECORD_MAGIC, meta_crc, google_crc32c.extend(meta_crc, delivery))
    return b"%b%b%b" % (front, meta, delivery)


def unpack_record(data: Any, at: int, position: int, salt: int = 0, end: int | None = None) -> Record | None:
    """Decode the record at index `at` of `data` (bytes or mmap) and log position `position`; None if not
    valid.

    Only the meta part is checked. If its own CRC or the magic is wrong, the CRC of the whole record may still
    confirm it. No byte of `data` from `end` on is touched.
    """
    record = record_of_any_version(data, at, position, salt, end)
    return record if record is not None and record.version == version_of(salt) else None


def record_of_any_version(
    data: Any, at: int, position: int, salt: int, end: int | None = None
) -> Record | None:
    """Decode a record like `unpack_record`, but accept any version."""
    end = len(data) if end is None else end
    if at < 0 or at + RECORD_BYTES > end:
        return None
    fields = REST.unpack_from(data, at + FRONT.size)
    meta_bytes = fields[4] >> 8
    if fields[0] != position or not RECORD_BYTES <= meta_bytes <= fields[1]:
        return None
    if meta_bytes < RECORD_BYTES + fields[14] + fields[11]:
        return None
    if at + meta_bytes > end:
        return None
    meta = bytes(data[at : at + meta_bytes])
    magic, stored_crc, record_crc = FRONT.unpack_from(meta)
    meta_crc = google_crc32c.extend(salt, meta[FRONT.size :])
    if magic != RECORD_MAGIC or meta_crc != stored_crc:
        if at + fields[1] > end:
            return None
        covered = bytes(data[at + FRONT.size : at + fields[1]])
        if google_crc32c.extend(salt, covered) != record_crc:
            return None
    return Record._make((record_crc, meta_crc, *fields, meta))


def pack_entry(record: Record) -> bytes:
    """Encode the consume-queue entry of a record."""
    fields = record.meta[ENTRY_AT : ENTRY_AT + ENTRY.size]
    return fields + ENTRY_CRC.pack(google_crc32c.value(fields))


def is_valid_entry(entry: bytes) -> bool:
    """Return whether an entry is complete and its CRC is right."""
    return len(entry) == ENTRY_BYTES and ENTRY_CRC.unpack_from(entry, ENTRY.size)[0] == google_crc32c.value(
        entry[: ENTRY.size]
    )


def _gap_entry() -> bytes:
    fields = ENTRY.pack(0, 0, 0, 0, 0)
    return fields + ENTRY_CRC.pack(google_crc32c.value(fields))


GAP_ENTRY = _gap_entry()


def encode_system(system: dict[str, str] | None) -> bytes:
    """Encode system properties; b"" for none."""
    if not system:
        return b""
    if len(system) == 1:
        ((name, value),) = system.items()
        data = value.encode()
        if len(data) < len(_SIZES):
            return _head_of(name) + _SIZES[len(data)] + data
    return encode_properties({name.encode(): value.encode() for name, value in system.items()})


@lru_cache(64)  # there are fewer names
def _head_of(name: str) -> bytes:
    """Return the bytes that precede the value's length in an encoding with this property alone."""
    return encode_properties({name.encode(): b""})[:-1]


def system_finder(name: str) -> Callable[[bytes], bytes]:
    """Return a function that reads the value (UTF-8) of one system property from encoded properties.

    The function returns b"" for a missing property and raises DamagedError. It decodes nothing if the
    property is the only one, so that it is cheap for many records.
    """
    head = _head_of(name)
    start = len(head)

    def find(data: bytes) -> bytes:
        if data.startswith(head):
            size, at = data[start], start + 1
            if size > 127:
                size, at = size & 127 | data[at] << 7, at + 1
            if size < 1 << 14 and at + size == len(data):
                return data[at:]
        return decode_system(data).get(name, "").encode()

    return find


def decode_system(data: bytes) -> dict[str, str]:
    """Decode the system properties of a record. Raises DamagedError if their bytes are invalid."""
    if not data:
        return {}
    properties = decode(b"\x5b" + data).properties
    try:
        return {name.decode(): value.decode() for name, value in properties.items()}
    except UnicodeDecodeError as error:
        raise DamagedError(f"system properties are not UTF-8: {error}") from error
