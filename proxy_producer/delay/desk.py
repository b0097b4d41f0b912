"""sendDelaySync: a delay request becomes a record of the delay service's inner topic.

The usual one, an add of type 2 by an old client, takes the short way: the checks in line, the order and the
id made of what came, one append. Everything else takes the careful way, with the same checks in wire order.
Code 0 says that the order is durable. What it comes to is decided by the delay service: callers with a
field of ours that cancel or change something are told, within their timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from zlib import crc32

from backend.port import Backend
from backend.records import NewRecord
from ddmq_client.idl.codes import FROM_CHRONOS, DelayAction, DelayType
from ddmq_common.clock import Clock
from ddmq_common.delay_command import COMMAND_PROPERTY, ONCE, DelayCommand, encode_command
from ddmq_common.delay_id import EXPIRE_AFTER_S, is_uuid
from ddmq_common.delivery import encode, encode_properties, keyless
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_checks import TIMESTAMP_S_MIN, DelayRules, echoed_id
from proxy_producer.core.delay_commands import (
    ANY_QUEUE,
    Placed,
    add_command,
    changing_command,
    schedule_command,
    uuid_of,
)
from proxy_producer.core.refusal import Refusal
from proxy_producer.core.validation import CHRONOS, content_fault
from proxy_producer.counts import Counts
from proxy_producer.delay.full import FullTopics
from proxy_producer.delay.intake import DelayIntake
from proxy_producer.delay.outcomes import OutcomeDesk
from proxy_producer.delay.pending import DelayShared, PendingDelay
from proxy_producer.delay.plain import PlainDelays
from proxy_producer.delay.presence import Presence
from proxy_producer.delay.tail import Later
from proxy_producer.delay.wire import Asked, asked_of, with_due
from proxy_producer.flow import Flow
from proxy_producer.intake import Intake
from proxy_producer.internal_topic import InternalTopic
from proxy_producer.messages import NO_DELAY_SERVICE, marks
from proxy_producer.topics import Topic, TopicTable

OUTCOME_QUEUES = 64
_ADD, _ONCE = int(DelayAction.ADD), int(DelayType.DELAY)
_CHRONOS = {CHRONOS: FROM_CHRONOS.encode()}
_CHRONOS_ONLY = encode_properties(_CHRONOS)
_NOTHING = encode(b"", b"", b"", None)
_ANYWHERE = (ANY_QUEUE, 0, True)


class DelayDesk:
    """Of one producer proxy. `later`: calls back after so many seconds, on the hub."""

    def __init__(
        self,
        backend: Backend,
        config: ProducerConfig,
        clock: Clock,
        counts: Counts,
        random: Random,
        flow: Flow,
        topics: TopicTable,
        intake: Intake,
        new_id: Callable[[], bytes],
        later: Later,
    ) -> None:
        timeout_s, delay = config.timeout_ms_max / 1_000, config.delay
        self.presence = Presence(backend, clock, delay.absent_ms / 1_000)
        self.inner = InternalTopic(backend, DELAY_TOPIC, 1, clock, timeout_s)
        heard = InternalTopic(backend, OUTCOME_TOPIC, OUTCOME_QUEUES, clock, timeout_s)
        self.outcomes = OutcomeDesk(backend, clock, random, counts, heard, delay.waiters_max, later)
        self.full = FullTopics(backend)
        self.shared = DelayShared(flow, self.inner, self.outcomes)
        self.plain = PlainDelays(backend, delay, self.shared, self.presence, self.full, random, clock.wall_ms)
        self._rules = DelayRules(delay.delay_s_max, delay.occurrences_max, delay.shards, delay.period_ms_min)
        self._intake = DelayIntake(intake, topics, self.presence, self.full)
        self._delay_s_max = delay.delay_s_max
        self._counts = counts
        self._random = random
        self._flow = flow
        self._known = topics.known
        self._new_id = new_id
        self._wall_ms = clock.wall_ms
        self._config = config

    def reconfigure(self, config: ProducerConfig) -> None:
        """Other bounds from now on."""
        self._config = config

    def close(self) -> None:
        """Outcomes are heard no more."""
        self.inner.close()
        self.full.close()
        self.outcomes.close()
        self.plain.close()

    # One function of more than forty lines: it is the hot path, and each call costs it 0.1 µs.
    def send(self, call: Call, deadline: float) -> None:
        """sendDelaySync."""
        message = call.args.delayMessage
        topic = self._known.get(message.topic)
        uuid = message.uuid or b""
        second = message.timestamp or 0
        body = message.body
        flow, config = self._flow, self._config
        if (
            topic is None
            or message.action != _ADD
            or message.dmsgtype != _ONCE
            or message.properties
            or message.times
            or message.clientId is not None
            or message.dueMs is not None
            or message.delayMs is not None
            or topic.gates
            or topic.name in self.full.names
            or not (topic.takes_delayed and topic.writable and self.inner.ready)
            or flow.draining
            or flow.inflight >= config.inflight_requests_max
            or flow.inflight_bytes + call.frame_bytes > config.inflight_bytes_max
            or not is_uuid(uuid)
        ):
            self._careful(call, message, deadline)
            return
        born_ms = self._wall_ms()
        tags = message.tags or b""
        if (
            not TIMESTAMP_S_MIN <= second <= born_ms // 1_000 + self._delay_s_max
            or content_fault(b"", tags, body, None, topic.limits) is not None
            or self.presence.absent()
        ):
            self._careful(call, message, deadline)
            return
        shard, expire, name = crc32(uuid) % self.inner.queues, second + EXPIRE_AFTER_S, uuid.decode()
        order = DelayCommand("add", name, topic.name, ONCE, second * 1_000, second, expire, 0, 0, shard)
        delivery = keyless(body, tags, _CHRONOS_ONLY)
        record = NewRecord(
            DELAY_TOPIC, shard, self._new_id(), born_ms, delivery, b"", b"", 0, 0,
            {COMMAND_PROPERTY: encode_command(order)},
        )  # fmt: skip
        delay_id = b"%010d-2-%d-0-0-0-%d-%b" % (second, expire, shard, uuid)
        pending = PendingDelay(self.shared, call, record, deadline, len(body), False, topic, delay_id)
        flow.inflight += 1
        flow.inflight_bytes += call.frame_bytes
        pending.send()
        if not pending.done:
            flow.watch(pending)

    def _careful(self, call: Call, message: Any, deadline: float) -> None:
        """Anything legal, and whatever is wrong with what is not."""
        self._decide(call, asked_of(message, self._next_ms()), deadline)

    def _next_ms(self) -> int:
        """The end of this millisecond: a delay that counts from it is never early."""
        return self._wall_ms() + 1

    def _decide(self, call: Call, asked: Asked, deadline: float) -> None:
        now_ms = self._next_ms()
        rules = self._rules._replace(shards=max(self._rules.shards, self.inner.queues))
        topic, fault = self._intake.look(asked, rules, now_ms)
        if fault is NO_DELAY_SERVICE and self.presence.look_again(
            lambda: self._decide(call, asked, deadline)
        ):
            return
        fault = fault or self._flow.bound_fault(call.frame_bytes)
        if fault is not None:
            self._refuse(call, topic, asked, fault)
            return
        placed = self._placed(with_due(asked, now_ms), now_ms)
        record = self._record(asked, now_ms)
        pending = PendingDelay(
            self.shared, call, record, deadline, len(asked.body), asked.ours, topic, placed.delay_id,
            placed.command, waits=asked.ours and not (asked.adds and asked.fresh),
        )  # fmt: skip
        self._flow.inflight += 1
        self._flow.inflight_bytes += call.frame_bytes
        pending.advance(_ANYWHERE)

    def _placed(self, asked: Asked, now_ms: int) -> Placed:
        if not asked.adds:
            latest_s = now_ms // 1_000 + self._delay_s_max
            return changing_command(asked.request, asked.topic_name, latest_s, self.inner.queues)
        uuid = asked.request.uuid.decode() or uuid_of(self._random.randbytes(16))
        shards = self.inner.queues
        if asked.schedule is None:
            return add_command(asked.request, asked.topic_name, uuid, shards)
        due_ms = asked.request.due_ms or now_ms
        return schedule_command(asked.schedule, due_ms, asked.topic_name, uuid, shards, asked.place)

    def _record(self, asked: Asked, now_ms: int) -> NewRecord:
        """What is to be delivered, as a record whose order is still missing; nothing for a change."""
        delivery, flags = _NOTHING, 0
        if asked.adds:
            properties = dict(asked.properties or {})
            if properties:
                flags = marks(properties)[1]
            properties.update(_CHRONOS)
            delivery = encode(asked.key, asked.body, asked.tags, properties)
        return NewRecord(DELAY_TOPIC, -1, self._new_id(), now_ms, delivery, b"", b"", flags)

    def _refuse(self, call: Call, topic: Topic | None, asked: Asked, fault: Refusal) -> None:
        if asked.adds:
            self._counts.refused(None if topic is None else topic.name, fault)
        else:
            self._counts.change_refused(fault)
        call.reply(replies.delay_refused(fault, echoed_id(fault.code, asked.request.delay_id)))
