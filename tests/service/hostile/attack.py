"""What hostile clients send, in both protocols, and how to read the answers; nothing of ours in it.

`encoded` writes any tree of tests/interop/anyframe.py as compact or binary; `Answer` is what came back.
"""

from __future__ import annotations

import socket
from struct import pack
from typing import Any, NamedTuple

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from tests.interop import anyframe
from tests.interop.anyframe import (
    BINARY,
    BYTE,
    CALL,
    DOUBLE,
    FALSE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRUCT,
    TRUE,
    Frame,
    Struct,
)
from tests.interop.apache_client import ANSWERS

PATIENCE_S = 30.0
WIRES = ("compact", "binary")
_BINARY_TYPES = {
    TRUE: 2, FALSE: 2, BYTE: 3, DOUBLE: 4, I16: 6, I32: 8, I64: 10, BINARY: 11, STRUCT: 12, MAP: 13,
    SET: 14, LIST: 15,
}  # fmt: skip


def prefixed(body: bytes) -> bytes:
    """A frame around these bytes."""
    return len(body).to_bytes(4, "big") + body


def header(wire: str, method: bytes, kind: int = CALL, sequence: int = 1) -> bytes:
    """The message header, without the struct behind it."""
    if wire == "compact":
        return bytes((0x82, kind << 5 | 1)) + anyframe.varint(sequence) + anyframe.binary(method)
    return b"\x80\x01\x00" + bytes([kind]) + pack(">i", len(method)) + method + pack(">i", sequence)


def encoded(wire: str, method: bytes, args: Struct, kind: int = CALL, sequence: int = 1) -> bytes:
    """A whole frame."""
    if wire == "compact":
        return anyframe.write(Frame(kind, sequence, method, args))
    body = bytearray(header(wire, method, kind, sequence))
    _binary_value(body, STRUCT, args)
    return prefixed(bytes(body))


def _binary_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in (TRUE, FALSE, BYTE):
        out.append(int(value))
    elif kind == DOUBLE:
        out += value
    elif kind in (I16, I32, I64):
        out += pack({I16: ">h", I32: ">i", I64: ">q"}[kind], value)
    elif kind == BINARY:
        out += pack(">i", len(value)) + value
    elif kind == STRUCT:
        for number, (field, each) in value.items():
            out += bytes([_BINARY_TYPES[field]]) + pack(">h", number)
            _binary_value(out, field, each)
        out.append(0)
    elif kind == MAP:
        keys, kinds, pairs = value
        out += bytes([_BINARY_TYPES.get(keys, 11), _BINARY_TYPES.get(kinds, 11)]) + pack(">i", len(pairs))
        for key, each in pairs:
            _binary_value(out, keys, key)
            _binary_value(out, kinds, each)
    else:
        out += bytes([_BINARY_TYPES[value[0]]]) + pack(">i", len(value[1]))
        for each in value[1]:
            _binary_value(out, value[0], each)


class Answer(NamedTuple):
    """One answer. `fault`: type of the application exception, None for a result."""

    method: str
    sequence: int
    error_kind: int | None
    text: str
    result: Any  # of the method; None where it threw
    thrown: Any  # PullException


def parsed(frame: bytes) -> Answer:
    """Read by Apache's library, in the protocol that the first byte tells."""
    buffer = TMemoryBuffer(frame[4:])
    protocol = TCompactProtocol(buffer) if frame[4] == 0x82 else TBinaryProtocol(buffer)
    method, kind, sequence = protocol.readMessageBegin()
    if kind == TMessageType.EXCEPTION:
        raised = TApplicationException()
        raised.read(protocol)
        return Answer(method, sequence, raised.type, raised.message, None, None)
    result: Any = ANSWERS[method]()
    result.read(protocol)
    return Answer(method, sequence, None, "", result.success, result.error)


class Attacker:
    """A raw connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)

    def send(self, data: bytes) -> None:
        """Write; the server may have closed already."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def read(self) -> Answer:
        """The next answer. Fails when there is none."""
        return parsed(self.read_frame())

    def read_frame(self) -> bytes:
        """The bytes of the next answer. Fails when there is none."""
        head = self._exactly(4)
        return head + self._exactly(int.from_bytes(head, "big"))

    def call(self, frame: bytes) -> Answer:
        """Send and read; the answer must be in the protocol of the request."""
        self.send(frame)
        return self.read()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            assert more, "the connection was closed instead of answered"
            data += more
        return data

    def closed(self) -> bool:
        """Waits until the server ends the connection; False when it answers instead."""
        try:
            return self.socket.recv(1) == b""
        except (ConnectionResetError, BrokenPipeError):
            return True

    def close(self) -> None:
        self.socket.close()

    def vanish(self) -> None:
        """Reset instead of a close."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Attacker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- usual requests as trees


def text(value: str | bytes) -> tuple[int, bytes]:
    return BINARY, value.encode() if isinstance(value, str) else value


def message(**fields: Any) -> Struct:
    """A producer Message; keyword fields go by name and replace the usual ones."""
    numbers = {"topic": 1, "key": 2, "value": 3, "hashId": 4, "tags": 5, "partitionId": 6, "body": 7}
    numbers |= {"version": 8, "properties": 9}
    struct: Struct = {1: text("hostile"), 7: text("body")}
    for name, value in fields.items():
        struct[numbers[name]] = value
    return dict(sorted(struct.items()))


def send_sync(fields: Struct | None = None) -> Struct:
    return {1: (STRUCT, message() if fields is None else fields), 2: (I64, 10_000)}


def batch(messages: list[Struct]) -> Struct:
    return {1: (LIST, (STRUCT, messages))}


def properties(*pairs: tuple[bytes, bytes]) -> tuple[int, Any]:
    return MAP, (BINARY, BINARY, list(pairs))


def pull_request(**fields: Any) -> Struct:
    """Arguments of a pull that waits 20 ms."""
    numbers = {"groupId": 1, "topic": 2, "maxBatchSize": 10, "maxLingerTime": 11, "result": 50}
    request: Struct = {1: text("hostile")}
    for name, value in fields.items():
        request[numbers[name]] = value
    return {1: (STRUCT, dict(sorted(request.items())))}


def reply_request(**fields: Any) -> Struct:
    """Arguments of an acknowledgement that carries two messages, under a lease that nobody has."""
    numbers = {"context": 1, "offset": 2, "lease": 3, "messages": 4, "clientId": 5, "timeout": 6}
    context: Struct = {1: text("hostile"), 2: text("quiet"), 3: text("R_default_a_0")}
    struct: Struct = {1: (STRUCT, context), 2: (I64, 0), 3: (I64, 7), 4: (LIST, (STRUCT, [message()] * 2))}
    for name, value in fields.items():
        struct[numbers[name]] = value
    return {1: (STRUCT, dict(sorted(struct.items())))}


def consume_result(**fields: Any) -> Struct:
    numbers = {"context": 1, "successOffsets": 3, "failOffsets": 4, "nextResult": 10}
    context: Struct = {1: text("hostile"), 2: text("quiet"), 3: text("R_default_a_0")}
    struct: Struct = {1: (STRUCT, context), 3: (LIST, (I64, [1, 2])), 4: (LIST, (I64, []))}
    for name, value in fields.items():
        struct[numbers[name]] = value
    return dict(sorted(struct.items()))
