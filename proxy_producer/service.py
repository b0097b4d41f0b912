"""ProducerService: Thrift in, backend append out. The wire's names end here, in intake.py and messages.py.

The life of a send: refuse when draining (20), check the content (11), find the topic (13), its delay mode
(18, 19), the bounds (15), the rate limits (15, or a short wait), choose the queue, append, answer.
Handlers never block: a PendingSend or PendingBatch carries the call until the backend settles it, and the
flow's sweep answers 12 in time when the backend does not.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import gevent

from backend.completion import Completion
from backend.port import Backend
from ddmq_client.idl import producer
from ddmq_common.clock import Clock
from ddmq_common.config.reloading import Reloaded, reloaded
from ddmq_common.levels import DEFAULT_LEVELS, Levels
from ddmq_common.metrics.registry import Registry
from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call, Service
from proxy_producer import replies
from proxy_producer.batches import PendingBatch, worst
from proxy_producer.config import LIVE_KEYS, ProducerConfig
from proxy_producer.core.message_ids import PREFIX_BYTES, message_ids
from proxy_producer.core.refusal import Refusal
from proxy_producer.core.validation import HEARTBEAT, content_fault
from proxy_producer.counts import Counts
from proxy_producer.delay.desk import DelayDesk
from proxy_producer.delay.tail import Later
from proxy_producer.flow import Flow, Ticker
from proxy_producer.intake import Intake
from proxy_producer.levels import DelayLevels
from proxy_producer.messages import marks, record_of
from proxy_producer.oneway import OnewayCall
from proxy_producer.pending import PendingSend
from proxy_producer.ticker import HubTicker
from proxy_producer.topics import Topic, TopicTable


class ProducerService:
    """One producer proxy over one backend.

    `new_id` gives 16 bytes, unique across proxies and restarts; by default 8 drawn from `random` (seed
    it from the system, as Random() does) and a counter. `ticker` drives the sweep, by default on the hub.
    `levels`: what property DELAY=n means, the same as at the level scheduler.
    """

    def __init__(
        self,
        backend: Backend,
        config: ProducerConfig,
        metrics: Registry,
        clock: Clock,
        random: Random,
        new_id: Callable[[], bytes] | None = None,
        ticker: Ticker | None = None,
        levels: Levels = DEFAULT_LEVELS,
        later: Later = gevent.spawn_later,
    ) -> None:
        self._new_id = new_id or message_ids(random.randbytes(PREFIX_BYTES))
        self._wall_ms = clock.wall_ms
        self._counts = Counts(metrics)
        self.topics = TopicTable(backend, config, clock, self._counts, random)
        heartbeat = ticker or HubTicker(config.sweep_ms / 1_000)
        self._levels = DelayLevels(backend, levels, clock, config.timeout_ms_max / 1_000)
        self.flow = Flow(backend, config, clock, self._counts, self.topics, heartbeat, self._levels)
        self._intake = Intake(config, self.topics, self.flow, self._wall_ms, self._new_id)
        self._delay = DelayDesk(
            backend, config, clock, self._counts, random, self.flow, self.topics, self._intake, self._new_id,
            later,
        )  # fmt: skip
        self._plain = self._intake.plain = self.flow.plain = self._delay.plain
        self._known = self.topics.known
        self._config = config
        self._use(config)

    def _use(self, config: ProducerConfig) -> None:
        self._cap_ms = config.timeout_ms_max
        self._inflight_max = config.inflight_requests_max
        self._inflight_bytes_max = config.inflight_bytes_max

    def reconfigure(self, fresh: ProducerConfig) -> Reloaded:
        """Other limits and rates while clients are connected; says what waits for the next start."""
        done = reloaded(self._config, fresh, LIVE_KEYS)
        self._config = done.config
        self._use(done.config)
        for part in (self.topics, self.flow, self._intake, self._delay):
            part.reconfigure(done.config)
        return done

    def service(self) -> Service:
        """What the RPC server serves."""
        handlers = {
            "sendSync": self.send_sync,
            "sendAsync": self.send_async,
            "sendBatchSync": self.send_batch_sync,
            "sendBatch": self.send_batch,
            "sendOneway": self.send_oneway,
            "sendDelaySync": self.send_delay_sync,
        }
        return Service(producer, replies.SERVICE, handlers)

    def drain(self, deadline: float) -> Completion[None]:
        """Refuse what is new (code 20), wait for what is pending, at most until `deadline` (monotonic)."""
        return self.flow.drain(deadline)

    def close(self) -> None:
        """Stop listening to the backend; call after drain."""
        self.topics.close()
        self._delay.close()
        self._levels.topic.close()
        self.flow.stop()

    # --- single sends

    def send_sync(self, call: Call) -> None:
        args = call.args
        self._send(call, args.message, self._deadline(call, args.timeout))

    def send_async(self, call: Call) -> None:
        """Two-way all the same: answered when stored, with no limit of the caller's."""
        self._send(call, call.args.message, self._deadline(call, None))

    def send_oneway(self, call: Call) -> None:
        """Ours: what is refused is counted, and nobody hears of it."""
        self._send(OnewayCall(call), call.args.message, self._deadline(call, None))

    # One function of more than forty lines: it is the hot path, and each call costs it 0.1 µs.
    def _send(self, call: Call, message: Any, deadline: float) -> None:
        flow = self.flow
        topic = self._known.get(message.topic)
        if topic is None or flow.draining:
            if message.topic == HEARTBEAT and not flow.draining:
                call.reply_encoded(replies.OK[call.wire])
                return
            topic, fault = self._intake.first_look(message.topic)
            if fault is not None:
                self._refuse(call, None, fault)
                return
        body = message.body or message.value
        key = message.key or b""
        tags = message.tags or b""
        properties = message.properties
        limits = self.topics.default_limits if topic is None else topic.limits
        fault = content_fault(key, tags, body, properties, limits)
        flags, level, chronos, order = 0, 0, False, None
        if fault is None:
            if properties:
                if self._plain.spoken:
                    properties, order = self._plain.read(message.topic, properties)
                properties, flags, level, chronos = marks(properties)
            if topic is None or level or order or not topic.plain_now:
                fault = self._intake.mode_fault(topic, message.topic, level, chronos, order)
        frame_bytes = call.frame_bytes
        if fault is None and (
            flow.inflight >= self._inflight_max
            or flow.inflight_bytes + frame_bytes > self._inflight_bytes_max
        ):
            fault = flow.bound_fault(frame_bytes)
        if fault is not None:
            self._refuse(call, topic, fault)
            return
        name = message.topic.decode() if topic is None else topic.name
        record = record_of(name, -1, self._new_id(), self._wall_ms(), key, tags, body, properties, flags)
        ours = message.clientId is not None or message.producerGroup is not None
        if chronos or order:
            place = message.partitionId, message.hashId
            asked = None if isinstance(order, Refusal) else order
            if self._plain.send(call, record, deadline, len(body), ours, topic, place, asked):
                return
        pending = PendingSend(flow, call, record, deadline, len(body), ours, topic)
        flow.inflight += 1
        flow.inflight_bytes += frame_bytes
        if topic is None or topic.gates or level:
            pending.level = level
            pending.advance((message.partitionId, message.hashId, chronos))
            return
        topic.turn = turn = topic.turn + 1
        record.queue_id = choose(message.partitionId, message.hashId, topic.queues, turn)
        pending.send()
        if not pending.done:
            flow.watch(pending)

    def _refuse(self, call: Call, topic: Topic | None, fault: Refusal) -> None:
        self._counts.refused(None if topic is None else topic.name, fault)
        call.reply(replies.refused(fault))

    def _deadline(self, call: Call, timeout_ms: int | None) -> float:
        """Absent, 0 and less: no limit of the caller's, so ours."""
        if not timeout_ms or timeout_ms < 0 or timeout_ms > self._cap_ms:
            timeout_ms = self._cap_ms
        return call.received_at + timeout_ms * 0.001

    # --- batches

    def send_batch_sync(self, call: Call) -> None:
        self._send_batch(call, None, each=False)

    def send_batch(self, call: Call) -> None:
        """Ours: one Result per message, in their order."""
        self._send_batch(call, call.args.timeout, each=True)

    def _send_batch(self, call: Call, timeout_ms: int | None, each: bool) -> None:
        messages = call.args.messages
        size = len(messages)
        if not size:
            self._answer_empty(call, each)
            return
        fault = self._intake.batch_fault(messages)
        if fault is not None:
            self._refuse_batch(call, fault, size, each)
            return
        members, faults = self._intake.members(messages, each)
        if faults and not each:
            self._refuse_batch(call, worst(faults, size, 0), size, each)
            return
        fault = self.flow.bound_fault(call.frame_bytes)
        if fault is not None:
            self._refuse_batch(call, fault, size, each)
            return
        self.flow.inflight += 1
        self.flow.inflight_bytes += call.frame_bytes
        deadline = self._deadline(call, timeout_ms)
        PendingBatch(self.flow, call, deadline, size, members, faults, each).start()

    def _answer_empty(self, call: Call, each: bool) -> None:
        if each:
            call.reply([])
        else:
            call.reply_encoded(replies.OK[call.wire])

    def _refuse_batch(self, call: Call, fault: Refusal, size: int, each: bool) -> None:
        self._counts.refused(None, fault, size)
        answer = replies.refused(fault)
        call.reply([answer] * size if each else answer)

    # --- delay

    def send_delay_sync(self, call: Call) -> None:
        self._delay.send(call, self._deadline(call, call.args.timeout))
