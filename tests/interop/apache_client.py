"""Both contracts as an independent client knows them: Apache's own Thrift library, and structs written
down by hand from the wire page. Nothing of ours is imported here.

A Client is one connection with one request at a time, as all old clients. Fields that are not given are
not written. Sequence ids count from 1; with `counted=False` they are all 0, as Python, PHP and C++ send.
"""

from __future__ import annotations

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
TEXT, BINARY = (STRING, "UTF8"), (STRING, "BINARY")
TEXTS = (STRING, "UTF8", STRING, "UTF8", False)
OFFSETS = (I64, None, False)
BY_QUEUE = (STRING, "UTF8", I64, None, False)
BY_TOPIC = (STRING, "UTF8", MAP, BY_QUEUE, False)
Fields = dict[int, tuple[Any, ...]]


class Struct:
    """Any struct: `fields` is id → (name, type[, type arguments]). Absent fields are None."""

    fields: Fields = {}
    thrift_spec: tuple[Any, ...] = ()

    def __init_subclass__(cls) -> None:
        spec: list[Any] = [None] * (max(cls.fields, default=0) + 1)
        for number, (name, kind, *args) in cls.fields.items():
            spec[number] = (number, kind, name, args[0] if args else None, None)
        cls.thrift_spec = tuple(spec)

    def __init__(self, **given: Any) -> None:
        for name, *_ in self.fields.values():
            setattr(self, name, given.pop(name, None))
        assert not given, f"no such fields: {given}"

    def write(self, protocol: TProtocolBase) -> None:
        protocol.writeStruct(self, self.thrift_spec)

    def read(self, protocol: TProtocolBase) -> None:
        protocol.readStruct(self, self.thrift_spec)

    def validate(self) -> None:
        """Asked for by the library."""

    def given(self) -> dict[str, Any]:
        """The fields that were on the wire."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.given()})"


def _of(kind: type[Struct]) -> list[Any]:
    return [kind, kind.thrift_spec]


def _list_of(kind: type[Struct]) -> tuple[Any, ...]:
    return (STRUCT, _of(kind), False)


# --- producer


class Message(Struct):
    fields = {
        1: ("topic", *TEXT),
        2: ("key", *TEXT),
        3: ("value", *TEXT),
        4: ("hashId", I64),
        5: ("tags", *TEXT),
        6: ("partitionId", I32),
        7: ("body", *BINARY),
        8: ("version", *TEXT),
        9: ("properties", MAP, TEXTS),
        100: ("clientId", *TEXT),
        101: ("producerGroup", *TEXT),
    }


class Result(Struct):
    fields = {
        1: ("code", I32),
        2: ("msg", *TEXT),
        3: ("key", *TEXT),
        100: ("messageId", *TEXT),
        101: ("queueId", I32),
        102: ("offset", I64),
        103: ("durability", I32),
        104: ("delayId", *TEXT),
    }


class DelayMessage(Struct):
    fields = {
        1: ("topic", *TEXT),
        2: ("uniqDelayMsgId", *TEXT),
        3: ("body", *BINARY),
        4: ("tags", *TEXT),
        5: ("action", I32),
        6: ("timestamp", I64),
        7: ("dmsgtype", I32),
        8: ("interval", I64),
        9: ("expire", I64),
        10: ("times", I64),
        11: ("uuid", *TEXT),
        13: ("version", *TEXT),
        14: ("properties", MAP, TEXTS),
    }


class DelayResult(Struct):
    fields = {
        1: ("code", I32),
        2: ("msg", *TEXT),
        3: ("uniqDelayMsgId", *TEXT),
        100: ("outcome", I32),
        101: ("firedAtMs", I64),
    }


# --- consumer


class Delivered(Struct):
    """The consumer service's Message."""

    fields = {
        1: ("key", *TEXT),
        2: ("value", *BINARY),
        3: ("tag", *TEXT),
        4: ("offset", I64),
        5: ("properties", MAP, TEXTS),
        100: ("messageId", *TEXT),
        101: ("leaseId", I64),
        102: ("attempt", I32),
        103: ("bornMs", I64),
        104: ("storedMs", I64),
        105: ("nextOffset", I64),
    }


class Context(Struct):
    fields = {1: ("groupId", *TEXT), 2: ("topic", *TEXT), 3: ("qid", *TEXT)}


_ITSELF: list[Any] = []


class ConsumeResult(Struct):
    fields = {
        1: ("context", STRUCT, _of(Context)),
        3: ("successOffsets", LIST, OFFSETS),
        4: ("failOffsets", LIST, OFFSETS),
        10: ("nextResult", STRUCT, _ITSELF),
        100: ("successLeases", LIST, OFFSETS),
        101: ("failLeases", LIST, OFFSETS),
        102: ("failDelaysMs", LIST, OFFSETS),
        103: ("extendLeases", LIST, OFFSETS),
    }


_ITSELF += _of(ConsumeResult)


class PullRequest(Struct):
    fields = {
        1: ("groupId", *TEXT),
        2: ("topic", *TEXT),
        10: ("maxBatchSize", I32),
        11: ("maxLingerTime", I32),
        50: ("result", STRUCT, _of(ConsumeResult)),
        60: ("version", *TEXT),
        100: ("clientId", *TEXT),
        101: ("filterType", *TEXT),
        102: ("filter", *TEXT),
    }


class PullResponse(Struct):
    fields = {1: ("context", STRUCT, _of(Context)), 2: ("messages", LIST, _list_of(Delivered))}


class ConsumeStatsRequest(Struct):
    fields = {1: ("group", *TEXT), 2: ("topic", *TEXT), 3: ("version", *TEXT)}


class ConsumeStats(Struct):
    fields = {
        1: ("group", *TEXT),
        2: ("topic", *TEXT),
        3: ("consumeOffsets", MAP, BY_QUEUE),
        4: ("produceOffsets", MAP, BY_QUEUE),
    }


class FetchRequest(Struct):
    fields = {
        1: ("consumerId", *TEXT),
        2: ("groupId", *TEXT),
        3: ("cluster", *TEXT),
        4: ("fetchOffset", MAP, BY_TOPIC),
        10: ("maxBatchSize", I32),
        11: ("maxLingerTime", I32),
        60: ("version", *TEXT),
    }


class QidResponse(Struct):
    fields = {
        1: ("topic", *TEXT),
        2: ("qid", *TEXT),
        3: ("nextRequestOffset", I64),
        10: ("messages", LIST, _list_of(Delivered)),
    }


class FetchResponse(Struct):
    fields = {1: ("code", I32), 10: ("results", LIST, _list_of(QidResponse)), 100: ("error", *TEXT)}


class AckResult(Struct):
    fields = {
        1: ("consumerId", *TEXT),
        2: ("groupId", *TEXT),
        3: ("cluster", *TEXT),
        4: ("offsets", MAP, BY_TOPIC),
    }


class PullException(Struct):
    fields = {1: ("code", I32), 2: ("message", *TEXT)}


class PullError(Exception):
    """The declared exception of the consumer service."""

    def __init__(self, answered: PullException) -> None:
        super().__init__(f"code {answered.code}: {answered.message}")
        self.code = answered.code
        self.text = answered.message


# --- methods

_TIMED = {2: ("timeout", I64)}
_ONE = (STRUCT, _of(Result))
ARGUMENTS: dict[str, Fields] = {
    "sendSync": {1: ("message", STRUCT, _of(Message)), **_TIMED},
    "sendAsync": {1: ("message", STRUCT, _of(Message))},
    "sendBatchSync": {1: ("messages", LIST, _list_of(Message))},
    "sendDelaySync": {1: ("delayMessage", STRUCT, _of(DelayMessage)), **_TIMED},
    "sendBatch": {1: ("messages", LIST, _list_of(Message)), **_TIMED},
    "sendOneway": {1: ("message", STRUCT, _of(Message))},
    "pull": {1: ("request", STRUCT, _of(PullRequest))},
    "submit": {1: ("result", STRUCT, _of(ConsumeResult))},
    "getConsumeStats": {1: ("request", STRUCT, _of(ConsumeStatsRequest))},
    "fetch": {1: ("request", STRUCT, _of(FetchRequest))},
    "ack": {1: ("result", STRUCT, _of(AckResult))},
}
RESULTS: dict[str, tuple[Any, ...]] = {
    "sendSync": _ONE,
    "sendAsync": _ONE,
    "sendBatchSync": _ONE,
    "sendDelaySync": (STRUCT, _of(DelayResult)),
    "sendBatch": (LIST, _list_of(Result)),
    "pull": (STRUCT, _of(PullResponse)),
    "submit": (BOOL,),
    "getConsumeStats": (LIST, _list_of(ConsumeStats)),
    "fetch": (STRUCT, _of(FetchResponse)),
    "ack": (BOOL,),
}
_THROWN = {1: ("error", STRUCT, _of(PullException))}


def _struct(fields: Fields) -> type[Struct]:
    return type("Call", (Struct,), {"fields": fields})


CALLS = {method: _struct(fields) for method, fields in ARGUMENTS.items()}
ANSWERS = {method: _struct({0: ("success", *result), **_THROWN}) for method, result in RESULTS.items()}


class Client:
    """One connection. Raises TApplicationException and PullError as they are answered."""

    def __init__(
        self, port: int, protocol: str = "compact", counted: bool = True, timeout_s: float = 30.0
    ) -> None:
        self._socket = TSocket("127.0.0.1", port)
        self._socket.setTimeout(timeout_s * 1000)
        self._transport = TFramedTransport(self._socket)
        self._protocol = PROTOCOLS[protocol](self._transport)
        self._counted = counted
        self._sequence = 0
        self._transport.open()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, **args: Any) -> Any:
        """Ask and wait for the method's result."""
        self.ask(method, **args)
        return None if method == "sendOneway" else self.answer(method)

    def ask(self, method: str, **args: Any) -> None:
        """Write a request."""
        self._sequence += self._counted
        kind = TMessageType.ONEWAY if method == "sendOneway" else TMessageType.CALL
        self._protocol.writeMessageBegin(method, kind, self._sequence)
        CALLS[method](**args).write(self._protocol)
        self._protocol.writeMessageEnd()
        self._transport.flush()

    def answer(self, method: str) -> Any:
        """Read the answer to the request before."""
        protocol = self._protocol
        name, kind, sequence = protocol.readMessageBegin()
        assert (name, sequence) == (method, self._sequence), (name, sequence)
        if kind == TMessageType.EXCEPTION:
            raised = TApplicationException()
            raised.read(protocol)
            protocol.readMessageEnd()
            raise raised
        assert kind == TMessageType.REPLY, kind
        result: Any = ANSWERS[method]()
        result.read(protocol)
        protocol.readMessageEnd()
        if result.error is not None:
            raise PullError(result.error)
        return result.success

    # --- in short

    def send(self, topic: str, body: bytes = b"body", timeout: int = 10_000, **fields: Any) -> Result:
        """sendSync."""
        message = Message(topic=topic, body=body, **{"partitionId": -2, **fields})
        result: Result = self.call("sendSync", message=message, timeout=timeout)
        return result

    def pull(self, group: str, topic: str | None = None, **fields: Any) -> PullResponse:
        """pull."""
        request = PullRequest(groupId=group, topic=topic, **fields)
        response: PullResponse = self.call("pull", request=request)
        return response

    def submit(self, result: ConsumeResult) -> bool:
        """submit."""
        return bool(self.call("submit", result=result))

    def fetch(self, consumer: str, group: str, **fields: Any) -> FetchResponse:
        """fetch."""
        request = FetchRequest(consumerId=consumer, groupId=group, cluster="R_default", **fields)
        response: FetchResponse = self.call("fetch", request=request)
        return response

    def ack(self, consumer: str, group: str, offsets: dict[str, dict[str, int]]) -> bool:
        """ack."""
        result = AckResult(consumerId=consumer, groupId=group, cluster="R_default", offsets=offsets)
        return bool(self.call("ack", result=result))

    def stats(self, group: str, topic: str | None = None) -> list[ConsumeStats]:
        """getConsumeStats."""
        found: list[ConsumeStats] = self.call(
            "getConsumeStats", request=ConsumeStatsRequest(group=group, topic=topic)
        )
        return found


def done(response: PullResponse, fail: bool = False) -> ConsumeResult:
    """The result of a whole answer: all acknowledged, or all failed."""
    offsets = [message.offset for message in response.messages]
    given: list[list[int]] = [[], offsets] if fail else [offsets, []]
    return ConsumeResult(context=response.context, successOffsets=given[0], failOffsets=given[1])


def chained(results: list[ConsumeResult]) -> ConsumeResult | None:
    """Results of several contexts as the linked list that goes into one request."""
    head: ConsumeResult | None = None
    for result in reversed(results):
        result.nextResult = head
        head = result
    return head
