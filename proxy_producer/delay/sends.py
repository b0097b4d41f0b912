"""Sends that go by way of the delay service: each becomes a command, a record of the service's inner topic.

* sendDelaySync. The usual one, an add of type 2 by an old client, takes the short way (`send_usual`): the
  checks in line, the command and the id made of what came, one append.
* Plain sends that ask for a delay in the words of another system.
* What an old delay server still sends (context.py, Relays).

The record goes to the inner topic while counts, limits and modes are those of the target topic. Code 0 says
that the command is durable. What it comes to is decided by the delay service; for some callers the send goes
on until that is known. The command of such a caller names a reply queue, which is known only when outcomes
can be heard; so on the careful way the command is written into the record last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from zlib import crc32

import msgspec

from backend.records import AppendResult, NewRecord
from ddmq_client.idl.codes import FROM_CHRONOS, DelayAction, DelayType
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    ADD,
    ADDED,
    COMMAND_PROPERTY,
    EXPIRE_AFTER_S,
    ONCE,
    PENDING,
    CommandOutcome,
    DelayCommand,
    Schedule,
    encode_command,
    is_uuid,
)
from ddmq_common.delays.schedules import first_due_ms
from ddmq_common.delivery import encode, encode_properties, keyless
from ddmq_common.names import DELAY_TOPIC
from ddmq_rpc.api import Call
from proxy_producer import wire
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import (
    TIMESTAMP_S_MIN,
    DelayRequest,
    Placed,
    add_command,
    changing_command,
    echoed_id,
    schedule_command,
    schedule_id,
    uuid_of,
)
from proxy_producer.core.identity import delay_uuid
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.core.validation import CHRONOS, content_fault
from proxy_producer.delay.context import DelayContext
from proxy_producer.flow import Flow
from proxy_producer.pending import Answers, Destination, PendingSend, SendAnswers
from proxy_producer.topics import InternalTopic, KnownTopic
from proxy_producer.tracing import TracedAnswers
from proxy_producer.wire import SendRequest, flags_of

_ADD, _ONCE = int(DelayAction.ADD), int(DelayType.DELAY)
_CHRONOS = {CHRONOS: FROM_CHRONOS.encode()}
_CHRONOS_ONLY = encode_properties(_CHRONOS)
_NOTHING = encode(b"", b"", b"", None)


Way = tuple[NewRecord, Destination, Answers]
"""How an accepted request goes on."""


class DelaySends:
    """They belong to one producer proxy."""

    def __init__(
        self,
        context: DelayContext,
        config: ProducerConfig,
        clock: Clock,
        random: Random,
        flow: Flow,
        known: dict[bytes, KnownTopic],
        new_id: Callable[[], bytes],
    ) -> None:
        self._context = context
        self._commands = context.commands
        self._full = context.full
        self._presence = context.presence
        self._delay_s_max = config.delay.delay_s_max
        self._random = random
        self._flow = flow
        self._known = known
        self._new_id = new_id
        self._wall_ms = clock.wall_ms
        self._config = config

    def reconfigure(self, config: ProducerConfig) -> None:
        """Other bounds from now on."""
        self._config = config

    # One function of more than forty lines: it is the hot path, and each call costs it 0.05 µs.
    def send_usual(self, call: Call, deadline: float) -> bool:
        """Accept a sendDelaySync as nearly all are: an add of type 2 by an old client.

        False: ask the table of checks (admission.py), of which every row takes what this takes.
        """
        message = call.args.delayMessage
        topic = self._known.get(message.topic)
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
            or topic.name in self._full.names
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
            or content_fault(b"", tags, body, None, topic.limits) is not None
            or self._presence.absent()
        ):
            return False
        shard, expire, name = crc32(uuid) % commands.queues, second + EXPIRE_AFTER_S, uuid.decode()
        command = DelayCommand("add", name, topic.name, ONCE, second * 1_000, second, expire, 0, 0, shard)
        delivery = keyless(body, tags, _CHRONOS_ONLY)
        record = NewRecord(
            DELAY_TOPIC, shard, self._new_id(), born_ms, delivery, b"", b"", 0, 0,
            {COMMAND_PROPERTY: encode_command(command)},
        )  # fmt: skip
        delay_id = b"%010d-2-%d-0-0-0-%d-%b" % (second, expire, shard, uuid)
        answers: Answers = IdAnswers(delay_id)
        if topic.trace is not None:
            answers = TracedAnswers(answers, topic.trace)
        send = PendingSend(flow, call, record, deadline, len(body), False, topic, answers)
        send.send()
        if not send.done:
            flow.watch(send)
        return True

    # --- the careful way, of requests that passed their checks

    def way_of(self, request: SendRequest) -> Way | None:
        """How the request goes on, or None: it needs no delay service."""
        if request.delay is not None:
            return self._delayed(request, request.delay)
        if request.command is not None:
            return self._plain(request.record(self._new_id()), self.placed(request, request.command))
        if request.chronos:
            record = request.record(self._new_id())
            command = self._context.relays.command(record, request.place)
            if command is not None:
                return self._plain(record, command)
        return None

    def _delayed(self, request: SendRequest, asked: DelayRequest) -> Way:
        """A sendDelaySync goes on like this."""
        adds = request.adds
        if adds:
            kept = {**(request.properties or {}), **_CHRONOS}
            delivery, flags = encode(request.key, request.body, request.tags, kept), flags_of(kept)
        else:
            delivery, flags = _NOTHING, 0
        record = NewRecord(DELAY_TOPIC, -1, self._new_id(), request.born_ms, delivery, b"", b"", flags)
        command, delay_id = self._command(request, asked)
        if request.ours and not (adds and asked.fresh):
            awaited = AwaitedCommand(self._context, command, delay_id)
            return record, awaited, awaited
        answers = IdAnswers(delay_id, adds, command.due_ms if request.ours else None)
        return record, ToDelayService(self._commands, command), answers

    def _command(self, request: SendRequest, asked: DelayRequest) -> Placed:
        shards, name, now_ms = self._commands.queues, request.topic_name, request.now_ms
        if not request.adds:
            return changing_command(asked, name, now_ms // 1_000 + self._delay_s_max, shards)
        uuid = asked.uuid.decode() or uuid_of(self._random.randbytes(16))
        if asked.schedule is None:
            return add_command(asked, name, uuid, shards)
        due_ms = first_due_ms(asked.schedule, now_ms) if asked.due_ms is None else asked.due_ms
        command = schedule_command(asked.schedule, due_ms or now_ms, name, uuid, shards, request.place)
        return Placed(command, schedule_id(command))

    def _plain(self, record: NewRecord, command: DelayCommand) -> Way:
        """A plain send goes on like this: it is answered as one."""
        record = NewRecord(
            DELAY_TOPIC, -1, record.message_id, record.born_ms, record.delivery, flags=record.flags
        )
        return record, ToDelayService(self._commands, command), SendAnswers(partial(_told, command))

    def placed(self, request: SendRequest, asked: DelayCommand) -> DelayCommand:
        """What a dialect asked for, with what is only known here."""
        identity, shards = request.identity, self._commands.queues
        drawn = delay_uuid(identity) if isinstance(identity, str) else self._random.randbytes(16)
        schedule, uuid = asked.schedule or Schedule(), uuid_of(drawn)
        return schedule_command(schedule, asked.due_ms, request.topic_name, uuid, shards, request.place)


def _told(command: DelayCommand, record: NewRecord, _: AppendResult) -> Any:
    """What a caller of ours hears of a plain send that became a command; an old server has an id of its
    own."""
    return wire.delayed(record, b"" if command.unless_cancelled else schedule_id(command))


# --- where commands go, and how their callers are answered

HELD_BY = "a rate limit or the delay service's inner topics"


@dataclass(slots=True)
class ToDelayService:
    """A command that nobody waits for. `topic`: the service's inner one."""

    topic: InternalTopic
    command: DelayCommand
    held_by = HELD_BY

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        """An old delay server has waited already: any topic takes what it sends."""
        return None if self.command.unless_cancelled else topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        send.wait_for(self.topic, partial(write, send, self.command, self.topic))


def write(send: PendingSend, command: DelayCommand, topic: InternalTopic) -> None:
    """Put the command into the record, and send it to its shard."""
    send.record.queue_id = command.shard % topic.queues
    send.record.system = {COMMAND_PROPERTY: encode_command(command)}
    send.send_careful()


@dataclass(slots=True)
class IdAnswers:
    """A caller that waits for no outcome is told the id; one of ours also `due_ms`, when the message is due.
    `adds`: the command brings a message, and changes none."""

    delay_id: bytes
    adds: bool = True
    due_ms: int | None = None

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        send.count_stored()
        if self.due_ms is None:
            wire.delay_stored(send.call, self.delay_id)
        else:
            send.call.reply(wire.delay_decided(self.delay_id, ADDED, self.due_ms, None))

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        refuse_delay(send.flow, send.call, send.topic, fault, self.delay_id, self.adds)


class AwaitedCommand:
    """A command whose caller waits for what it comes to: where it goes, and the answer.

    Once it is stored, running out of time is no code 12 any more: the command will be carried out, so the
    answer is 0 and "pending".
    """

    __slots__ = ("_command", "_context", "_delay_id", "_reply_id", "_send")
    held_by = HELD_BY

    def __init__(self, context: DelayContext, command: DelayCommand, delay_id: bytes) -> None:
        self._context = context
        self._command = command
        self._delay_id = delay_id
        self._reply_id = 0
        self._send: PendingSend

    # --- where it goes

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        return topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        self._send = send
        send.wait_for(self._context.commands, partial(self._context.outcomes.when_ready, self))

    def outcomes_ready(self, fault: SendRefusal | None) -> None:
        """Where outcomes cannot be heard, the command goes all the same and its caller is told "pending"."""
        if self._send.answered:
            return
        place = None if fault is not None else self._context.outcomes.expect(self)
        if place is not None:
            self._command = msgspec.structs.replace(self._command, reply_queue=place[0], reply_id=place[1])
            self._reply_id = place[1]
        write(self._send, self._command, self._context.commands)

    # --- what is answered

    def stored(self, send: PendingSend, result: AppendResult) -> None:
        if self._reply_id:
            send.flow.watch(self)  # until the outcome comes, or the time is up
        else:
            self._tell(PENDING)

    def refused(self, send: PendingSend, fault: SendRefusal) -> None:
        self._forget()
        adds = self._command.op == ADD
        refuse_delay(send.flow, send.call, send.topic, fault, self._delay_id, adds)

    # --- the outcome

    @property
    def deadline(self) -> float:
        """The send's own; monotonic seconds."""
        return self._send.deadline

    def expire(self) -> None:
        """The command is durable, and nothing was heard of it in time."""
        self._forget()
        self._tell(PENDING)

    def decided(self, outcome: CommandOutcome) -> None:
        """What came of it; the append's own answer may still be on its way."""
        self._reply_id = 0
        if not self._send.answered:
            self._send.flow.unanswered.discard(self._send)
            self._tell(outcome.code, outcome)

    def _tell(self, code: int, outcome: CommandOutcome | None = None) -> None:
        """Code 0, and with it `code`: DelayResult field 100."""
        send = self._send
        send.flow.unanswered.discard(self)
        send.count_stored()
        if code == PENDING:
            send.flow.counts.outcome("pending")
        send.call.reply(wire.delay_decided(self._delay_id, code, self._command.due_ms, outcome))

    def _forget(self) -> None:
        self._context.outcomes.forget(self._reply_id)
        self._reply_id = 0


def refuse_delay(
    flow: Flow, call: Call, topic: KnownTopic | None, fault: SendRefusal, delay_id: bytes, adds: bool
) -> None:
    """Answer a sendDelaySync that is not stored, and count it; by a refused change no message is lost."""
    if adds:
        flow.counts.refused(None if topic is None else topic.name, fault)
    else:
        flow.counts.change_refused(fault)
    call.reply(wire.delay_refused(fault, echoed_id(fault.code, delay_id)))
