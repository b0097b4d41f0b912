"""Single parts of delivery bytes, read without decoding the rest (ddmq_common.delivery has the layout).

For whoever decides by a tag, a key or a few properties, once a message. Absent fields are b"". All raise
DamagedError when the bytes are not what `delivery.encode` writes.
"""

from __future__ import annotations

from collections.abc import Collection

from ddmq_common.errors import DamagedError

_KEY, _VALUE_FIRST, _TAG = 0x18, 0x28, 0x18
_MAP_AFTER_TAG, _MAP_AFTER_VALUE = 0x2B, 0x3B


def key_of(delivery: bytes) -> bytes:
    """The message key."""
    try:
        if delivery[0] != _KEY:
            return b""
        size, at = _length(delivery, 1)
        return delivery[at : at + size]
    except IndexError as error:
        raise _damaged(delivery) from error


def value_of(delivery: bytes) -> bytes:
    """The body."""
    try:
        start, end = _value(delivery)
        return delivery[start:end]
    except IndexError as error:
        raise _damaged(delivery) from error


def tag_of(delivery: bytes) -> bytes:
    """The message tag."""
    try:
        at = _value(delivery)[1]
        if at >= len(delivery) or delivery[at] != _TAG:
            return b""
        size, at = _length(delivery, at + 1)
        return delivery[at : at + size]
    except IndexError as error:
        raise _damaged(delivery) from error


def properties_of(delivery: bytes, wanted: Collection[bytes]) -> dict[bytes, bytes]:
    """Return the values of the properties whose name is `wanted`."""
    try:
        at = _value(delivery)[1]
        if at < len(delivery) and delivery[at] == _TAG:
            size, at = _length(delivery, at + 1)
            at += size
        if at >= len(delivery):
            return {}
        if delivery[at] not in (_MAP_AFTER_TAG, _MAP_AFTER_VALUE):
            raise _damaged(delivery)
        return _chosen(delivery, at + 1, wanted)
    except IndexError as error:
        raise _damaged(delivery) from error


def _chosen(delivery: bytes, at: int, wanted: Collection[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    count, at = _length(delivery, at)
    at += 1  # the types of names and values
    for _ in range(count):
        size = delivery[at]  # nearly always one byte of length
        at += 1
        if size > 127:
            size, at = _length(delivery, at - 1)
        name = delivery[at : at + size]
        at += size
        size = delivery[at]
        at += 1
        if size > 127:
            size, at = _length(delivery, at - 1)
        if name in wanted:
            found[name] = delivery[at : at + size]
            if len(found) == len(wanted):
                break
        at += size
    return found


def _value(delivery: bytes) -> tuple[int, int]:
    """Return where the body starts and ends."""
    at = 0
    if delivery[0] == _KEY:
        size, at = _length(delivery, 1)
        at += size
    elif delivery[0] != _VALUE_FIRST:
        raise _damaged(delivery)
    size, at = _length(delivery, at + 1)
    return at, at + size


def _length(delivery: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends."""
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
    raise _damaged(delivery)


def _damaged(delivery: bytes) -> DamagedError:
    return DamagedError(f"delivery bytes of {len(delivery)} bytes do not parse")
