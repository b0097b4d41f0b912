"""sendDelaySync: a request for a delay becomes a command, a record of the delay service's inner topic.

The usual request, an add of type 2 by a client of DDMQ, takes a fast path (`send_fast`): its checks are in
line, the command and the id are made of the bytes that came, and the record is appended at once.

Counts, limits and modes are those of the target topic. Code 0 says that the command is durable. The delay
service decides its outcome; for callers that want the outcome the send goes on until it is known. The command
of such a caller names a reply queue, so AwaitedDelay waits until outcomes can be read before it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from zlib import crc32

import msgspec

from backend.records import AppendResult, AppendStatus, Durability, NewRecord
from ddmq_client.idl.codes import FROM_CHRONOS, DelayAction, DelayType
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    ADDED,
    COMMAND_PROPERTY,
    EXPIRE_AFTER_S,
    ONCE,
    PENDING,
    CommandOutcome,
    DelayCommand,
    encode_command,
    is_uuid,
    mark_sender,
)
from ddmq_common.delays.schedules import first_due_ms
from ddmq_common.delivery import encode, encode_keyless, encode_properties
from ddmq_common.names import DELAY_TOPIC
from ddmq_rpc.api import Call
from proxy_producer import wire
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import (
    TIMESTAMP_S_MIN,
    CommandWithId,
    DelayRequest,
    add_command,
    changing_command,
    echoed_id,
    schedule_command,
    schedule_id,
    uuid_of,
)
from proxy_producer.core.rejections import SendRejection, failure_of
from proxy_producer.core.validation import CHRONOS, check_content
from proxy_producer.delay.context import DelayContext, command_record
from proxy_producer.flow import Flow
from proxy_producer.pending import Destination, PendingSend, SendMember
from proxy_producer.topics import CachedTopic
from proxy_producer.wire import SendRequest, flags_of

_ADD, _ONCE = int(DelayAction.ADD), int(DelayType.DELAY)
_CHRONOS = {CHRONOS: FROM_CHRONOS.encode()}
_CHRONOS_ONLY = encode_properties(_CHRONOS)
_NO_MESSAGE = encode(b"", b"", b"", None)
_COMMAND_STORED = AppendResult(AppendStatus.STORED, -1, Durability.DURABLE, None)


class DelaySends:
    """Converts accepted delay requests to delay commands. There is one for each producer proxy."""

    def __init__(
        self,
        context: DelayContext,
        config: ProducerConfig,
        clock: Clock,
        random: Random,
        flow: Flow,
        cached_topics: dict[bytes, CachedTopic],
        new_id: Callable[[], bytes],
    ) -> None:
        self._context = context
        self._commands = context.commands
        self._full = context.full
        self._presence = context.presence
        self._delay_s_max = config.delay.delay_s_max
        self._random = random
        self._flow = flow
        self._cached_topics = cached_topics
        self._new_id = new_id
        self._wall_ms = clock.wall_ms
        self._config = config

    def reconfigure(self, config: ProducerConfig) -> None:
        """Use the limits of `config` for all later requests."""
        self._config = config

    # One function of more than forty lines: it is the hot path, and each call costs it 0.05 µs.
    def send_fast(self, call: Call, deadline: float) -> bool:
        """Accept a plain sendDelaySync add of type 2 on the fast path; return False to take the slow path.

        The fast path accepts only requests that every check of admission.py would accept.
        """
        message = call.args.delayMessage
        topic = self._cached_topics.get(message.topic)
        uuid = message.uuid or b""
        second = message.timestamp or 0
        body = message.body
        flow, config, commands = self._flow, self._config, self._commands
        if (
            topic is None
            or message.action != _ADD
            or message.dmsgtype != _ONCE
            or message.properties
            or message.times
            or message.clientId is not None
            or message.dueMs is not None
            or message.delayMs is not None
            or topic.limiters
            or (self._full.names and self._is_full(topic, call))
            or not (topic.takes_delayed and topic.writable and commands.ready)
            or flow.draining
            or flow.inflight >= config.inflight_requests_max
            or flow.inflight_bytes + call.frame_bytes > config.inflight_bytes_max
            or not is_uuid(uuid)
        ):
            return False
        born_ms = self._wall_ms()
        tags = message.tags or b""
        if (
            not TIMESTAMP_S_MIN <= second <= born_ms // 1_000 + self._delay_s_max
            or check_content(b"", tags, body, None, topic.limits) is not None
            or self._presence.is_absent()
        ):
            return False
        shard, expire, name = crc32(uuid) % commands.queues, second + EXPIRE_AFTER_S, uuid.decode()
        command = DelayCommand(
            "add", name, topic.name, ONCE, second * 1_000, second, expire, 0, 0, shard,
            own_topic=call.caller is not None, sender="" if call.caller is None else call.caller.name,
        )  # fmt: skip
        delivery = encode_keyless(body, tags, _CHRONOS_ONLY)
        record = NewRecord(
            DELAY_TOPIC, shard, self._new_id(), born_ms, delivery, b"", b"", 0, 0,
            {COMMAND_PROPERTY: encode_command(command)},
        )  # fmt: skip
        delay_id = b"%010d-2-%d-0-0-0-%d-%b" % (second, expire, shard, uuid)
        member = SendMember(0, record, len(body), 0, 0, topic, None)
        send = PendingSend(flow, call, deadline, [member], DelayDestination(delay_id))
        send.append((record,))
        if not send.done:
            flow.watch(send)
        return True

    def _is_full(self, topic: CachedTopic, call: Call) -> bool:
        """Return whether the topic or the caller has as many delayed messages waiting as it may."""
        names, caller = self._full.names, call.caller
        return topic.name in names or (caller is not None and mark_sender(caller.name) in names)

    # --- the slow path, for requests that passed their checks

    def make_command(self, request: SendRequest, delay: DelayRequest) -> tuple[NewRecord, Destination]:
        """Build the delay command of a request; return the record to store, and the destination of the
        send."""
        adds = request.adds_message
        if adds:
            properties = {**(request.properties or {}), **_CHRONOS}
            delivery = encode(request.key, request.body, request.tags, properties)
            flags = flags_of(properties)
        else:
            delivery, flags = _NO_MESSAGE, 0
        name = request.topic_name
        record = NewRecord(name, -1, self._new_id(), request.born_ms, delivery, b"", b"", flags)
        request.command, delay_id = self._build_command(request, delay)
        if request.extended_client and not (adds and delay.fresh):
            return record, AwaitedDelay(self._context, request.command, delay_id, adds)
        due_ms = request.command.due_ms if request.extended_client else None
        return record, DelayDestination(delay_id, adds, due_ms)

    def _build_command(self, request: SendRequest, delay: DelayRequest) -> CommandWithId:
        shards, name, now_ms = self._commands.queues, request.topic_name, request.now_ms
        built = self._build_any_command(request, delay, shards, name, now_ms)
        if not request.own_topic:
            return built
        sender = request.sender_name if request.adds_message else ""
        command = msgspec.structs.replace(built.command, own_topic=True, sender=sender)
        return built._replace(command=command)

    def _build_any_command(
        self, request: SendRequest, delay: DelayRequest, shards: int, name: str, now_ms: int
    ) -> CommandWithId:
        if not request.adds_message:
            return changing_command(delay, name, now_ms // 1_000 + self._delay_s_max, shards)
        uuid = delay.uuid.decode() or uuid_of(self._random.randbytes(16))
        if delay.schedule is None:
            return add_command(delay, name, uuid, shards)
        due_ms = first_due_ms(delay.schedule, now_ms) if delay.due_ms is None else delay.due_ms
        command = schedule_command(delay.schedule, due_ms or now_ms, name, uuid, shards, request.queue_choice)
        return CommandWithId(command, schedule_id(command))


class DelayDestination(Destination):
    """Stores a delay command and answers with its id, without waiting for the outcome.

    `adds`: the command adds a message. `due_ms`: the message's due time, for extended clients.
    """

    def __init__(self, delay_id: bytes, adds: bool = True, due_ms: int | None = None) -> None:
        super().__init__()
        self._delay_id = delay_id
        self._adds = adds
        self._due_ms = due_ms

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        """Answer the caller once the command is durable."""
        if send.rejections or not send.count_stored(results):
            topic = send.members[0].topic
            reject_delay(send.flow, send.call, topic, send.rejections[0], self._delay_id, self._adds)
        elif self._due_ms is None:
            wire.reply_delay_stored(send.call, self._delay_id)
        else:
            send.call.reply(wire.delay_result(self._delay_id, ADDED, self._due_ms, None))


class AwaitedDelay(Destination):
    """Stores a delay command and waits for its outcome before it answers.

    If the deadline comes after the command is stored, the answer is code 0 with "pending", as the command
    will be executed.
    """

    def __init__(self, context: DelayContext, command: DelayCommand, delay_id: bytes, adds: bool) -> None:
        super().__init__()
        self._context = context
        self._command = command
        self._delay_id = delay_id
        self._adds = adds
        self._reply_id = 0
        self._send: PendingSend

    def store_messages(self, send: PendingSend) -> None:
        """Wait until outcomes can be read, then store the command."""
        self._send = send
        self._context.outcomes.when_ready(self)

    def on_outcomes_ready(self, rejection: SendRejection | None) -> None:
        """Store the command. If outcomes cannot be read, answer "pending" once it is stored."""
        send = self._send
        if send.answered:
            return
        reply_address = None if rejection is not None else self._context.outcomes.expect(self)
        if reply_address is not None:
            reply_queue, self._reply_id = reply_address
            self._command = msgspec.structs.replace(
                self._command, reply_queue=reply_queue, reply_id=self._reply_id
            )
        shards = self._context.commands.queues
        send.store_records([command_record(send.members[0].record, self._command, shards)])

    # --- the answer

    def answer_call(self, send: PendingSend, results: Sequence[AppendResult]) -> None:
        """Wait for the outcome of the stored command, until the deadline."""
        if send.rejections:
            self._forget_reply()
            topic = send.members[0].topic
            reject_delay(send.flow, send.call, topic, send.rejections[0], self._delay_id, self._adds)
        elif results[0].status is not AppendStatus.STORED:
            send.reject_messages(failure_of(results[0]))
        else:
            send.trace_stored(results)
            if self._reply_id:
                send.flow.watch(self)
            else:
                self._reply(PENDING)

    @property
    def deadline(self) -> float:
        """Return the send's deadline, in monotonic seconds."""
        return self._send.deadline

    def expire(self) -> None:
        """Answer "pending", because the outcome did not come before the deadline."""
        self._forget_reply()
        self._reply(PENDING)

    def on_outcome(self, outcome: CommandOutcome) -> None:
        """Answer with the outcome of the command. It may come before the append's own result."""
        self._reply_id = 0
        if not self._send.answered:
            self._send.flow.unanswered.discard(self._send)
            self._reply(outcome.code, outcome)

    def _reply(self, code: int, outcome: CommandOutcome | None = None) -> None:
        """Answer code 0 with the outcome's `code` in DelayResult field 100."""
        send = self._send
        send.flow.unanswered.discard(self)
        send.count_stored((_COMMAND_STORED,), traced=True)
        if code == PENDING:
            send.flow.counts.count_outcome("pending")
        send.call.reply(wire.delay_result(self._delay_id, code, self._command.due_ms, outcome))

    def _forget_reply(self) -> None:
        self._context.outcomes.forget(self._reply_id)
        self._reply_id = 0


def reject_delay(
    flow: Flow, call: Call, topic: CachedTopic | None, rejection: SendRejection, delay_id: bytes, adds: bool
) -> None:
    """Answer a sendDelaySync with a rejection and count it.

    `adds`: the request would have added a message.
    """
    if adds:
        flow.counts.count_rejected(None if topic is None else topic.name, rejection)
    else:
        flow.counts.count_rejected_change(rejection)
    call.reply(wire.rejected_delay_result(rejection, echoed_id(rejection.code, delay_id)))
