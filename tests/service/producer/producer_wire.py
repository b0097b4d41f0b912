"""The producer contract as an independent client knows it: Apache Thrift's own library and structs
written down here from the wire page. No code of ours on the client's side."""

from __future__ import annotations

from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolBase
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport

PROTOCOLS: dict[str, Any] = {"compact": TCompactProtocol, "binary": TBinaryProtocol}
I32, I64, STRING, STRUCT, LIST, MAP = (
    TType.I32, TType.I64, TType.STRING, TType.STRUCT, TType.LIST, TType.MAP,
)  # fmt: skip
_PROPERTIES = (STRING, "UTF8", STRING, "UTF8", False)


class Struct:
    """Any struct: `spec` is field id → (type, name, type arguments); absent fields are None."""

    spec: dict[int, tuple[int, str, Any]] = {}
    thrift_spec: tuple[Any, ...] = ()

    def __init_subclass__(cls) -> None:
        fields: list[Any] = [None] * (max(cls.spec) + 1)
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


class Message(Struct):
    spec = {
        1: (STRING, "topic", "UTF8"),
        2: (STRING, "key", "UTF8"),
        3: (STRING, "value", "UTF8"),
        4: (I64, "hashId", None),
        5: (STRING, "tags", "UTF8"),
        6: (I32, "partitionId", None),
        7: (STRING, "body", "BINARY"),
        8: (STRING, "version", "UTF8"),
        9: (MAP, "properties", _PROPERTIES),
        100: (STRING, "clientId", "UTF8"),
        101: (STRING, "producerGroup", "UTF8"),
    }


class Result(Struct):
    spec = {
        1: (I32, "code", None),
        2: (STRING, "msg", "UTF8"),
        3: (STRING, "key", "UTF8"),
        100: (STRING, "messageId", "UTF8"),
        101: (I32, "queueId", None),
        102: (I64, "offset", None),
        103: (I32, "durability", None),
        104: (STRING, "delayId", "UTF8"),
    }


class DelayMessage(Struct):
    spec = {
        1: (STRING, "topic", "UTF8"),
        2: (STRING, "uniqDelayMsgId", "UTF8"),
        3: (STRING, "body", "BINARY"),
        4: (STRING, "tags", "UTF8"),
        5: (I32, "action", None),
        6: (I64, "timestamp", None),
        7: (I32, "dmsgtype", None),
        8: (I64, "interval", None),
        9: (I64, "expire", None),
        10: (I64, "times", None),
        11: (STRING, "uuid", "UTF8"),
        13: (STRING, "version", "UTF8"),
        14: (MAP, "properties", _PROPERTIES),
    }


class DelayResult(Struct):
    spec = {
        1: (I32, "code", None),
        2: (STRING, "msg", "UTF8"),
        3: (STRING, "uniqDelayMsgId", "UTF8"),
        100: (I32, "outcome", None),
        101: (I64, "firedAtMs", None),
    }


def _of(kind: type[Struct]) -> list[Any]:
    return [kind, kind.thrift_spec]


_MESSAGES = (STRUCT, _of(Message), False)
_TIMED = {2: (I64, "timeout", None)}
ARGUMENTS: dict[str, dict[int, tuple[int, str, Any]]] = {
    "sendSync": {1: (STRUCT, "message", _of(Message)), **_TIMED},
    "sendAsync": {1: (STRUCT, "message", _of(Message))},
    "sendBatchSync": {1: (LIST, "messages", _MESSAGES)},
    "sendDelaySync": {1: (STRUCT, "delayMessage", _of(DelayMessage)), **_TIMED},
    "sendBatch": {1: (LIST, "messages", _MESSAGES), **_TIMED},
    "sendOneway": {1: (STRUCT, "message", _of(Message))},
}
_RESULTS: dict[str, tuple[int, Any]] = {
    "sendDelaySync": (STRUCT, _of(DelayResult)),
    "sendBatch": (LIST, (STRUCT, _of(Result), False)),
}


def _struct(fields: dict[int, tuple[int, str, Any]]) -> type[Struct]:
    return type("Call", (Struct,), {"spec": fields})


class Client:
    """One connection, one request at a time, as all old clients."""

    def __init__(self, port: int, protocol: str = "compact") -> None:
        self._socket = TSocket("127.0.0.1", port)
        self._socket.setTimeout(30_000)
        self._transport = TFramedTransport(self._socket)
        self._protocol = PROTOCOLS[protocol](self._transport)
        self._transport.open()
        self._sequence = 0

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, **args: Any) -> Any:
        """The method's result. Raises TApplicationException."""
        self._sequence += 1
        protocol = self._protocol
        oneway = method == "sendOneway"
        kind = TMessageType.ONEWAY if oneway else TMessageType.CALL
        protocol.writeMessageBegin(method, kind, self._sequence)
        _struct(ARGUMENTS[method])(**args).write(protocol)
        protocol.writeMessageEnd()
        self._transport.flush()
        return None if oneway else self._answer(method)

    def _answer(self, method: str) -> Any:
        protocol = self._protocol
        name, kind, sequence = protocol.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            raised = TApplicationException()
            raised.read(protocol)
            protocol.readMessageEnd()
            raise raised
        assert (name, sequence) == (method, self._sequence)
        type_, args = _RESULTS.get(method, (STRUCT, _of(Result)))
        result = _struct({0: (type_, "success", args)})()
        result.read(protocol)
        protocol.readMessageEnd()
        return result.success

    def send(self, timeout: int = 5_000, **fields: Any) -> Result:
        given = {"topic": "orders", "key": "k", "body": b"body", "partitionId": -2, **fields}
        result: Result = self.call("sendSync", message=Message(**given), timeout=timeout)
        return result
