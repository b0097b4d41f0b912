"""Compact-protocol frames without an IDL: any message into a tree and back, byte for byte.

A struct is {field id: (type, value)} in wire order; a list or set is (element type, values); a map is
(key type, value type, pairs). `shape` reduces a value to what must not differ between two servers: field
ids and types, all the way down. Written from the protocol's description alone; nothing of ours here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
CALL, REPLY, EXCEPTION, ONEWAY = 1, 2, 3, 4
Struct = dict[int, tuple[int, Any]]


class Frame(NamedTuple):
    """One message."""

    kind: int
    sequence: int
    method: bytes
    fields: Struct


def read(frame: bytes) -> Frame:
    """A frame with its length prefix. Raises AssertionError or IndexError when it is none."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4, "length prefix"
    reader = _Reader(frame, 4)
    assert reader.byte() == 0x82, "compact protocol"
    kind = reader.byte()
    assert kind & 31 == 1, "version"
    read_frame = Frame(kind >> 5, reader.varint(), reader.binary(), reader.struct())
    assert reader.at == len(frame), "bytes after the message"
    return read_frame


def write(message: Frame) -> bytes:
    """The frame of a message."""
    body = bytearray((0x82, message.kind << 5 | 1))
    body += varint(message.sequence) + binary(message.method)
    _struct(body, message.fields)
    return len(body).to_bytes(4, "big") + body


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def binary(self) -> bytes:
        length = self.varint()
        self.at += length
        assert self.at <= len(self.data), "string ends inside the frame"
        return self.data[self.at - length : self.at]

    def struct(self) -> Struct:
        fields: Struct = {}
        last = 0
        while head := self.byte():
            last = last + (head >> 4) if head >> 4 else self.zigzag()
            fields[last] = (head & 15, self.value(head & 15))
        return fields

    def value(self, kind: int, element: bool = False) -> Any:
        if kind in (TRUE, FALSE):
            return self.byte() == TRUE if element else kind == TRUE
        if kind == BYTE:
            return self.byte()
        if kind in (I16, I32, I64):
            return self.zigzag()
        if kind == BINARY:
            return self.binary()
        if kind in (LIST, SET):
            return self.list()
        if kind == MAP:
            return self.map()
        assert kind == STRUCT, f"type {kind}"
        return self.struct()

    def list(self) -> tuple[int, list[Any]]:
        head = self.byte()
        count = self.varint() if head >> 4 == 15 else head >> 4
        return head & 15, [self.value(head & 15, True) for _ in range(count)]

    def map(self) -> tuple[int, int, Sequence[tuple[Any, Any]]]:
        count = self.varint()
        kinds = self.byte() if count else 0
        keys, values = kinds >> 4, kinds & 15
        return keys, values, [(self.value(keys, True), self.value(values, True)) for _ in range(count)]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return varint(value << 1 ^ value >> 63)


def binary(value: bytes) -> bytes:
    return varint(len(value)) + value


def _struct(out: bytearray, fields: Struct) -> None:
    last = 0
    for number, (kind, value) in fields.items():
        if 0 < number - last < 16:
            out.append(number - last << 4 | kind)
        else:
            out.append(kind)
            out += _zigzag(number)
        last = number
        if kind not in (TRUE, FALSE):
            _value(out, kind, value)
    out.append(0)


def _value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    elif kind == BYTE:
        out.append(value)
    elif kind in (I16, I32, I64):
        out += _zigzag(value)
    elif kind == BINARY:
        out += binary(value)
    elif kind in (LIST, SET):
        element, values = value
        out += bytes([len(values) << 4 | element]) if len(values) < 15 else bytes([0xF0 | element])
        out += b"" if len(values) < 15 else varint(len(values))
        for each in values:
            _value(out, element, each)
    elif kind == MAP:
        keys, kinds, pairs = value
        out += varint(len(pairs)) + (bytes([keys << 4 | kinds]) if pairs else b"")
        for key, each in pairs:
            _value(out, keys, key)
            _value(out, kinds, each)
    else:
        _struct(out, value)


def shape(kind: int, value: Any) -> Any:
    """Types and field ids of a value. Lists have the shapes of their elements, each once."""
    if kind == STRUCT:
        return {number: shape(*field) for number, field in value.items()}
    if kind in (LIST, SET):
        shapes: list[Any] = []
        for each in value[1]:
            if (element := shape(value[0], each)) not in shapes:
                shapes.append(element)
        return kind, value[0], shapes
    if kind == MAP:
        return kind, *value[:2]
    return TRUE if kind == FALSE else kind


def renamed(value: Any, names: dict[bytes, bytes]) -> Any:
    """A tree with every string that stands in `names` replaced."""
    if isinstance(value, bytes):
        return names.get(value, value)
    if isinstance(value, dict):
        return {number: (kind, renamed(each, names)) for number, (kind, each) in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    if isinstance(value, tuple):
        return tuple(renamed(each, names) for each in value)
    return value
