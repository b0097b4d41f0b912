"""KafkaParts: what is followed, committed and held, put together, and ended in the right order."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from backend.kafka.clients.bridge import Bridge
from backend.kafka.clients.producers import Producers
from backend.kafka.commits.commit_queue import CommitLine
from backend.kafka.commits.offset_mirror import OffsetMirror
from backend.kafka.commits.plan import CommitTerms, KafkaWrite
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.kafka.coordination.table import PlacedEvent
from backend.kafka.coordination.watch import MemberWatch
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState, StateListener
from backend.records import Durability, NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
SETTINGS_MAX = 100_000
PROGRESS_MAX = 1_000_000  # pairs of group and queue
CLOSE_S = 8.0


class PartsTerms(NamedTuple):
    """What the backend tells its parts. `info`: a topic that is there; `kafka_name`: how Kafka calls it.

    `durability`: what an answered record of a topic has. `encode`: a record for a producer; `refusal`: why it
    is not taken. `setting`, `topic_info`: these have changed.
    """

    info: Callable[[str], TopicInfo | None]
    kafka_name: Callable[[str], str]
    durability: Callable[[str], Durability]
    encode: Callable[[NewRecord], KafkaWrite]
    refusal: Callable[[NewRecord], Exception | None]
    setting: Callable[[str], object]
    topic_info: Callable[[str], object]


class KafkaParts:
    """`state`, `line` (of commits) and `members` are what the backend asks. Made on the hub."""

    def __init__(self, options: KafkaOptions, bridge: Bridge, clock: Clock, terms: PartsTerms) -> None:
        self._info = terms.info
        listener = StateListener(terms.setting, terms.topic_info, self._event, self._cut, self._ready)
        self.state = KafkaState(options, bridge.call, listener)
        self.producers = Producers(options, bridge.call, self._event_failed)
        checks = CommitTerms(
            terms.encode, terms.refusal, self._living, self._floor, SETTINGS_MAX, PROGRESS_MAX
        )
        self.line = CommitLine(self.state, self.producers, checks, terms.durability, clock.monotonic)
        self.members = KafkaMemberships(
            options, self.state, self.line, self.producers, clock, self._topic_queues
        )
        self.watch = MemberWatch(options, self.members, bridge.call, clock.monotonic)
        self.mirror = OffsetMirror(options, self.state, self.members.holds, terms.kafka_name, bridge.call)
        self.line.progressed = self.mirror.progressed
        self._closed = False

    def topic_changed(self, name: str) -> None:
        """A topic was made, has grown, or is gone."""
        self.members.topic_changed(name)

    def close(self) -> None:
        """Say that this process is gone, send what is left, and end every thread; within CLOSE_S each."""
        if self._closed:
            return
        self._closed = True
        self.line.close()
        self.members.close()
        self.mirror.close()
        if not self.producers.close(CLOSE_S):
            log.warning("what was on its way to Kafka was not answered in %g s", CLOSE_S)
        self.state.stop(CLOSE_S)

    # --- what the parts ask

    def _living(self, queue: QueueRef) -> bool:
        info = self._info(queue.topic)
        return info is not None and info.incarnation == queue.incarnation and queue.queue_id < info.queues

    def _topic_queues(self, topic: str) -> tuple[int, int] | None:
        info = self._info(topic)
        return None if info is None else (info.incarnation, info.queues)

    def _floor(self, key: tuple[str, QueueRef], epoch: int) -> int:
        return self.members.floor(key, epoch)

    def _ready(self) -> None:
        self.line.kick()

    def _event(self, placed: PlacedEvent) -> None:
        self.members.event(placed)

    def _cut(self) -> None:
        self.members.cut()

    def _event_failed(self, tag: object, reason: str) -> None:
        self.members.event_failed(tag, reason)
