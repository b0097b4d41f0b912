"""What an old delay server still sends: a message with from_chronos and an occurrence's id as its key.

A cancel of that id may have reached us instead of it. Who knows is the delay service, so the message goes
through it, due at once and only unless that uuid was cancelled: one decision, in one place, in the order in
which both came. Each send is a message of its own: consumers send on what they got, key and all, and what was
answered 0 is delivered. So what an old server resends comes twice, as it did there. While no delay service is
seen the message is stored as it is: cancels find nobody either.
"""

from __future__ import annotations

from hashlib import blake2b

from backend.records import NewRecord
from ddmq_common.clock import Clock
from ddmq_common.delays.command import COMMAND_PROPERTY, DelayCommand, encode_command
from ddmq_common.delays.ids import parse_delay_id
from ddmq_common.names import DELAY_TOPIC
from proxy_producer.core.delay_commands import relay_command, uuid_of
from proxy_producer.delay.context import DelayContext


class Relays:
    """It turns such messages into commands."""

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
