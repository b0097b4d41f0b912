"""A consumer proxy whose acknowledgements may carry messages, and a client that sends such."""

from __future__ import annotations

from random import Random
from typing import Any

from backend.records import StoredRecord
from ddmq_common.delivery import decode
from ddmq_common.names import DELAY_GROUP, DELAY_TOPIC
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.replies import ReplySender
from proxy_producer.config import ProducerConfig
from proxy_producer.service import ProducerService
from tests.service.consumer.consumer_rig import FIRST, IDL, METHODS, ConsumerRig, FakeCall
from tests.support.waits import until
from tests.unit.producer.producer_rig import FakeTimer

STORED, STORED_BEFORE, LEASE_OVER, FINISHED = 1, 2, 3, 4


def reply_message(topic: str = "OUT", body: bytes = b"out", **fields: Any) -> Any:
    return IDL.ReplyMessage(topic=topic.encode(), body=body, **fields)


class ReplyRig(ConsumerRig):
    """Group G reads T; what is answered goes to OUT."""

    def __init__(self, count: int = 3, settings: SubscriptionDefaults = FIRST, **producer: Any) -> None:
        self.sends_config = ProducerConfig(**producer)
        self._starts = 0
        super().__init__()
        self.topic("OUT", 2)
        self.ready(count, settings)

    def random(self) -> Random:
        """Another one's at each start: lease ids are no other process's."""
        self._starts += 1
        return Random(self._starts)

    def replies(self) -> ReplySender:
        self.timer = FakeTimer()
        self.sends = ProducerService(
            self.backend, self.sends_config, self.metrics, self.clock, Random(3), timer=self.timer
        )
        return self.sends.replies

    def have(self, count: int = 1) -> tuple[list[int], int]:
        """Offsets and lease of what a client of ours is given."""
        call = self.pull(count=count, clientId=b"c")
        leases = {message.leaseId for message in call.result.messages}
        return call.offsets, leases.pop()

    def replying(self, offset: int, lease: int, *messages: Any, queue: int = 0, **fields: Any) -> FakeCall:
        context = IDL.Context(groupId=b"G", topic=b"T", qid=f"R_default_a_{queue}".encode())
        arguments = {"context": context, "messages": list(messages or (reply_message(),)), **fields}
        request = IDL.ReplyRequest(offset=offset, lease=lease, clientId=b"c", **arguments)
        call = FakeCall("reply", METHODS["reply"].args[0](request=request))
        call.received_at = self.clock.monotonic()
        self.handlers["reply"](call)
        return call

    def reply(self, offset: int, lease: int, *messages: Any, **fields: Any) -> Any:
        """The answer."""
        call = self.replying(offset, lease, *messages, **fields)
        until(lambda: call.answered, "the acknowledgement is answered")
        return call.result

    def outcome_of(self, call: FakeCall) -> tuple[int, int | None]:
        until(lambda: call.answered, "the acknowledgement is answered")
        return call.result.code, call.result.outcome

    def stored(self, topic: str = "OUT") -> list[StoredRecord]:
        """All that is in a topic."""
        info = self.backend.topic(topic)
        records = []
        for queue in [] if info is None else info.refs():
            batch = self.wait(self.backend.read(queue, 0, 1_000, 1 << 24))
            records += [batch.record(index) for index in range(len(batch.offsets))]
        return records

    def bodies(self, topic: str = "OUT") -> list[bytes]:
        return sorted(decode(record.delivery).value for record in self.stored(topic))

    def finished(self, queue: int = 0) -> list[int]:
        """Offsets of T that are finished, as the engine knows it."""
        view = self.progress(queue=queue)
        done = list(range(view.committed or 0))
        return done + [offset for start, end in view.finished for offset in range(start, end)]

    def delay_service(self) -> None:
        """There is one, which does nothing."""
        self.topic(DELAY_TOPIC, 4)
        from backend.port import Join, MembershipListener

        class Nobody(MembershipListener):
            def assigned(self, assignment: Any) -> None: ...
            def revoked(self, queues: Any, deadline: float) -> None: ...
            def lost(self, queues: Any) -> None: ...

        self.backend.join(Join(DELAY_GROUP, DELAY_TOPIC), Nobody())
        self.settle()
