"""Sends that go by way of the delay service: each becomes a command, a record of the service's inner topic.

* sendDelaySync. The usual one, an add of type 2 by an old client, takes the short way (`send_usual`): the
  checks in line, the command and the id made of what came, one append.
* Plain sends that ask for a delay in the words of another system.
* What an old delay server still sends (Relays).

Code 0 says that the command is durable. What it comes to is decided by the delay service.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any
from zlib import crc32

from backend.records import AppendResult, NewRecord
from ddmq_client.idl.codes import FROM_CHRONOS, DelayAction, DelayType
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    COMMAND_PROPERTY,
    EXPIRE_AFTER_S,
    ONCE,
    DelayCommand,
    Schedule,
    encode_command,
    is_uuid,
    parse_delay_id,
)
from ddmq_common.delays.schedules import first_due_ms
from ddmq_common.delivery import encode, encode_properties, keyless
from ddmq_common.names import DELAY_TOPIC
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import (
    TIMESTAMP_S_MIN,
    DelayRequest,
    Placed,
    add_command,
    changing_command,
    relay_command,
    schedule_command,
    schedule_id,
    uuid_of,
)
from proxy_producer.core.validation import CHRONOS, content_fault
from proxy_producer.delay.context import DelayContext
from proxy_producer.delay.pending_commands import AddedAnswers, AwaitedCommand, IdAnswers, ToDelayService
from proxy_producer.flow import Flow
from proxy_producer.pending import Answers, Destination, PendingSend, SendAnswers
from proxy_producer.requests import SendRequest, flags_of
from proxy_producer.topics import KnownTopic


class Relays:
    """What an old delay server still sends, messages with from_chronos and an occurrence's id as their key,
    as commands.

    A cancel of that id may have reached us instead of it. Who knows is the delay service, so the message goes
    through it, due at once and only unless that uuid was cancelled: one decision, in one place, in the order
    in which both came. Each send is a message of its own: consumers send on what they got, key and all, and
    what was answered 0 is delivered. So what an old server resends comes twice, as it did there. While no
    delay service is seen the message is stored as it is: cancels find nobody either.
    """

    __slots__ = ("_commands", "_presence", "_wall_ms")

    def __init__(self, context: DelayContext, clock: Clock) -> None:
        self._commands = context.commands
        self._presence = context.presence
        self._wall_ms = clock.wall_ms

    def command(self, record: NewRecord, place: tuple[int, int]) -> DelayCommand | None:
        """For a message with from_chronos; None: it is stored as it is. `place`: (partitionId, hashId)."""
        key = parse_delay_id(record.key)
        if key is None or key.shard < 0 or self._presence.absent():
            return None
        uuid = uuid_of(blake2b(record.message_id + record.key, digest_size=16).digest())
        return relay_command(key, record.topic, uuid, self._wall_ms(), place)

    def relayed(self, record: NewRecord, place: tuple[int, int]) -> NewRecord:
        """For one in a batch: the record to append, often the same."""
        command = self.command(record, place) if self._commands.ready else None
        if command is None:
            return record
        return NewRecord(
            DELAY_TOPIC, command.shard % self._commands.queues, record.message_id, record.born_ms,
            record.delivery, flags=record.flags, system={COMMAND_PROPERTY: encode_command(command)},
        )  # fmt: skip


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
        self.relays = Relays(context, clock)
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
        send = PendingSend(flow, call, record, deadline, len(body), False, topic, IdAnswers(delay_id))
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
            return self._plain(request.record(self._new_id()), self._placed(request, request.command))
        if request.chronos:
            record = request.record(self._new_id())
            command = self.relays.command(record, request.place)
            if command is not None:
                return self._plain(record, command)
        return None

    def _delayed(self, request: SendRequest, asked: DelayRequest) -> Way:
        """A sendDelaySync goes on like this."""
        commands, adds = self._commands, request.adds
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
        to = ToDelayService(commands, command)
        if request.ours:
            return record, to, AddedAnswers(delay_id, command.due_ms)
        return record, to, IdAnswers(delay_id, adds)

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

    def _placed(self, request: SendRequest, asked: DelayCommand) -> DelayCommand:
        """What a dialect asked for, with what is only known here."""
        uuid, shards = uuid_of(self._random.randbytes(16)), self._commands.queues
        schedule = asked.schedule or Schedule()
        return schedule_command(schedule, asked.due_ms, request.topic_name, uuid, shards, request.place)


def _told(command: DelayCommand, record: NewRecord, _: AppendResult) -> Any:
    """What a caller of ours hears of a plain send that became a command; an old server has an id of its
    own."""
    return replies.delayed(record, b"" if command.unless_cancelled else schedule_id(command))
