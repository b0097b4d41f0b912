"""The way of DELAY=n: the delay levels as this proxy knows them, and sends that go through one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from backend.internal_topics import schedule_record
from backend.port import Backend
from ddmq_common.clock import Clock
from ddmq_common.delays.levels import Levels
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_producer import replies
from proxy_producer.core.refusal import SendRefusal
from proxy_producer.internal_topic import InternalTopic
from proxy_producer.pending import PendingSend, SendAnswers
from proxy_producer.topics import KnownTopic


class DelayLevels:
    """What DELAY=n means to one producer proxy, and the topic that has a queue for each level."""

    __slots__ = ("table", "topic")

    def __init__(self, backend: Backend, table: Levels, clock: Clock, timeout_s: float) -> None:
        self.table = table
        self.topic = InternalTopic(backend, SCHEDULE_TOPIC, len(table), clock, timeout_s)


@dataclass(slots=True)
class ToLevel:
    """A send with a delay level: its record goes to the levels' topic instead, with its queue chosen."""

    levels: DelayLevels
    level: int
    place: tuple[int, int]
    held_by = "a rate limit or the delay levels' topic"

    def mode_fault(self, topic: KnownTopic) -> SendRefusal | None:
        return topic.delayed_fault()

    def append(self, send: PendingSend) -> None:
        send.choose_queue(self.place)
        send.record = schedule_record(send.record, self.level, self.levels.table)
        self.levels.topic.when_ready(partial(_send, send))


def _send(send: PendingSend, fault: SendRefusal | None) -> None:
    if send.answered:
        return
    if fault is None:
        send.send_careful()
    else:
        send.refuse_unsent(fault)


LEVEL_ANSWERS = SendAnswers(replies.scheduled)
