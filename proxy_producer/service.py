"""ProducerService: Thrift in, backend append out.

The life of a send: it is checked (admission.py), accepted (a PendingSend, which counts against the bounds),
waits for its topic or for tokens if it must, is appended and answered. Handlers never block: the pending send
carries the call until the backend settles it, and the flow's sweep answers 12 in time when the backend does
not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random
from struct import Struct
from typing import Any

from backend.completion import Completion, followed
from backend.port import Backend
from backend.traces import TraceWriter
from ddmq_client.idl import producer
from ddmq_common.clock import Clock
from ddmq_common.config import Reloaded, merge_live_values
from ddmq_common.delays.levels import DEFAULT_LEVELS, Levels
from ddmq_common.hub_timer import HubTimer, spawn_later
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, ErrorKind, Service
from ddmq_rpc.links import ReadToken
from proxy_producer import wire
from proxy_producer.admission import Admission
from proxy_producer.batches import COMPLETE_BATCH, PARTIAL_BATCH, BatchDestination, summarize_rejections
from proxy_producer.config import LIVE_KEYS, ProducerConfig
from proxy_producer.core.identity import choose_identity_of
from proxy_producer.core.rejections import SendRejection
from proxy_producer.core.validation import HEARTBEAT
from proxy_producer.counts import SendCounts
from proxy_producer.delay.context import DelayContext, DelayLevels
from proxy_producer.delay.outcomes import Later
from proxy_producer.delay.sends import DelaySends, reject_delay
from proxy_producer.engine_calls import EngineCalls
from proxy_producer.flow import Flow, SweepTimer
from proxy_producer.pending import EXTENDED_SEND, PLAIN_SEND, PendingSend, SendMember, reject_send
from proxy_producer.replies import ReplySends
from proxy_producer.rights import ProducerRights
from proxy_producer.topics import TopicTable
from proxy_producer.transactions.prepared.sends import PreparedSends
from proxy_producer.transactions.service import Transactions
from proxy_producer.wire import RequestKind, SendRequest, delay_request_of, is_extended, request_of

PREFIX_BYTES = 8  # of message ids


class ProducerService:
    """One producer proxy over one backend.

    `new_id` returns 16 bytes, unique across proxies and restarts; by default 8 bytes from `random` (seed it
    from the system, as Random() does) and a counter. `timer` drives the sweep and `transaction_timer` the
    transactions; both are timers of the hub by default. `levels`: the waits of property DELAY=n, the same as
    at the level scheduler. `read_token`: returns the token that logs this process in at other proxies.
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
        later: Later = spawn_later,
        transaction_timer: SweepTimer | None = None,
        traces: TraceWriter | None = None,
        read_token: ReadToken | None = None,
    ) -> None:
        self._new_id = new_id or message_ids(random.randbytes(PREFIX_BYTES))
        self._wall_ms = clock.wall_ms
        self._counts = SendCounts(metrics)
        self.topics = TopicTable(backend, config, clock, self._counts, random, traces)
        timer = timer or HubTimer(ref=False)
        self._levels = DelayLevels(backend, levels, clock, config.timeout_ms_max / 1_000)
        self.delay = DelayContext(backend, config, clock, self._counts, random, later)
        self.flow = Flow(backend, config, clock, self._counts, self.topics, self.delay, self._levels, timer)
        self._identity_of = choose_identity_of(backend)
        self.admission = Admission(
            config, self.topics, self.flow, self.delay, self._wall_ms, self._new_id, self._identity_of
        )
        self._make_record = self.admission.make_record
        self._delay_sends = DelaySends(
            self.delay, config, clock, random, self.flow, self.topics.cached, self._new_id
        )
        self.transactions = Transactions(
            config,
            clock,
            metrics,
            self.flow,
            self._levels,
            self.delay.commands,
            transaction_timer or HubTimer(ref=False),
            read_token,
        )
        self._backend = backend
        self._engine_calls = EngineCalls(backend, clock, config.timeout_ms_max, read_token)
        self._prepared = PreparedSends(self.transactions, self.admission, config)
        self.replies = ReplySends(self.flow, self.admission, config)
        self._cached_topics = self.topics.cached
        self._config = config
        self._drained: Completion[None] | None = None
        self._use_bounds(config)

    def _use_bounds(self, config: ProducerConfig) -> None:
        self._cap_ms = config.timeout_ms_max
        self._inflight_max = config.inflight_requests_max
        self._inflight_bytes_max = config.inflight_bytes_max

    def reconfigure(self, fresh: ProducerConfig) -> Reloaded:
        """Apply new limits and rates while clients stay connected.

        The result lists the keys that need a restart.
        """
        change = merge_live_values(self._config, fresh, LIVE_KEYS)
        self._config = change.config
        self._use_bounds(change.config)
        for component in (self.topics, self.flow, self.admission, self._delay_sends, self.replies):
            component.reconfigure(change.config)
        return change

    def service(self) -> Service:
        """Return the handlers of all RPC methods."""
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
            "callEngine": self._engine_calls.handle_call,
        }
        rights = ProducerRights(self._backend, self._cached_topics, self._counts, self.flow.monotonic)
        return Service(producer, wire.SERVICE, handlers, rules=rights.build_rules())

    def advertise(self, address: str) -> None:
        """Publish the address (HOST:PORT) at which other processes reach this proxy.

        The configured `advertise` takes precedence.
        """
        address = self._config.advertise or address
        self.transactions.advertise(address)
        self._backend.serve_peers(address, self._engine_calls.call)

    def drain(self, deadline: float) -> Completion[None]:
        """Reject new calls (code 20) and wait for pending ones, at most until `deadline` (monotonic
        seconds)."""
        flow = self.flow.drain(deadline)
        if self._drained is None:
            self._drained = followed(flow, self.transactions.drain)
        return self._drained

    def close(self) -> None:
        """Stop watching the backend's settings. Call it after drain."""
        self.transactions.close()
        self._engine_calls.close()
        self.topics.close()
        self.delay.close()
        self._levels.topic.close()
        self.flow.stop()

    # --- single sends

    def send_sync(self, call: Call) -> None:
        args = call.args
        self._send(call, args.message, self._deadline_of(call, args.timeout))

    def send_async(self, call: Call) -> None:
        """Store a message and answer as sendSync does. The proxy's own time limit applies."""
        self._send(call, call.args.message, self._deadline_of(call, None))

    def send_oneway(self, call: Call) -> None:
        """Store a message without answering; rejections are only counted. ddmq added this method."""
        self._send(OnewayCall(call), call.args.message, self._deadline_of(call, None))

    def send_delay_sync(self, call: Call) -> None:
        args = call.args
        deadline = self._deadline_of(call, args.timeout)
        if not self._delay_sends.send_fast(call, deadline):
            request = delay_request_of(args.delayMessage, self._wall_ms(), call.frame_bytes)
            request.call = None if call.caller is None else call
            self._admit_request(call, request, deadline)

    # One function: it is the hot path, and each call costs it 0.05 µs.
    def _send(self, call: Call, message: Any, deadline: float) -> None:
        """Handle a plain message on the fast path; every other message takes the slow path."""
        flow, topic, record = self.flow, self._cached_topics.get(message.topic), None
        if (
            topic is not None
            and flow.inflight < self._inflight_max
            and flow.inflight_bytes + call.frame_bytes <= self._inflight_bytes_max
            and not flow.draining
        ):
            record = self._make_record(message, topic, None, call)
        if topic is None or record is None:
            self._send_slowly(call, message, deadline)
            return
        if isinstance(record, SendRejection):
            reject_send(flow, call, topic, record)
            return
        body_bytes, partition_id, hash_id = (
            len(message.body or message.value),
            message.partitionId,
            message.hashId,
        )
        member = SendMember(0, record, body_bytes, partition_id, hash_id, topic, None)
        destination = EXTENDED_SEND if is_extended(message) else PLAIN_SEND
        send = PendingSend(flow, call, deadline, [member], destination)
        if topic.limiters:
            send.start()
            return
        topic.round_robin += 1
        record.queue_id = topic.choose_queue(record.key, partition_id, hash_id)
        send.append((record,))
        if not send.done:
            flow.watch(send)

    # --- the slow path of single sends and delay requests

    def _send_slowly(self, call: Call, message: Any, deadline: float) -> None:
        if message.topic == HEARTBEAT and not self.flow.draining:
            call.reply_encoded(wire.OK[call.wire])
            return
        identity, now_ms = self._identity_of(message, message.properties, call), self._wall_ms()
        request = request_of(RequestKind.SINGLE, message, now_ms, call.frame_bytes, identity)
        request.call = None if call.caller is None else call
        self._admit_request(call, request, deadline)

    def _admit_request(self, call: Call, request: SendRequest, deadline: float) -> None:
        """Check a send request, then accept or reject it."""
        rejection = self.admission.check_request(request)
        if rejection is None:
            self._accept_request(call, request, deadline)
        elif not self.delay.presence.will_retry(
            rejection, partial(self._admit_request, call, request, deadline)
        ):
            self._reject_request(call, request, rejection)

    def _accept_request(self, call: Call, request: SendRequest, deadline: float) -> None:
        if request.delay is not None:
            record, destination = self._delay_sends.make_command(request, request.delay)
        else:
            record = request.make_record(self._new_id())
            destination = EXTENDED_SEND if request.extended_client else PLAIN_SEND
        member = SendMember(0, record, len(request.body), *request.queue_choice, request.topic, request)
        PendingSend(self.flow, call, deadline, [member], destination).start()

    def _reject_request(self, call: Call, request: SendRequest, rejection: SendRejection) -> None:
        if request.delay is None:
            reject_send(self.flow, call, request.topic, rejection)
        else:
            reject_delay(
                self.flow, call, request.topic, rejection, request.delay.delay_id, request.adds_message
            )

    def _deadline_of(self, call: Call, timeout_ms: int | None) -> float:
        """Return the call's deadline in monotonic seconds.

        Without a positive `timeout_ms`, use the proxy's default.
        """
        if not timeout_ms or timeout_ms < 0 or timeout_ms > self._cap_ms:
            timeout_ms = self._cap_ms
        return call.received_at + timeout_ms * 0.001

    # --- transactions

    def send_prepared(self, call: Call) -> None:
        """Store messages of a transaction; consumers see them after the commit. ddmq added this method."""
        self._prepared.prepare(call, self._deadline_of(call, call.args.request.timeout))

    def end_transaction(self, call: Call) -> None:
        """Commit a transaction, roll it back, or report it as undecided. ddmq added this method."""
        self.transactions.end(call, self._deadline_of(call, call.args.request.timeout))

    # --- batches

    def send_batch_sync(self, call: Call) -> None:
        """Store all messages of a batch and answer one Result for the whole batch."""
        self._send_batch(call, None, COMPLETE_BATCH)

    def send_batch(self, call: Call) -> None:
        """Store each message of a batch on its own and answer one Result for each, in order. ddmq added this
        method."""
        self._send_batch(call, call.args.timeout, PARTIAL_BATCH)

    def _send_batch(self, call: Call, timeout_ms: int | None, destination: BatchDestination) -> None:
        messages = call.args.messages
        size, is_partial = len(messages), destination.partial
        if not size:
            call.reply([]) if is_partial else call.reply_encoded(wire.OK[call.wire])
            return
        rejection = self.admission.check_batch(messages)
        if rejection is None:
            members, rejections = self.admission.check_messages(
                RequestKind.MEMBER, messages, partial=is_partial, sender=call
            )
            if rejections and not is_partial:
                rejection = summarize_rejections(rejections, size, 0)
            else:
                rejection = self.flow.check_bounds(call.frame_bytes)
        if rejection is not None:
            self._reject_batch(call, rejection, size, is_partial)
            return
        PendingSend(
            self.flow, call, self._deadline_of(call, timeout_ms), members, destination, rejections
        ).start()

    def _reject_batch(self, call: Call, rejection: SendRejection, size: int, is_partial: bool) -> None:
        self._counts.count_rejected(None, rejection, size)
        answer = wire.rejected_result(rejection)
        call.reply([answer] * size if is_partial else answer)


def message_ids(prefix: bytes) -> Callable[[], bytes]:
    """Return a function that creates 16-byte message ids: `prefix`, 8 random bytes per start, and a counter.

    The ids ascend within one start. Across restarts and proxies they differ as long as the random bytes
    differ.
    """
    if len(prefix) != PREFIX_BYTES:
        raise ValueError(f"the id prefix has {len(prefix)} bytes; allowed: exactly {PREFIX_BYTES}")
    following = count(1).__next__
    pack = Struct(">Q").pack

    def new_id() -> bytes:
        return prefix + pack(following())

    return new_id


class OnewayCall(Call):
    """The call of a sendOneway. It has no answer on the wire; answering it only ends the wrapped call.

    The RPC layer stops reading a connection that has too many open oneway calls, which is the back pressure.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call
        self.args = call.args
        self.wire = call.wire
        self.received_at = call.received_at
        self.frame_bytes = call.frame_bytes
        self.peer = call.peer
        self.caller = call.caller
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

    def reply_error(self, kind: ErrorKind, text: str) -> None:
        self._call.reply_encoded(b"")
