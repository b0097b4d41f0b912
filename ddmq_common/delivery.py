"""Delivery bytes: the consumer's compact-protocol Message, encoded once by the producer proxy.

What is stored is fields 1 key, 2 value, 3 tag, 5 properties of the consumer service's Message, in that
order, without the stop byte. Thrift lets fields come in any order, so at delivery the offset (field 4)
and, for our own clients, fields 100 and up are appended with long-form headers, then the stop byte
(`encode_tail`). A pull over compact protocol so joins stored slices and builds nothing. Absent fields are
left out: an empty key or tag counts as absent, the value is always there, an empty map is left out.

Compact protocol: a field header is (id delta << 4 | type), or type byte then zigzag id in the long
form; binary type 8, i64 type 6, map type 11; lengths are varints. Source: thrift-compact-protocol.md
of Apache Thrift. Everything here takes and gives bytes; UTF-8 is checked by whoever took them in.

Whoever decides by a tag, a key or a few properties, once a message, reads these parts without decoding the
rest: `key_of`, `value_of`, `tag_of`, `properties_of`. Absent fields are b"". All raise DamagedError when the
bytes are not what `encode` writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ddmq_common.errors import DamagedError

STOP = b"\x00"
_SHORT = 1 << 14  # lengths below have their varint in a table
_VARINTS = tuple(bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(_SHORT))


def varint(number: int) -> bytes:
    """Encode a number as unsigned LEB128, as the compact protocol encodes lengths."""
    if number < 1 << 14:
        return _VARINTS[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Encode a signed 64-bit number as the compact protocol encodes i16, i32 and i64."""
    return varint((number << 1) ^ (number >> 63) if number < 0 else number << 1)


class Content(NamedTuple):
    """The message as the application sent it. `key` and `tag` are empty if absent."""

    key: bytes
    value: bytes
    tag: bytes
    properties: Mapping[bytes, bytes]


def encode_properties(properties: Mapping[bytes, bytes]) -> bytes:
    """Encode a compact map<string,string> without its field header; b"" for an empty map."""
    if not properties:
        return b""
    try:
        chunks = [_VARINTS[len(properties)], b"\x88"]
        for name, value in properties.items():
            chunks += (_VARINTS[len(name)], name, _VARINTS[len(value)], value)
    except IndexError:  # a length past the table
        chunks = [varint(len(properties)), b"\x88"]
        for name, value in properties.items():
            chunks += (varint(len(name)), name, varint(len(value)), value)
    return b"".join(chunks)


def encode(key: bytes, value: bytes, tag: bytes, properties: Mapping[bytes, bytes] | None) -> bytes:
    """Encode the delivery bytes of one message."""
    if key and not tag and not properties and len(value) < _SHORT and len(key) < _SHORT:
        return b"\x18%b%b\x18%b%b" % (_VARINTS[len(key)], key, _VARINTS[len(value)], value)
    head = b"\x18%b%b\x18" % (varint(len(key)), key) if key else b"\x28"
    end = b"\x18%b%b" % (varint(len(tag)), tag) if tag else b""
    if properties:
        end += (b"\x2b" if tag else b"\x3b") + encode_properties(properties)
    return b"%b%b%b%b" % (head, varint(len(value)), value, end)


def encode_keyless(value: bytes, tag: bytes, properties: bytes) -> bytes:
    """Encode a message without a key, as `encode` does.

    `properties`: non-empty, from `encode_properties`.
    """
    if tag:
        return b"\x28%b%b\x18%b%b\x2b%b" % (varint(len(value)), value, varint(len(tag)), tag, properties)
    return b"\x28%b%b\x3b%b" % (varint(len(value)), value, properties)


def encode_tail(offset: int) -> bytes:
    """Encode field 4 and the stop byte that turn delivery bytes into a Message for an old client."""
    return b"\x06\x08%b\x00" % zigzag(offset)


def decode(delivery: bytes) -> Content:
    """Decode delivery bytes. Raises DamagedError for bytes that `encode` did not write."""
    try:
        return _decode(memoryview(delivery))
    except (IndexError, ValueError) as error:
        raise DamagedError(f"delivery bytes of {len(delivery)} bytes do not parse: {error}") from error


def key_and_tags(delivery: bytes | memoryview) -> tuple[bytes, bytes]:
    """Return the key and the tag; both are empty if the bytes cannot be decoded."""
    try:
        content = decode(bytes(delivery))
    except DamagedError:
        return b"", b""
    return content.key, content.tag


def _decode(view: memoryview) -> Content:
    key = tag = value = b""
    properties: dict[bytes, bytes] = {}
    at, field = 0, 0
    while at < len(view):
        header = view[at]
        field += header >> 4
        if field == 5 and header & 15 == 11:
            properties, at = _decode_map(view, at + 1)
            continue
        if header & 15 != 8 or field not in (1, 2, 3):
            raise ValueError(f"field header 0x{header:02x} at byte {at}")
        text, at = _decode_bytes(view, at + 1)
        if field == 1:
            key = text
        elif field == 2:
            value = text
        else:
            tag = text
    return Content(key, value, tag, properties)


def _decode_map(view: memoryview, at: int) -> tuple[dict[bytes, bytes], int]:
    count, at = _read_length(view, at)
    if view[at] != 0x88:
        raise ValueError(f"map of type 0x{view[at]:02x} at byte {at}")
    at += 1
    properties: dict[bytes, bytes] = {}
    for _ in range(count):
        name, at = _decode_bytes(view, at)
        properties[name], at = _decode_bytes(view, at)
    return properties, at


def _decode_bytes(view: memoryview, at: int) -> tuple[bytes, int]:
    length, at = _read_length(view, at)
    if at + length > len(view):
        raise ValueError(f"length {length} at byte {at} passes the end")
    return bytes(view[at : at + length]), at + length


_KEY, _VALUE_FIRST, _TAG = 0x18, 0x28, 0x18
_MAP_AFTER_TAG, _MAP_AFTER_VALUE = 0x2B, 0x3B


def key_of(delivery: bytes) -> bytes:
    """Return the message key from delivery bytes. Raises DamagedError."""
    try:
        if delivery[0] != _KEY:
            return b""
        size, at = _read_length(delivery, 1)
        return delivery[at : at + size]
    except IndexError as error:
        raise _damaged_error(delivery) from error


def value_of(delivery: bytes) -> bytes:
    """Return the message body from delivery bytes. Raises DamagedError."""
    try:
        start, end = _value_range(delivery)
        return delivery[start:end]
    except IndexError as error:
        raise _damaged_error(delivery) from error


def tag_of(delivery: bytes) -> bytes:
    """Return the message tag from delivery bytes. Raises DamagedError."""
    try:
        at = _value_range(delivery)[1]
        if at >= len(delivery) or delivery[at] != _TAG:
            return b""
        size, at = _read_length(delivery, at + 1)
        return delivery[at : at + size]
    except IndexError as error:
        raise _damaged_error(delivery) from error


def properties_of(delivery: bytes, names: Collection[bytes]) -> dict[bytes, bytes]:
    """Return the properties with these names from delivery bytes. Raises DamagedError."""
    try:
        at = _value_range(delivery)[1]
        if at < len(delivery) and delivery[at] == _TAG:
            size, at = _read_length(delivery, at + 1)
            at += size
        if at >= len(delivery):
            return {}
        if delivery[at] not in (_MAP_AFTER_TAG, _MAP_AFTER_VALUE):
            raise _damaged_error(delivery)
        return _select_properties(delivery, at + 1, names)
    except IndexError as error:
        raise _damaged_error(delivery) from error


def _select_properties(delivery: bytes, at: int, names: Collection[bytes]) -> dict[bytes, bytes]:
    properties: dict[bytes, bytes] = {}
    count, at = _read_length(delivery, at)
    at += 1  # the types of names and values
    for _ in range(count):
        size = delivery[at]  # nearly always one byte of length
        at += 1
        if size > 127:
            size, at = _read_length(delivery, at - 1)
        name = delivery[at : at + size]
        at += size
        size = delivery[at]
        at += 1
        if size > 127:
            size, at = _read_length(delivery, at - 1)
        if name in names:
            properties[name] = delivery[at : at + size]
            if len(properties) == len(names):
                break
        at += size
    return properties


def _value_range(delivery: bytes) -> tuple[int, int]:
    """Return the start and end index of the body."""
    at = 0
    if delivery[0] == _KEY:
        size, at = _read_length(delivery, 1)
        at += size
    elif delivery[0] != _VALUE_FIRST:
        raise _damaged_error(delivery)
    size, at = _read_length(delivery, at + 1)
    return at, at + size


def _read_length(delivery: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode a varint at index `at`; return it and the index behind it."""
    byte = delivery[at]
    if byte < 128:
        return byte, at + 1
    number, shift = byte & 127, 7
    while shift < 64:
        at += 1
        byte = delivery[at]
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at + 1
        shift += 7
    raise _damaged_error(delivery)


def _damaged_error(delivery: bytes | memoryview) -> DamagedError:
    return DamagedError(f"delivery bytes of {len(delivery)} bytes do not parse")
