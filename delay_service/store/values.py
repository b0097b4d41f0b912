"""Values of the delay store: a version byte, then the content. RocksDB keeps a checksum per block.

docs/formats-delay.md tells the bytes. Whatever does not parse is a DamagedError, never a
message; what a newer release wrote is a NewerFormatError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec

from ddmq_common.errors import DamagedError, NewerFormatError, newer_format
from delay_service.store.port import IdKind, IdState, Pending

VERSION = 1
_PREFIX = bytes((VERSION,))
_STATE = struct.Struct(">BBQQQ")
_COUNT = struct.Struct(">BQQQ")
_COUNT_1 = struct.Struct(">BQQ")  # as the first release wrote it, without bytes
_COUNT_VERSION = 2
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pending).decode
_pack_state = _STATE.pack
_KINDS = {int(kind): kind for kind in IdKind}


def encode_pending(message: Pending) -> bytes:
    """A version byte and its fields as a msgpack array."""
    return _PREFIX + _encode(message)


def decode_pending(value: bytes) -> Pending:
    """Raises DamagedError."""
    if value[:1] != _PREFIX:
        raise _foreign("pending message", value)
    try:
        return _decode(value[1:])
    except msgspec.DecodeError as error:
        raise DamagedError(f"a pending message of {len(value)} bytes does not parse: {error}") from error


def encode_all(messages: Iterable[Pending]) -> list[bytes]:
    """`encode_pending` of many, without a call for each."""
    return [_PREFIX + _encode(message) for message in messages]


def decode_all(pairs: Iterable[tuple[bytes, bytes]]) -> list[Pending]:
    """`decode_pending` of the values of many pairs."""
    try:
        return [_decode(value[1:]) if value[0] == VERSION else decode_pending(value) for _, value in pairs]
    except (msgspec.DecodeError, IndexError) as error:
        raise DamagedError(f"a pending message does not parse: {error}") from error


def encode_state(state: IdState) -> bytes:
    """Version, kind, at, offset, forget."""
    return _pack_state(VERSION, *state)


def decode_state(value: bytes) -> IdState:
    """Raises DamagedError."""
    if value[:1] != _PREFIX:
        raise _foreign("state of an id", value)
    try:
        _, kind, at_ms, offset, forget_ms = _STATE.unpack(value)
        return IdState(_KINDS[kind], at_ms, offset, forget_ms)
    except (struct.error, KeyError) as error:
        raise DamagedError(f"the state of an id, {value.hex()}, does not parse") from error


def encode_count(pending: int, aside: int, pending_bytes: int) -> bytes:
    """Version, pending, put aside among them, bytes of what is pending."""
    return _COUNT.pack(_COUNT_VERSION, pending, aside, pending_bytes)


def decode_count(value: bytes) -> tuple[int, int, int]:
    """Raises DamagedError. The first release counted no bytes: then they are 0."""
    if value[:1] == _PREFIX and len(value) == _COUNT_1.size:
        _, pending, aside = _COUNT_1.unpack(value)
        return pending, aside, 0
    if value[:1] != bytes((_COUNT_VERSION,)) or len(value) != _COUNT.size:
        raise _foreign("count of a topic", value, _COUNT_VERSION)
    _, pending, aside, pending_bytes = _COUNT.unpack(value)
    return pending, aside, pending_bytes


def _foreign(what: str, value: bytes, version: int = VERSION) -> DamagedError | NewerFormatError:
    """Its block had the right checksum: a higher version is no damage, and must not be left out as such."""
    if value[:1] > bytes((version,)):
        return newer_format(f"a {what} in the delay store", value[0], version)
    return DamagedError(
        f"a {what} of {len(value)} bytes starts with version {value[:1].hex() or 'none'};"
        f" this program reads version {version}"
    )
