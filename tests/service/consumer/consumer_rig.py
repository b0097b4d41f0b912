"""A consumer proxy over the memory engine with a clock that is moved, and calls that remember answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Self

import gevent

from backend.completion import Completion
from backend.records import FLAG_PRESSURE, NewRecord, QueueRef, TopicInfo
from ddmq_client.idl import consumer
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, ErrorKind, Wire
from ddmq_rpc.codec import Codec, encode_result, methods, structs
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.groups.directory import Directory
from proxy_consumer.replies import ReplySender
from proxy_consumer.service import ConsumerService
from proxy_consumer.subscription.subscription import Group, Subscription
from tests.played_memory import PlayedMemory
from tests.support.rig import Rig
from tests.support.waits import until

IDL = structs(consumer)
METHODS = methods(consumer, "ConsumerService")
CODEC = Codec(1 << 24, 1 << 20, 10.0)
FIRST = SubscriptionDefaults(start="first")


class FakeCall(Call):
    """A call without a socket; `result` and `error` decode what was answered."""

    def __init__(self, method: str, args: Any, wire: Wire = Wire.COMPACT) -> None:
        self.method = method
        self.args = args
        self.wire = wire
        self.received_at = 0.0
        self.frame_bytes = 0
        self.peer = "test:1"
        self.caller = None
        self.on_abandoned = None
        self.encoded: bytes | None = None
        self.error_kind: ErrorKind | None = None
        self.abandoned = False

    @property
    def open(self) -> bool:
        return self.encoded is None and self.error_kind is None and not self.abandoned

    @property
    def answered(self) -> bool:
        return self.encoded is not None

    def reply(self, value: Any) -> None:
        self.reply_encoded(encode_result(METHODS[self.method], self.wire, success=value))

    def reply_encoded(self, result: bytes) -> None:
        assert self.encoded is None, "answered twice"
        self.encoded = bytes(result)

    def throw(self, exception: Any) -> None:
        self.reply_encoded(encode_result(METHODS[self.method], self.wire, error=exception))

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        self.error_kind = kind

    def go(self) -> None:
        """The client closes its connection."""
        self.abandoned = True
        callback, self.on_abandoned = self.on_abandoned, None
        if callback is not None:
            callback(self)

    @property
    def outcome(self) -> Any:
        assert self.encoded is not None, "not answered yet"
        return CODEC.decode(self.wire, self.encoded, 0, METHODS[self.method].result)

    @property
    def result(self) -> Any:
        assert getattr(self.outcome, "error", None) is None, self.outcome.error
        return self.outcome.success

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in self.result.messages]

    @property
    def values(self) -> list[bytes]:
        return [message.value for message in self.result.messages]

    @property
    def queue(self) -> int:
        return int(self.result.context.qid.rsplit(b"_", 1)[1])


def directory(service: ConsumerService) -> Directory:
    """The groups that a proxy has at the moment, which it shows to nobody."""
    return service._directory


class ConsumerRig(Rig):
    """One proxy, its backend and its clock."""

    def __init__(self, config: ConsumerConfig | None = None, backend: PlayedMemory | None = None) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.metrics = Registry()
        self.backend = PlayedMemory(self.clock) if backend is None else backend
        self.config = config or ConsumerConfig()
        self.service = self.start()

    def start(self) -> ConsumerService:
        """A (new) proxy process over the same backend."""
        service = ConsumerService(
            self.backend, self.config, self.metrics, self.clock, self.random(), replies=self.replies()
        )
        service.start(timer=False)
        self.service = service
        self.handlers = service.service().handlers
        return service

    def random(self) -> Random:
        """A proxy's, of which its lease ids are made."""
        return Random(7)

    def replies(self) -> ReplySender | None:
        """What sends messages that come with an acknowledgement."""
        return None

    def restart(self) -> None:
        """Kill the proxy and start another: what was only in its memory is gone."""
        for group in self.directory.groups.values():
            for subscription in group.subscriptions.values():
                subscription.membership.leave()
                subscription.retry_membership.leave()
        self.directory._stop_watching()  # type: ignore[misc]
        self.start()

    def close(self) -> None:
        self.backend.close()

    # --- backend

    def wait(self, completion: Completion[Any]) -> Any:
        until(lambda: completion.done)
        return completion.result()

    def topic(self, name: str = "T", queues: int = 1) -> TopicInfo:
        topic = self.wait(self.backend.put_topic(TopicInfo(name, 0, queues), self.deadline()))
        assert isinstance(topic, TopicInfo)
        return topic

    def ref(self, queue: int = 0, topic: str = "T") -> QueueRef:
        info = self.backend.topic(topic)
        assert info is not None
        return QueueRef(topic, info.incarnation, queue)

    def deadline(self) -> float:
        return self.clock.monotonic() + 60

    def send(
        self, count: int, queue: int = 0, topic: str = "T", size: int = 0, pressure: bool = False
    ) -> None:
        """Append `count` messages whose values are b"m0", b"m1" … padded to `size`."""
        records = [
            NewRecord(
                topic,
                queue,
                bytes(12) + number.to_bytes(4, "big"),
                self.clock.wall_ms(),
                encode(b"k%d" % number, (b"m%d" % number).ljust(size, b"."), b"tag", {b"p": b"v"}),
                key=b"k%d" % number,
                tags=b"tag",
                flags=FLAG_PRESSURE if pressure else 0,
            )
            for number in range(count)
        ]
        self.wait(self.backend.append(records, self.deadline()))

    def keyed(self, *bodies: str, queue: int = 0, topic: str = "T") -> None:
        """Append messages whose key is the first letter of their body."""
        for body in bodies:
            self.put_keyed(body[0], body, queue, topic)

    def put_keyed(self, key: str, body: str, queue: int = 0, topic: str = "T") -> None:
        delivery = encode(key.encode(), body.encode(), b"", None)
        record = NewRecord(topic, queue, bytes(16), self.clock.wall_ms(), delivery, key.encode())
        self.wait(self.backend.append([record], self.deadline()))

    def progress(self, group: str = "G", queue: int = 0, topic: str = "T") -> Any:
        return self.wait(self.backend.progress(group, [self.ref(queue, topic)]))[0]

    # --- proxy

    @property
    def directory(self) -> Directory:
        return directory(self.service)

    def group(self, name: str = "G") -> Group:
        return self.directory.groups[name.encode()]

    def subscription(self, topic: str = "T") -> Subscription:
        """That of group G."""
        return self.group().subscriptions[topic.encode()]

    def subscribe(self, group: str = "G", topic: str = "T", config: SubscriptionDefaults = FIRST) -> None:
        self.wait(self.service.subscribe(group, topic, config))

    def ready(
        self,
        count: int = 0,
        config: SubscriptionDefaults = FIRST,
        topics: Sequence[str] = ("T",),
        queues: int = 1,
    ) -> Self:
        """With these topics, group G subscribed to them, and so many messages in the first queue of each."""
        for topic in topics:
            self.topic(topic, queues)
            self.subscribe(topic=topic, config=config)
            if count:
                self.send(count, topic=topic)
        return self

    def call(self, method: str, args: Any, wire: Wire = Wire.COMPACT) -> FakeCall:
        call = FakeCall(method, args, wire)
        self.handlers[method](call)
        return call

    def start_pull(
        self,
        group: bytes = b"G",
        topic: bytes | None = b"T",
        count: int | None = None,
        linger: int | None = None,
        result: Any = None,
        wire: Wire = Wire.COMPACT,
        **extra_fields: Any,
    ) -> FakeCall:
        """Send a pull."""
        request = IDL.PullRequest(
            groupId=group,
            topic=topic,
            maxBatchSize=count,
            maxLingerTime=linger,
            result=result,
            **extra_fields,
        )
        return self.call("pull", METHODS["pull"].args[0](request=request), wire)

    def pull(self, *args: Any, **named: Any) -> FakeCall:
        """Send a pull and wait for its answer, moving the clock if it waits."""
        call = self.start_pull(*args, **named)
        self.settle(lambda: call.answered)
        while not call.answered:
            self.advance(0.02)
            self.settle(lambda: call.answered)
        return call

    def submit(self, result: Any) -> FakeCall:
        call = self.call("submit", METHODS["submit"].args[0](result=result))
        until(lambda: call.answered)
        return call

    def settle(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Let everything that is on its way arrive."""
        for _ in range(40):
            if enough():
                return
            gevent.sleep(0)

    def advance(self, seconds: float) -> None:
        """Move the clock and let the proxy look at it."""
        self.clock.advance(seconds)
        self.service.tick()
        self.settle()

    def counted(self, name: str, **labels: str) -> float:
        """The sum of a metric's cells that carry these labels."""
        expected = set(labels.items())
        return sum(
            cell.value
            for metric, cells in self.metrics.numbers()
            if metric.name == name
            for values, cell in cells.items()
            if expected <= set(zip(metric.labels, values, strict=True))
        )


def result(
    success: Sequence[int] = (),
    fail: Sequence[int] = (),
    queue: int = 0,
    group: str = "G",
    topic: str = "T",
    then: Any = None,
    **extra_fields: Any,
) -> Any:
    """A ConsumeResult as an old client sends it; `ours`: the lists of our own clients."""
    context = IDL.Context(groupId=group.encode(), topic=topic.encode(), qid=f"R_default_a_{queue}".encode())
    return IDL.ConsumeResult(
        context=context, successOffsets=list(success), failOffsets=list(fail), nextResult=then, **extra_fields
    )
