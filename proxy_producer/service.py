"""ProducerService: Thrift in, backend append out.

The life of a send: it is checked (admission.py), accepted (a PendingSend or a PendingBatch, which counts
against the bounds), waits for its topic or for tokens if need be, is appended and answered.
Handlers never block: the pending send carries the call until the backend settles it, and the flow's sweep
answers 12 in time when the backend does not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from struct import Struct
from typing import Any

import gevent

from backend.completion import Completion, followed
from backend.port import Backend
from backend.traces import TraceWriter
from ddmq_client.idl import producer
from ddmq_common.clock import Clock
from ddmq_common.config import Reloaded, reloaded
from ddmq_common.delays.levels import DEFAULT_LEVELS, Levels
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import Registry
from ddmq_common.queue_choice import choose
from ddmq_rpc.api import Call, Fault, Service
from proxy_producer import wire
from proxy_producer.admission import NO_DELAY_SERVICE, Admission
from proxy_producer.batches import PendingBatch, worst
from proxy_producer.config import LIVE_KEYS, ProducerConfig
from proxy_producer.core.identity import identity_of, no_identity_of
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.core.validation import HEARTBEAT
from proxy_producer.counts import SendCounts
from proxy_producer.delay.context import DelayContext
from proxy_producer.delay.outcomes import Later
from proxy_producer.delay.sends import DelaySends, Way, refuse_delay
from proxy_producer.flow import Flow, SweepTimer
from proxy_producer.pending import (
    LEVEL_ANSWERS,
    SEND_ANSWERS,
    DelayLevels,
    PendingSend,
    ToLevel,
    ToTopic,
    refuse,
)
from proxy_producer.replies import ReplySends
from proxy_producer.topics import TopicTable
from proxy_producer.tracing import TracedAnswers
from proxy_producer.transactions.prepared.sends import PreparedSends
from proxy_producer.transactions.service import Transactions
from proxy_producer.wire import RequestKind, SendRequest, delay_request_of, is_ours, request_of

PREFIX_BYTES = 8  # of message ids


class ProducerService:
    """One producer proxy over one backend.

    `new_id` gives 16 bytes, unique across proxies and restarts; by default 8 drawn from `random` (seed
    it from the system, as Random() does) and a counter. `timer` drives the sweep and `beat` the
    transactions, by default timers of the hub.
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
        timer: SweepTimer | None = None,
        levels: Levels = DEFAULT_LEVELS,
        later: Later = gevent.spawn_later,
        beat: SweepTimer | None = None,
        traces: TraceWriter | None = None,
    ) -> None:
        self._new_id = new_id or message_ids(random.randbytes(PREFIX_BYTES))
        self._wall_ms = clock.wall_ms
        self._counts = SendCounts(metrics)
        self.topics = TopicTable(backend, config, clock, self._counts, random, SEND_ANSWERS, traces)
        timer = timer or HubTimer(ref=False)
        self._levels = DelayLevels(backend, levels, clock, config.timeout_ms_max / 1_000)
        self.delay = DelayContext(backend, config, clock, self._counts, random, later)
        self.flow = Flow(backend, config, clock, self._counts, self.topics, timer)
        self._identity_of = identity_of if backend.capabilities.idempotent else no_identity_of
        self.admission = Admission(
            config, self.topics, self.flow, self.delay, self._wall_ms, self._new_id, self._identity_of
        )
        self._usual = self.admission.usual
        self._delay_sends = DelaySends(
            self.delay, config, clock, random, self.flow, self.topics.known, self._new_id
        )
        self.transactions = Transactions(
            config, clock, metrics, self.flow, self._levels, self.delay.commands, beat or HubTimer(ref=False)
        )
        self._prepared = PreparedSends(
            self.transactions, self.admission, self.delay, self._delay_sends, self._levels, config,
            self._new_id, clock.wall_ms,
        )  # fmt: skip
        self.replies = ReplySends(
            self.flow, self.admission, self.delay, self._delay_sends, self._levels, config, clock.wall_ms
        )
        self._known = self.topics.known
        self._config = config
        self._drained: Completion[None] | None = None
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
        for part in (self.topics, self.flow, self.admission, self._delay_sends, self.replies):
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
            "sendPrepared": self.send_prepared,
            "endTransaction": self.end_transaction,
            "pollTransactionChecks": self.transactions.poll,
        }
        return Service(producer, wire.SERVICE, handlers)

    def drain(self, deadline: float) -> Completion[None]:
        """Refuse what is new (code 20), wait for what is pending, at most until `deadline` (monotonic)."""
        flow = self.flow.drain(deadline)
        if self._drained is None:
            self._drained = followed(flow, self.transactions.drain)
        return self._drained

    def close(self) -> None:
        """Stop listening to the backend; call after drain."""
        self.transactions.close()
        self.topics.close()
        self.delay.close()
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

    def send_delay_sync(self, call: Call) -> None:
        args = call.args
        deadline = self._deadline(call, args.timeout)
        if not self._delay_sends.send_usual(call, deadline):
            request = delay_request_of(args.delayMessage, self._wall_ms(), call.frame_bytes)
            self._admit(call, request, deadline)

    def _send(self, call: Call, message: Any, deadline: float) -> None:
        """The hot path, of messages as nearly all are; the others take the careful way."""
        flow, topic, found = self.flow, self._known.get(message.topic), None
        if (
            topic is not None
            and flow.inflight < self._inflight_max
            and flow.inflight_bytes + call.frame_bytes <= self._inflight_bytes_max
            and not flow.draining
        ):
            found = self._usual(message, topic, None)
        if topic is None or found is None:
            self._send_careful(call, message, deadline)
            return
        if isinstance(found, SendRefusal):
            refuse(flow, call, topic, found)
            return
        body_bytes = len(message.body or message.value)
        send = PendingSend(flow, call, found, deadline, body_bytes, is_ours(message), topic, topic.answers)
        if topic.limiters:
            send.advance(ToTopic((message.partitionId, message.hashId), chronos=False), topic.name)
            return
        topic.turn = turn = topic.turn + 1
        key = found.key if topic.by_key else b""
        found.queue_id = choose(message.partitionId, message.hashId, topic.queues, turn, key)
        send.send()
        if not send.done:
            flow.watch(send)

    def _send_careful(self, call: Call, message: Any, deadline: float) -> None:
        if message.topic == HEARTBEAT and not self.flow.draining:
            call.reply_encoded(wire.OK[call.wire])
            return
        identity, now_ms = self._identity_of(message, message.properties), self._wall_ms()
        request = request_of(RequestKind.SINGLE, message, now_ms, call.frame_bytes, identity)
        self._admit(call, request, deadline)

    # --- the careful way, of single sends and delay requests

    def _admit(self, call: Call, request: SendRequest, deadline: float) -> None:
        """Check, then accept or refuse. A delay service that has just begun is noticed before code 21."""
        fault = self.admission.fault(request)
        if fault is None:
            self._accept(call, request, deadline)
        elif fault is not NO_DELAY_SERVICE or not self.delay.presence.look_again(
            partial(self._admit, call, request, deadline)
        ):
            self._refuse(call, request, fault)

    def _accept(self, call: Call, request: SendRequest, deadline: float) -> None:
        asked = request.command is not None or request.delay is not None or request.chronos
        way = self._delay_sends.way_of(request) if asked else None
        record, destination, answers = way or self._plain_way(request)
        body_bytes, topic = len(request.body), request.topic
        if topic is not None and topic.trace is not None:
            answers = TracedAnswers(answers, topic.trace)
        send = PendingSend(self.flow, call, record, deadline, body_bytes, request.ours, topic, answers)
        send.advance(destination, request.topic_name if request.adds else None)

    def _plain_way(self, request: SendRequest) -> Way:
        record = request.record(self._new_id())
        if request.level:
            return record, ToLevel(self._levels, request.level, request.place), LEVEL_ANSWERS
        return record, ToTopic(request.place, request.chronos), SEND_ANSWERS

    def _refuse(self, call: Call, request: SendRequest, fault: SendRefusal) -> None:
        if request.delay is None:
            refuse(self.flow, call, request.topic, fault)
        else:
            refuse_delay(self.flow, call, request.topic, fault, request.delay.delay_id, request.adds)

    def _deadline(self, call: Call, timeout_ms: int | None) -> float:
        """Absent, 0 and less: no limit of the caller's, so ours."""
        if not timeout_ms or timeout_ms < 0 or timeout_ms > self._cap_ms:
            timeout_ms = self._cap_ms
        return call.received_at + timeout_ms * 0.001

    # --- transactions

    def send_prepared(self, call: Call) -> None:
        """Ours: messages of a transaction, stored and not visible yet."""
        self._prepared.prepare(call, self._deadline(call, call.args.request.timeout))

    def end_transaction(self, call: Call) -> None:
        """Ours: commit, roll back, or say that it is not known yet."""
        self.transactions.end(call, self._deadline(call, call.args.request.timeout))

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
            call.reply([]) if each else call.reply_encoded(wire.OK[call.wire])
            return
        fault = self.admission.batch_fault(messages)
        if fault is None:
            members, faults = self.admission.members(messages, each)
            refused = faults and not each
            fault = worst(faults, size, 0) if refused else self.flow.bound_fault(call.frame_bytes)
        if fault is not None:
            self._refuse_batch(call, fault, size, each)
            return
        deadline, relays = self._deadline(call, timeout_ms), self.delay.relays
        PendingBatch(self.flow, relays, call, deadline, size, members, faults, each).start()

    def _refuse_batch(self, call: Call, fault: SendRefusal, size: int, each: bool) -> None:
        self._counts.refused(None, fault, size)
        answer = wire.refused(fault)
        call.reply([answer] * size if each else answer)


def message_ids(prefix: bytes) -> Callable[[], bytes]:
    """A maker of 16-byte message ids: the `prefix`, 8 random bytes of a new draw at each start, and a count.

    They are unique across restarts and proxies as far as two draws of 64 random bits differ; ascending within
    one start.
    """
    if len(prefix) != PREFIX_BYTES:
        raise ValueError(f"the id prefix has {len(prefix)} bytes; allowed: exactly {PREFIX_BYTES}")
    following = count(1).__next__
    pack = Struct(">Q").pack

    def new_id() -> bytes:
        return prefix + pack(following())

    return new_id


class OnewayCall(Call):
    """sendOneway's: what is answered goes to nobody, and ends `call`.

    The RPC layer reads a connection's next frames while a few oneway calls are open, and stops reading it
    when there are more: that is the back pressure.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call
        self.args = call.args
        self.wire = call.wire
        self.received_at = call.received_at
        self.frame_bytes = call.frame_bytes
        self.peer = call.peer
        self.on_abandoned = None

    @property
    def open(self) -> bool:
        return self._call.open

    def reply(self, value: Any) -> None:
        self._call.reply_encoded(b"")

    def reply_encoded(self, result: bytes) -> None:
        self._call.reply_encoded(b"")

    def throw(self, exception: Any) -> None:
        self._call.reply_encoded(b"")

    def fault(self, kind: Fault, text: str) -> None:
        self._call.reply_encoded(b"")
