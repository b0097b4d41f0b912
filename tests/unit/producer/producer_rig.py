"""What the producer proxy's unit tests stand on: a clock to move, calls that keep their answer, and a
memory backend whose appends the test settles itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from thrift.protocol import fastbinary

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, Durability, NewRecord, TopicInfo
from ddmq_client.idl import producer
from ddmq_common.clock import ManualClock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, ErrorKind, Wire
from ddmq_rpc.codec import methods, structs
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.played_memory import PlayedMemory
from tests.support.constants import build_options

S = structs(producer)
_METHODS = methods(producer, "ProducerService")
_DECODE = (fastbinary.decode_compact, fastbinary.decode_binary)


class SentRecords(NamedTuple):
    """One append that the backend was asked for."""

    records: list[NewRecord]
    deadline: float
    completion: Completion[list[AppendResult]]

    def answer(self, *statuses: AppendStatus, error: Exception | None = None) -> None:
        """One status for all records, or one each."""
        states = list(statuses or (AppendStatus.STORED,))
        if len(states) == 1:
            states *= len(self.records)
        results = [
            AppendResult(
                status,
                100 + index if status is AppendStatus.STORED else -1,
                Durability.DURABLE,
                None if status is AppendStatus.STORED else error,
            )
            for index, status in enumerate(states)
        ]
        self.completion.succeed(results)


class ScriptedBackend(PlayedMemory):
    """Topics and settings as the memory engine; appends wait for the test."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.sent: list[SentRecords] = []
        self.creations: list[tuple[TopicInfo, Completion[TopicInfo]]] | None = None  # a list: held

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        completion: Completion[list[AppendResult]] = Completion() if into is None else into
        self.sent.append(SentRecords(list(records), deadline, completion))
        return completion

    def put_topic(
        self,
        info: TopicInfo,
        deadline: float,
        into: Completion[TopicInfo] | None = None,
        topics_max: int | None = None,
    ) -> Completion[TopicInfo]:
        if self.creations is None:
            return super().put_topic(info, deadline, into, topics_max)
        completion: Completion[TopicInfo] = Completion() if into is None else into
        self.creations.append((info, completion))
        return completion


class Args:
    """Arguments as the RPC layer gives them."""

    def __init__(self, **fields: Any) -> None:
        self.timeout = 0
        self.__dict__.update(fields)


class FakeCall(Call):
    """Keeps its answer; a second one is an error, as in the RPC layer."""

    def __init__(self, args: Args, received_at: float, frame_bytes: int, wire: Wire, method: str) -> None:
        self.args = args
        self.received_at = received_at
        self.frame_bytes = frame_bytes
        self.wire = wire
        self.peer = "127.0.0.1:1"
        self.caller = None
        self.on_abandoned = None
        self.method = method
        self.answers: list[Any] = []

    @property
    def open(self) -> bool:
        return not self.answers

    def reply(self, value: Any) -> None:
        self._keep(value)

    def reply_encoded(self, result: bytes) -> None:
        self._keep(_decoded(self.method, self.wire, result) if result else None)

    def throw(self, exception: Any) -> None:
        self._keep(exception)

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        self._keep((kind, text))

    def _keep(self, answer: Any) -> None:
        assert not self.answers, f"answered twice: {self.answers} and {answer}"
        self.answers.append(answer)

    @property
    def answer(self) -> Any:
        assert self.answers, "not answered yet"
        return self.answers[0]


def _decoded(method: str, wire: Wire, result: bytes) -> Any:
    from ddmq_rpc.codec import Codec

    answer = Codec(1 << 20, 1 << 16, 1.0).decode(wire, result, 0, _METHODS[method].result)
    answer.success.msg = answer.success.msg.decode()
    return answer.success


class FakeTimer:
    """Sweeps only when the test says so."""

    def __init__(self) -> None:
        self.sweep: Callable[[], object] | None = None

    def every(self, seconds: float, sweep: Callable[[], object]) -> None:
        self.sweep = sweep

    def stop(self) -> None:
        self.sweep = None


class ProducerRig:
    """One producer service with everything around it in the test's hands."""

    def __init__(self, topics: Sequence[TopicInfo] = (TopicInfo("orders", 0, 4),), **config: Any) -> None:
        self.clock = ManualClock()
        self.backend = ScriptedBackend(self.clock)
        self.metrics = Registry()
        self.timer = FakeTimer()
        for info in topics:
            self.backend.put_topic(info, self.clock.monotonic() + 10).wait(10)
        self.proxy = ProducerService(
            self.backend,
            build_options(ProducerConfig, **config),
            self.metrics,
            self.clock,
            Random(7),
            timer=self.timer,
        )
        self.calls: list[FakeCall] = []
        self.handlers = self.proxy.service().handlers

    def call(
        self, method: str, *, frame_bytes: int = 200, wire: Wire = Wire.COMPACT, **args: Any
    ) -> FakeCall:
        call = FakeCall(Args(**args), self.clock.monotonic(), frame_bytes, wire, method)
        self.calls.append(call)
        self.handlers[method](call)
        return call

    def send(self, timeout: int = 500, **fields: Any) -> FakeCall:
        return self.call("sendSync", message=message(**fields), timeout=timeout)

    def code(self, **fields: Any) -> int:
        """The code of a send that is rejected at once."""
        return int(self.send(**fields).answer.code)

    def rejected(self, reason: str) -> float:
        return self.metrics.cell(catalogue.SEND_REFUSED, reason).value

    def counted(self, topic: str, code: int) -> float:
        return self.metrics.cell(catalogue.SENDS, topic, str(code)).value

    def advance(self, seconds: float) -> None:
        """Move time and let the sweep run as the hub would."""
        self.clock.advance(seconds)
        if self.timer.sweep is not None:
            self.timer.sweep()


def message(**fields: Any) -> Any:
    """A legal wire Message, changed by `fields`."""
    field_values: dict[str, Any] = {
        "topic": b"orders",
        "key": b"k",
        "tags": b"t",
        "body": b"body",
        "partitionId": -1,
        "hashId": 0,
    }
    field_values.update(fields)
    return S.Message(**field_values)


def delay_message(**fields: Any) -> Any:
    """A legal wire DelayMessage (an add of type 2), changed by `fields`."""
    field_values: dict[str, Any] = {
        "topic": b"orders",
        "tags": b"t",
        "body": b"body",
        "action": 1,
        "timestamp": 1_700_000_060,
        "dmsgtype": 2,
        "uuid": b"a4207970-e5e1-11f1-a4e0-02fc00000001",
    }
    field_values.update(fields)
    return S.DelayMessage(**field_values)
