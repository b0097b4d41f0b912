"""KafkaState: settings, progress and assignments as followed, on the hub, and the barrier `caught_up`.

It is what FollowerThread brings, applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from backend.completion import Completion
from backend.kafka.coordination.events import decode_event
from backend.kafka.coordination.log import CoordinationLog, PlacedEvent
from backend.kafka.following.barrier import MARK_KEY, Barriers
from backend.kafka.following.system_topics import SystemTopics
from backend.kafka.following.thread import FollowedRow, FollowerListener, FollowerThread, Place
from backend.kafka.options import KafkaOptions
from backend.kafka.state import ProgressState, SettingsState
from ddmq_common.errors import DamagedError, StorageError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
Call = Callable[..., None]  # from any thread: run this on the hub, in order
RETRY_S = 0.3
TOLD_EVERY = 100_000  # records between two lines about the progress of the start


class StateListener(NamedTuple):
    """What is told on the hub: changed settings and topics, events of the coordination topic, its cut.

    `ready`: the first end was reached.
    """

    setting: Callable[[str], object]
    topic_info: Callable[[str], object]
    event: Callable[[PlacedEvent], object]
    cut: Callable[[], object]
    ready: Callable[[], object]


class KafkaState:
    """The state that was followed. `ready`: its first end was reached. `reason`: what is not right now."""

    def __init__(self, options: KafkaOptions, call: Call, listener: StateListener) -> None:
        self.topics = SystemTopics.of(options)
        self._settings, self.progress = SettingsState(), ProgressState()
        self.coordination = CoordinationLog(0)
        self.ready = False
        self.reason = f"Kafka at {options.bootstrap} is being asked for the system topics"
        self.partitions = 0  # of the progress topic
        self.records = 0
        self._call = call
        self._listener = listener
        self._next: dict[Place, int] = {}
        self._closed = False
        client = options.client()
        self._barriers = Barriers(client, call, self._next)
        tell = FollowerListener(
            lambda first: call(self._begun, first),
            lambda rows: call(self._take, rows),
            lambda first: call(self._cut, first),
            lambda reason: call(self._trouble, reason),
        )
        self._thread = FollowerThread(options, tell)

    @property
    def settings(self) -> Mapping[str, bytes]:
        """Key → value."""
        return self._settings.settings

    @property
    def topic_infos(self) -> Mapping[str, bytes]:
        """What was put under a topic's name."""
        return self._settings.topic_infos

    def stop(self, wait_s: float) -> None:
        """Follow no more; who waits is refused."""
        self._closed = True
        self._barriers.close()
        if not self._thread.stop(wait_s):
            log.warning("the thread that follows the system topics did not end in %g s", wait_s)

    # --- what this process wrote itself

    def wrote(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        """A setting that was written and answered counts from now on."""
        if self._settings.followed.wrote(partition, offset, key):
            self._apply_setting(key, value)

    def holds_setting(self, key: bytes, value: bytes) -> bool:
        """Whether this is what the settings topic says under `key`."""
        return self._settings.holds(key, value)

    def caught_up(self) -> Completion[None]:
        """Settled once everything was followed that is answered by now."""
        return self._barriers.ask()

    # --- what the thread brings, on the hub

    def _begun(self, first: dict[Place, int]) -> None:
        self._next.update(first)
        self.partitions = sum(topic == self.topics.progress for topic, _ in first)
        self.coordination = CoordinationLog(first[self.topics.coordination, 0])
        self.caught_up().then(self._started)

    def _started(self, barrier: Completion[None]) -> None:
        if self._closed:
            return
        if barrier.error is not None:
            self._trouble(str(barrier.error))
            HubTimer(ref=False).once(RETRY_S, lambda: self.caught_up().then(self._started))
            return
        self.ready, self.reason = True, ""
        log.info("the system topics were followed to their end: %d records", self.records)
        self._listener.ready()

    def _take(self, rows: list[FollowedRow]) -> None:
        self._thread.room.release()
        if self._closed:
            return
        for row in rows:
            if row.record:
                self._apply(row)
                self._next[row.topic, row.partition] = row.offset + 1
            else:
                self._next[row.topic, row.partition] = row.offset
        before, self.records = self.records, self.records + len(rows)
        if not self.ready and before // TOLD_EVERY != self.records // TOLD_EVERY:
            log.info("following the system topics: %d records so far", self.records)
        if self.ready:
            self.reason = ""
        self._barriers.go_on()

    def _apply(self, row: FollowedRow) -> None:
        if row.key == MARK_KEY:
            return
        if row.topic == self.topics.coordination:
            event = None if row.value is None else decode_event(row.value)
            if event is not None:
                self._listener.event(PlacedEvent(row.offset, row.stamp_ms, event))
            return
        key = row.key or b""
        try:
            if row.topic == self.topics.progress:
                if self.progress.followed.passes(row.partition, row.offset, key):
                    self.progress.apply(key, row.value)
            elif self._settings.followed.passes(row.partition, row.offset, key):
                self._apply_setting(key, row.value)
        except (DamagedError, StorageError) as error:
            log.error("%s of %s, offset %d, is passed over: %s", row.topic, row.partition, row.offset, error)

    def _apply_setting(self, key: bytes, value: bytes | None) -> None:
        setting, topic = self._settings.apply(key, value)
        if setting is not None:
            self._listener.setting(setting)
        if topic is not None:
            self._listener.topic_info(topic)

    def _cut(self, first: int) -> None:
        log.warning("the coordination topic begins at %d now: what was held is lost", first)
        self.coordination = CoordinationLog(first)
        self._next[self.topics.coordination, 0] = first
        self._listener.cut()

    def _trouble(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s", reason)
        self.reason = reason
