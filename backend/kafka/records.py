"""Messages as Kafka stores them. Any Kafka tool can read them, and ddmq reads those of other programs.

Key and body are the record's key and value. Everything else is in headers: the system's own begin with
`ddmq-`, all others are properties of the application, under their own names. The table is in
docs/formats-kafka.md. A record from Kafka is never rejected: one that does not parse as a record of ddmq is
read as a record of another program.
"""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from backend.records import FLAG_PRESSURE, NewRecord, ShortRecord, StoredRecord, tag_hash
from ddmq_common.delivery import decode, value_of
from ddmq_common.delivery import encode as encode_delivery
from ddmq_common.errors import CallerError, DamagedError

Headers = list[tuple[str, bytes]]
ReceivedHeaders = list[tuple[str, bytes | None]]  # other programs write headers without a value
Encoded = tuple[bytes | None, bytes, Headers]
NO_SYSTEM: Mapping[str, str] = {}
OWN_PREFIX = "ddmq-"
ID, BORN, FLAGS, DUE = "ddmq-id", "ddmq-born", "ddmq-flags", "ddmq-due"
FLAGS_MAX = 255
TAG, RAW = "ddmq-tag", "ddmq-raw"
PROPERTY, CODED, SYSTEM = "ddmq-p-", "ddmq-b-", "ddmq-s-"
BASE64 = ";base64"  # ends the name of a property whose value is base64 of bytes that are no text
KEY_PROPERTY = b"ddmq-key"  # its value is `base64` where the key is that of bytes that are no text
_PRESSURE = b"isPressureTraffic"
RECORD_EXTRA = 512  # that a record without long headers is larger in Kafka than its delivery bytes, at most
BATCH_EXTRA = 61 + 40  # a batch's own bytes, and lengths, times and counts of the one record in it
GROWTH_MAX = 5  # headers are at most so many times as long as properties: one without a value, `ddmq-b-AA==`


class ProducerRecord(NamedTuple):
    """One record to pass to a producer. `topic` is its name in Kafka."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers | None = None


def encode(record: NewRecord) -> Encoded:
    """Encode key, value and headers. Raises CallerError for a system property that cannot be a header."""
    headers: Headers = [(ID, record.message_id), (BORN, b"%d" % record.born_ms)]
    if record.tags:
        headers.append((TAG, record.tags))
    if record.flags:
        headers.append((FLAGS, b"%d" % record.flags))
    if record.due_ms:
        headers.append((DUE, b"%d" % record.due_ms))
    if record.system:
        headers += _system_headers(record.system)
    delivery = record.delivery
    try:
        value = value_of(delivery)
        if encode_delivery(record.key, value, record.tags, None) == delivery:
            return record.key or None, value, headers
        return _with_properties(record, headers)
    except (DamagedError, ValueError):  # these bytes are kept as they are
        headers.append((RAW, delivery))
        return record.key or None, b"", headers


def _with_properties(record: NewRecord, headers: Headers) -> Encoded:
    content = decode(record.delivery)
    if content.tag != record.tags or encode_delivery(*content) != record.delivery:
        raise ValueError("delivery bytes that would not come back as they are")
    property_headers = [(_header_name(name), value) for name, value in content.properties.items()]
    for _, value in property_headers:
        value.decode()  # what is no text comes back as something else
    return content.key or None, content.value, headers + property_headers


def _header_name(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        return CODED + urlsafe_b64encode(name).decode()
    return PROPERTY + text if text.startswith(OWN_PREFIX) else text


def size_in_kafka(record: NewRecord, bytes_max: int) -> int:
    """Return an upper bound of the bytes that `max.message.bytes` counts for this record alone.

    Headers are encoded only if they may decide whether `bytes_max` is exceeded. Raises what `encode` raises.
    """
    size = len(record.delivery) + RECORD_EXTRA
    most = size + sum(4 * len(text) for item in (record.system or {}).items() for text in item)
    if size > bytes_max or most * GROWTH_MAX <= bytes_max:
        return size
    key, value, headers = encode(record)
    lengths = [length for name, text in headers for length in (len(name.encode()), len(text))]
    varints = sum(1 if length < 1 << 6 else 2 if length < 1 << 13 else 4 for length in lengths)
    return max(size, BATCH_EXTRA + len(key or b"") + len(value) + sum(lengths) + varints)


def _system_headers(system: Mapping[str, str]) -> Headers:
    for name in system:
        if "\0" in name:
            raise CallerError(f"system property {name!r} has a NUL in its name; Kafka allows none there")
    return [(SYSTEM + name, value.encode()) for name, value in system.items()]


class KafkaRecord:
    """One message read from Kafka: the values for the columns of a batch, and its remaining fields."""

    __slots__ = (
        "born_ms", "delivery", "due_ms", "flags", "message_id", "offset", "stored_ms", "system", "tag_hash",
    )  # fmt: skip

    def __init__(self, message: Any, topic_id: bytes) -> None:
        """Decode a confluent_kafka.Message that has no error."""
        self.offset: int = message.offset()
        self.stored_ms: int = max(message.timestamp()[1], 0)
        self.born_ms = self.due_ms = self.flags = 0
        self.message_id = b""
        self.system = NO_SYSTEM
        self._read_headers(message, _headers_of(message))
        self.born_ms = self.born_ms or self.stored_ms
        if self.due_ms < 0:
            self.due_ms = self.stored_ms - self.due_ms
        if not self.message_id:
            self.message_id = foreign_id(topic_id, message.partition(), self.offset)

    def _read_headers(self, message: Any, headers: ReceivedHeaders) -> None:
        tag, raw = b"", None
        properties: dict[bytes, bytes] = {}
        for name, value in headers:
            if name == ID:
                self.message_id = value if value is not None and len(value) == 16 else b""
            elif name == BORN:
                self.born_ms = max(_to_number(value), 0)
            elif not name.startswith(OWN_PREFIX):
                _put_property(properties, name, value)
            elif name == TAG:
                tag = _to_text(value)
            elif name == FLAGS:
                flags = _to_number(value)
                self.flags = flags if 0 <= flags <= FLAGS_MAX else 0
            elif name == DUE:
                self.due_ms = _to_number(value)
            elif name == RAW:
                raw = value
            else:
                self._read_prefixed(properties, name, value)
        self.tag_hash = tag_hash(tag)
        if raw is not None and _is_valid_delivery(raw):
            self.delivery = raw
            return
        if raw is not None:  # no client could read the answer that it is in
            _put_property(properties, RAW, raw)
        if properties and not self.message_id and properties.get(_PRESSURE) == b"true":
            self.flags |= FLAG_PRESSURE
        key = message.key() or b""
        if key and not key.isascii() and not _is_text(key):
            key = b64encode(key)
            properties[KEY_PROPERTY] = b"base64"
        self.delivery = encode_delivery(key, message.value() or b"", tag, properties)

    def _read_prefixed(self, properties: dict[bytes, bytes], name: str, value: bytes | None) -> None:
        """Read a header whose name has one of our prefixes; ignore names that a later release added."""
        if name.startswith(SYSTEM):
            if not self.system:
                self.system = {}
            self.system[name[len(SYSTEM) :]] = (value or b"").decode(errors="replace")  # type: ignore[index]
        elif name.startswith(PROPERTY):
            _put_property(properties, name[len(PROPERTY) :], value)
        elif name.startswith(CODED):
            try:
                properties[urlsafe_b64decode(name[len(CODED) :])] = value or b""
            except ValueError:
                _put_property(properties, name, value)

    def to_stored_record(self, topic: str, queue_id: int) -> StoredRecord:
        """Return the complete record."""
        return StoredRecord(
            topic, queue_id, self.offset, -1, self.message_id, self.born_ms, self.stored_ms, self.flags,
            self.due_ms, self.delivery, self.system,
        )  # fmt: skip

    def to_short_record(self, name: str) -> ShortRecord:
        """Return the record in the short form, with the system property `name`."""
        value = self.system.get(name, "").encode()
        return ShortRecord(self.offset, self.message_id, self.born_ms, self.flags, value, self.delivery)


def foreign_id(topic_id: bytes, partition: int, offset: int) -> bytes:
    """Derive the message id of a message that has none; the same message always gets the same id."""
    return blake2b(b"%b/%d/%d" % (topic_id, partition, offset), digest_size=16).digest()


def _headers_of(message: Any) -> ReceivedHeaders:
    try:
        return message.headers() or []
    except UnicodeDecodeError:  # a header's name is no text: the library gives none of them then
        return []


def _put_property(properties: dict[bytes, bytes], name: str, value: bytes | None) -> None:
    if value is None:
        value = b""
    if value.isascii() or _is_text(value):
        properties[name.encode()] = value
    else:
        properties[(name + BASE64).encode()] = b64encode(value)


def _is_valid_delivery(delivery: bytes) -> bool:
    try:
        decode(delivery)
    except DamagedError:
        return False
    return True


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _to_number(value: bytes | None) -> int:
    """Decode a decimal number of at most 63 bits; 0 for anything else."""
    try:
        number = int(value or b"0")
    except ValueError:
        return 0
    return number if -(1 << 62) < number < 1 << 62 else 0


def _to_text(value: bytes | None) -> bytes:
    return value if value and _is_text(value) else b""
