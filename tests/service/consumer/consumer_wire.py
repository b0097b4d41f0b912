"""The consumer contract as an independent client knows it: Apache Thrift's own library and structs
written down here from the wire page. No code of ours on the client's side."""

from __future__ import annotations

import socket
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolBase
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

PROTOCOLS: dict[str, Any] = {"compact": TCompactProtocol, "binary": TBinaryProtocol}
BOOL, I32, I64, STRING, STRUCT, LIST, MAP = (
    TType.BOOL, TType.I32, TType.I64, TType.STRING, TType.STRUCT, TType.LIST, TType.MAP,
)  # fmt: skip
TEXTS = (STRING, "UTF8", STRING, "UTF8", False)
OFFSETS = (I64, None, False)
QIDS = (STRING, "UTF8", I64, None, False)


class Struct:
    """Any struct: `spec` is field id → (type, name, type arguments); absent fields are None."""

    spec: dict[int, tuple[int, str, Any]] = {}
    thrift_spec: tuple[Any, ...] = ()

    def __init_subclass__(cls) -> None:
        fields: list[Any] = [None] * (max(cls.spec, default=0) + 1)
        for number, (kind, name, args) in cls.spec.items():
            fields[number] = (number, kind, name, args, None)
        cls.thrift_spec = tuple(fields)

    def __init__(self, **fields: Any) -> None:
        for _, name, _ in self.spec.values():
            setattr(self, name, fields.pop(name, None))
        assert not fields, f"no such fields: {fields}"

    def write(self, protocol: TProtocolBase) -> None:
        protocol.writeStruct(self, self.thrift_spec)

    def read(self, protocol: TProtocolBase) -> None:
        protocol.readStruct(self, self.thrift_spec)

    def validate(self) -> None:
        """Asked for by the library."""

    def given(self) -> dict[str, Any]:
        """The fields that were on the wire."""
        return {name: value for name, value in vars(self).items() if value is not None}


def struct(cls: type[Struct]) -> list[Any]:
    return [cls, cls.thrift_spec]


class Context(Struct):
    spec = {
        1: (STRING, "groupId", "UTF8"),
        2: (STRING, "topic", "UTF8"),
        3: (STRING, "qid", "UTF8"),
    }


class Message(Struct):
    spec = {
        1: (STRING, "key", "UTF8"),
        2: (STRING, "value", "BINARY"),
        3: (STRING, "tag", "UTF8"),
        4: (I64, "offset", None),
        5: (MAP, "properties", TEXTS),
        100: (STRING, "messageId", "UTF8"),
        101: (I64, "leaseId", None),
        102: (I32, "attempt", None),
        103: (I64, "bornMs", None),
        104: (I64, "storedMs", None),
        105: (I64, "nextOffset", None),
    }


_NEXT: list[Any] = [None, None]


class ConsumeResult(Struct):
    spec = {
        1: (STRUCT, "context", struct(Context)),
        3: (LIST, "successOffsets", OFFSETS),
        4: (LIST, "failOffsets", OFFSETS),
        10: (STRUCT, "nextResult", _NEXT),
        100: (LIST, "successLeases", OFFSETS),
        101: (LIST, "failLeases", OFFSETS),
        102: (LIST, "failDelaysMs", OFFSETS),
        103: (LIST, "extendLeases", OFFSETS),
    }


_NEXT[:] = struct(ConsumeResult)


class PullRequest(Struct):
    spec = {
        1: (STRING, "groupId", "UTF8"),
        2: (STRING, "topic", "UTF8"),
        10: (I32, "maxBatchSize", None),
        11: (I32, "maxLingerTime", None),
        50: (STRUCT, "result", struct(ConsumeResult)),
        60: (STRING, "version", "UTF8"),
        100: (STRING, "clientId", "UTF8"),
        101: (STRING, "filterType", "UTF8"),
        102: (STRING, "filter", "UTF8"),
    }


class PullResponse(Struct):
    spec = {
        1: (STRUCT, "context", struct(Context)),
        2: (LIST, "messages", (STRUCT, struct(Message), False)),
    }


class ConsumeStatsRequest(Struct):
    spec = {
        1: (STRING, "group", "UTF8"),
        2: (STRING, "topic", "UTF8"),
        3: (STRING, "version", "UTF8"),
    }


class ConsumeStats(Struct):
    spec = {
        1: (STRING, "group", "UTF8"),
        2: (STRING, "topic", "UTF8"),
        3: (MAP, "consumeOffsets", QIDS),
        4: (MAP, "produceOffsets", QIDS),
    }


class PullException(Struct):
    spec = {1: (I32, "code", None), 2: (STRING, "message", "UTF8")}


_ERROR = (STRUCT, "error", struct(PullException))


class PullArgs(Struct):
    spec = {1: (STRUCT, "request", struct(PullRequest))}


class PullResult(Struct):
    spec = {0: (STRUCT, "success", struct(PullResponse)), 1: _ERROR}


class SubmitArgs(Struct):
    spec = {1: (STRUCT, "result", struct(ConsumeResult))}


class SubmitResult(Struct):
    spec = {0: (BOOL, "success", None), 1: _ERROR}


class StatsArgs(Struct):
    spec = {1: (STRUCT, "request", struct(ConsumeStatsRequest))}


class StatsResult(Struct):
    spec = {0: (LIST, "success", (STRUCT, struct(ConsumeStats), False)), 1: _ERROR}


class Empty(Struct):
    spec = {}


METHODS: dict[str, tuple[type[Struct], type[Struct]]] = {
    "pull": (PullArgs, PullResult),
    "submit": (SubmitArgs, SubmitResult),
    "getConsumeStats": (StatsArgs, StatsResult),
    "fetch": (Empty, Empty),
    "ack": (Empty, Empty),
}


class Client:
    """One connection."""

    def __init__(self, port: int, protocol: str = "compact", timeout_ms: int = 30_000) -> None:
        self._socket = TSocket("127.0.0.1", port)
        self._socket.setTimeout(timeout_ms)
        self._transport = TFramedTransport(self._socket)
        self._protocol = PROTOCOLS[protocol](self._transport)
        self._transport.open()
        self.sequence = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: Any) -> None:
        self._transport.close()

    def call(self, method: str, **args: Any) -> Struct:
        """The result struct; raises TApplicationException."""
        self.sequence += 1
        protocol = self._protocol
        protocol.writeMessageBegin(method, TMessageType.CALL, self.sequence)
        METHODS[method][0](**args).write(protocol)
        protocol.writeMessageEnd()
        self._transport.flush()
        name, kind, sequence = protocol.readMessageBegin()
        assert (name, sequence) == (method, self.sequence)
        if kind == TMessageType.EXCEPTION:
            error = TApplicationException()
            error.read(protocol)
            protocol.readMessageEnd()
            raise error
        result = METHODS[method][1]()
        result.read(protocol)
        protocol.readMessageEnd()
        return result

    def pull(self, **request: Any) -> Any:
        return self.call("pull", request=PullRequest(**request)).success  # type: ignore[attr-defined]

    def submit(self, result: ConsumeResult) -> Any:
        return self.call("submit", result=result).success  # type: ignore[attr-defined]


def exchange(port: int, frame: bytes) -> bytes:
    """Send one recorded frame on a connection of its own; the whole answer with its length."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(frame)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + int.from_bytes(answer[:4], "big"):
            chunk = connection.recv(1 << 16)
            assert chunk, "the connection was closed without an answer"
            answer += chunk
        return answer
