"""What is checked before a request is accepted, in wire order: 20, 11, 13, then 18, 19.

Shared by single sends, batches and delay requests (delay/intake.py), so that a fault has the same answer
wherever it comes.
Nothing here changes anything: no topic is created, no token taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from backend.records import NewRecord
from ddmq_client.idl.codes import Code
from ddmq_common.delay_command import DelayCommand
from ddmq_common.delivery import encode
from proxy_producer.batches import Member
from proxy_producer.config import ProducerConfig
from proxy_producer.core.dialects import Dialects
from proxy_producer.core.refusal import Refusal, refusal
from proxy_producer.core.validation import (
    HEARTBEAT,
    batch_fault,
    content_fault,
    heartbeat_only,
    topic_name_fault,
)
from proxy_producer.flow import Flow
from proxy_producer.messages import DIALECT_IN_BATCH, delayed_in_batch, marks, record_of
from proxy_producer.topics import Topic, TopicTable

DRAINING = refusal(Code.SHUTTING_DOWN, "draining", "this proxy is shutting down", "send to another one")


class PlainReader(Protocol):
    """Delays asked for by properties: delay/plain.py."""

    spoken: dict[bytes, Dialects]

    def read(
        self, topic: bytes, properties: Mapping[bytes, bytes]
    ) -> tuple[Mapping[bytes, bytes], DelayCommand | Refusal | None]: ...


class Intake:
    """The checks of one proxy. `plain`: set by whoever puts the proxy together, before the first send."""

    __slots__ = ("_config", "_flow", "_new_id", "_topics", "_wall_ms", "plain")

    def __init__(
        self,
        config: ProducerConfig,
        topics: TopicTable,
        flow: Flow,
        wall_ms: Callable[[], int],
        new_id: Callable[[], bytes],
    ) -> None:
        self._config = config
        self._topics = topics
        self._flow = flow
        self._wall_ms = wall_ms
        self.plain: PlainReader
        self._new_id = new_id

    def reconfigure(self, config: ProducerConfig) -> None:
        """Other limits of batches from now on."""
        self._config = config

    @property
    def draining(self) -> bool:
        """Nothing new is taken."""
        return self._flow.draining

    def first_look(self, name: bytes | None) -> tuple[Topic | None, Refusal | None]:
        """For names not in the cache, and while draining: the topic if it exists, or what forbids it."""
        if self._flow.draining:
            return None, DRAINING
        fault = topic_name_fault(name)
        if fault is not None or name is None:
            return None, fault
        if name == HEARTBEAT:  # never looked up, so that it cannot get into the cache
            return None, heartbeat_only()
        return self._topics.find(name.decode()), None

    def mode_fault(
        self,
        topic: Topic | None,
        name: bytes,
        level: int,
        chronos: bool,
        order: DelayCommand | Refusal | None = None,
    ) -> Refusal | None:
        """Code 13, then 18 and 19. `level`: the delay level asked for; `chronos`: from_chronos; `order`: what
        a dialect asked for, or why it cannot."""
        if isinstance(order, Refusal):
            return order
        if topic is None:
            return self._topics.creation_fault(name.decode())
        if level or order is not None:
            return topic.write_fault() or topic.delayed_fault()
        return topic.write_fault() or topic.plain_fault(chronos)

    # --- batches

    def batch_fault(self, messages: list[Any]) -> Refusal | None:
        """What forbids a batch as a whole."""
        if self._flow.draining:
            return DRAINING
        body_bytes = sum([len(message.body or message.value or b"") for message in messages])
        config = self._config
        return batch_fault(len(messages), body_bytes, config.batch_messages_max, config.batch_bytes_max)

    def members(self, messages: list[Any], each: bool) -> tuple[list[Member], dict[int, Refusal]]:
        """The legal messages, and by place what is wrong with others; without `each` up to the first."""
        members: list[Member] = []
        faults: dict[int, Refusal] = {}
        born_ms, known, new_id, new = self._wall_ms(), self._topics.known, self._new_id, tuple.__new__
        for place, message in enumerate(messages):
            topic = known.get(message.topic)
            if topic is not None and topic.plain_now and not message.properties:  # nearly all there are
                key, tags, body = message.key or b"", message.tags or b"", message.body or message.value
                fault = content_fault(key, tags, body, None, topic.limits)
                if fault is None:
                    delivery = encode(key, body, tags, None)
                    record = NewRecord(topic.name, -1, new_id(), born_ms, delivery, key, tags)
                    fields = (place, record, len(body), message.partitionId, message.hashId, False)
                    members.append(new(Member, fields))
                    continue
                faults[place] = fault
            else:
                made = self._member(place, message, born_ms)
                if isinstance(made, Member):
                    members.append(made)
                    continue
                faults[place] = made
            if not each:
                break
        return members, faults

    def _member(self, place: int, message: Any, born_ms: int) -> Member | Refusal:
        """The checks of a single send, in the same order; no delays and no heartbeats in a batch."""
        topic = self._topics.known.get(message.topic)
        if topic is None:
            topic, fault = self.first_look(message.topic)
            if fault is not None:
                return fault
        key, tags, properties = message.key or b"", message.tags or b"", message.properties
        body = message.body or message.value
        limits = self._topics.default_limits if topic is None else topic.limits
        fault = content_fault(key, tags, body, properties, limits)
        if fault is not None:
            return fault
        flags, chronos = 0, False
        if properties:
            if self.plain.spoken:
                properties, order = self.plain.read(message.topic, properties)
                if order is not None:
                    return order if isinstance(order, Refusal) else DIALECT_IN_BATCH
            properties, flags, level, chronos = marks(properties)
            if level:
                return delayed_in_batch(level)
        if topic is None or not topic.plain_now:
            fault = self.mode_fault(topic, message.topic, 0, chronos)
            if fault is not None:
                return fault
        name = topic.name if topic is not None else message.topic.decode()
        record = record_of(name, -1, self._new_id(), born_ms, key, tags, body, properties, flags)
        return Member(place, record, len(body), message.partitionId, message.hashId, chronos)
