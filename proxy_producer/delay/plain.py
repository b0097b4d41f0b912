"""Plain sends that the delay service has to see: delays in the words of other systems, and what an old delay
server still sends.

An old server's message carries from_chronos and an occurrence's id as its key; a cancel of that id may have
reached us instead of it. Who knows is the delay service, so the message goes through it, due at once and only
unless that uuid was cancelled: one decision, in one place, in the order in which both came. Each send is a
message of its own: consumers send on what they got, key and all, and what was answered 0 is delivered. So
what an old server resends comes twice, as it did there. While no delay service is seen the message is stored
as it is: cancels find nobody either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from random import Random

import msgspec

from backend.port import Backend
from backend.records import NewRecord
from ddmq_common.delay_command import COMMAND_PROPERTY, DelayCommand, encode_command
from ddmq_common.delay_id import DelayId, parse_delay_id, shard_of
from ddmq_common.names import DELAY_TOPIC
from ddmq_common.schedules import ScheduleLimits
from ddmq_rpc.api import Call
from proxy_producer import replies
from proxy_producer.config import DelayLimits
from proxy_producer.core.delay_commands import relay_command, uuid_of
from proxy_producer.core.dialects import DIALECTS, Dialects, dialect_of, dialects, without_dialects
from proxy_producer.core.refusal import Refusal
from proxy_producer.delay.full import FullTopics
from proxy_producer.delay.pending import DelayShared, PendingDialect
from proxy_producer.delay.presence import Presence
from proxy_producer.messages import DELAY_FULL, NO_DELAY_SERVICE
from proxy_producer.topics import Topic

Place = tuple[int, int]  # partitionId, hashId


class PlainDelays:
    """Of one producer proxy. `spoken`: by topic, as it comes on the wire; empty for nearly everyone. What a
    topic says of itself comes before what this proxy's configuration says of it."""

    def __init__(
        self,
        backend: Backend,
        limits: DelayLimits,
        shared: DelayShared,
        presence: Presence,
        full: FullTopics,
        random: Random,
        wall_ms: Callable[[], int],
    ) -> None:
        self._configured = {name: dialects(names) for name, names in limits.dialects.items()}
        self.spoken: dict[bytes, Dialects] = {name.encode(): d for name, d in self._configured.items()}
        self._backend = backend
        self._unwatch = backend.watch_settings(self._changed)
        for name in backend.topics():
            self._learn(name)
        self._limits = ScheduleLimits(
            limits.delay_s_max * 1_000, limits.occurrences_max, limits.period_ms_min
        )
        self._shared = shared
        self._presence = presence
        self._full = full
        self._random = random
        self._wall_ms = wall_ms

    def close(self) -> None:
        """Topics are watched no more."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        kind, _, name = key.partition("/")
        if kind == "topic":
            self._learn(name)

    def _learn(self, name: str) -> None:
        """What the topic speaks by now; names of a newer program mean nothing here."""
        info = self._backend.topic(name)
        known = () if info is None else [one for one in info.delay_dialects if one in DIALECTS]
        spoken = dialects(known) if known else self._configured.get(name)
        if spoken is not None:
            self.spoken[name.encode()] = spoken
        else:
            self.spoken.pop(name.encode(), None)

    def read(
        self, topic: bytes, properties: Mapping[bytes, bytes]
    ) -> tuple[Mapping[bytes, bytes], DelayCommand | Refusal | None]:
        """(the properties to deliver, the order they ask for or what forbids it); they have been checked."""
        spoken = self.spoken.get(topic)
        if spoken is None:
            return properties, None
        asked = dialect_of(properties, spoken, self._wall_ms() + 1, self._limits)
        return without_dialects(properties, spoken), asked

    def send(
        self,
        call: Call,
        record: NewRecord,
        deadline: float,
        body_bytes: int,
        ours: bool,
        topic: Topic | None,
        place: Place,
        order: DelayCommand | None,
    ) -> bool:
        """Take over a send that passed its checks; False: it is a plain one. `order`: of `read`; without
        one it carries from_chronos."""
        key = None if order is not None else self._old_servers(record.key)
        if order is None and key is None:
            return False
        if order is not None and self._presence.absent():
            again = partial(self.send, call, record, deadline, body_bytes, ours, topic, place, order)
            if not self._presence.look_again(again):
                self._shared.flow.counts.refused(None if topic is None else topic.name, NO_DELAY_SERVICE)
                call.reply(replies.refused(NO_DELAY_SERVICE))
            return True
        if order is not None and topic is not None and topic.name in self._full.names:
            self._shared.flow.counts.refused(topic.name, DELAY_FULL)
            call.reply(replies.refused(DELAY_FULL))
            return True
        delay_id = b""
        if order is not None:
            order, delay_id = self._placed(order, record.topic, place)
        elif key is not None:
            order = self._relay(key, record, place)
        inner = NewRecord(
            DELAY_TOPIC, -1, record.message_id, record.born_ms, record.delivery, flags=record.flags
        )
        pending = PendingDialect(
            self._shared, call, inner, deadline, body_bytes, ours, topic, delay_id, order
        )
        pending.level = 1 if delay_id else 0
        flow = self._shared.flow
        flow.inflight += 1
        flow.inflight_bytes += call.frame_bytes
        pending.advance((*place, True))
        return True

    def relayed(self, record: NewRecord, place: Place) -> NewRecord:
        """For a message with from_chronos in a batch: the record to append, often the same."""
        key = self._old_servers(record.key)
        if key is None or not self._shared.inner.ready:
            return record
        order = self._relay(key, record, place)
        return NewRecord(
            DELAY_TOPIC, order.shard % self._shared.inner.queues, record.message_id, record.born_ms,
            record.delivery, flags=record.flags, system={COMMAND_PROPERTY: encode_command(order)},
        )  # fmt: skip

    def _old_servers(self, key: bytes) -> DelayId | None:
        found = parse_delay_id(key)
        if found is None or found.shard < 0 or self._presence.absent():
            return None
        return found

    def _relay(self, key: DelayId, record: NewRecord, place: Place) -> DelayCommand:
        uuid = uuid_of(blake2b(record.message_id + record.key, digest_size=16).digest())
        return relay_command(key, record.topic, uuid, self._wall_ms(), place)

    def _placed(self, order: DelayCommand, topic: str, place: Place) -> tuple[DelayCommand, bytes]:
        uuid = uuid_of(self._random.randbytes(16))
        shard = shard_of(uuid, self._shared.inner.queues)
        whole = msgspec.structs.replace(
            order, uuid=uuid, topic=topic, shard=shard, partition=place[0], hash_id=place[1]
        )
        second = whole.timestamp_s
        return whole, DelayId(second, whole.kind, 0, 0, 0, 0, shard, uuid).text().encode()
