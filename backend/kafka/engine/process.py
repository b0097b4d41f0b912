"""KafkaProcess: this process in its namespace, with the followed state, commits and memberships."""

from __future__ import annotations

import logging
from collections.abc import Callable

from backend.kafka.client_metrics import MeasuredProducers
from backend.kafka.clients.bridge import Bridge
from backend.kafka.clients.transactions import LANES_MAX
from backend.kafka.commits.commit_queue import CommitQueue, WhenAppended
from backend.kafka.commits.offset_mirror import OffsetMirror
from backend.kafka.coordination.feature_level import CLUSTER_SETTING, LANES_LEVEL
from backend.kafka.coordination.level_keeper import LevelKeeper
from backend.kafka.coordination.memberships import KafkaMemberships
from backend.kafka.coordination.table import PlacedEvent
from backend.kafka.coordination.watch import MemberWatch
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from ddmq_common.clock import Clock
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)
CLOSE_S = 8.0
USABLE_MIN = 2  # with fewer transactional ids the process takes new ones


class KafkaProcess:
    """Creates the components that work on the system topics, and closes them in the right order.

    Create it on the hub. `when_appended`: see CommitQueue. `on_setting_changed` and `on_info_changed` are
    called with a changed setting, or a topic whose stored settings changed. Callbacks run on the hub, after
    all components were created.
    """

    def __init__(
        self,
        options: KafkaOptions,
        bridge: Bridge,
        clock: Clock,
        topics: TopicRegistry,
        when_appended: WhenAppended,
        on_setting_changed: Callable[[str], object],
        on_info_changed: Callable[[str], object],
        metrics: Registry | None = None,
    ) -> None:
        self.state = KafkaState(
            options,
            bridge.call,
            on_setting_changed=lambda key: self._on_setting_changed(key, on_setting_changed),
            on_info_changed=on_info_changed,
            on_event=self._on_event,
            on_log_truncated=lambda: self.members.on_log_truncated(),
            on_ready=lambda: self._on_ready(),
        )
        self.producers = MeasuredProducers(
            options,
            bridge.call,
            lambda tag, reason: self.members.on_event_failed(tag, reason),
            lambda: self.commits.resume(),
            lambda: self._on_id_retired(),
            topics.min_insync,
            metrics=metrics or Registry(),
            monotonic=clock.monotonic,
        )
        self.commits: CommitQueue = CommitQueue(
            self.state,
            self.producers,
            topics,
            clock.monotonic,
            when_appended=when_appended,
            epoch_floor=lambda key, epoch: self.members.epoch_floor(key, epoch),
            is_alive=lambda: self.members.is_alive(),
            on_name_lost=lambda reason: self.members.on_name_lost(),
            on_named=lambda name: self.members.on_named(name),
            on_progress=lambda keys: self.mirror.on_progress(keys),
        )
        self.members: KafkaMemberships = KafkaMemberships(
            options, self.state, self.commits, self.producers, clock, topics
        )
        self.level = LevelKeeper(options, self.state, self.commits, self.members, self._on_level)
        self.watch = MemberWatch(options, self.members, bridge.call, clock.monotonic, self.level.tick)
        self.mirror: OffsetMirror = OffsetMirror(
            options, self.state, self.members.holds_queue, topics.kafka_name, bridge.call
        )
        self.producers.use_lanes(1)  # until the level is known
        self._closed = False

    def _on_event(self, placed: PlacedEvent) -> None:
        if self.members.on_event(placed):
            self.watch.on_event(placed.event)
        self.level.refresh()

    def _on_setting_changed(self, key: str, then: Callable[[str], object]) -> None:
        if key == CLUSTER_SETTING:
            self.level.refresh()
        then(key)

    def _on_ready(self) -> None:
        self.level.refresh()
        self.commits.resume()

    def _on_level(self, level: int) -> None:
        self.producers.use_lanes(LANES_MAX if level >= LANES_LEVEL else 1)

    def _on_id_retired(self) -> None:
        """Tell the other processes, and take new ids if most of them are gone."""
        self.members.announce_retired()
        usable = self.producers.lanes_in_use - len(self.producers.retired)
        if usable < min(USABLE_MIN, self.producers.lanes_in_use):
            self.commits.renew(f"{len(self.producers.retired)} transactional ids cannot be used any more")

    def close(self) -> None:
        """Announce that this process leaves, send pending records, and end every thread.

        Each step takes at most CLOSE_S.
        """
        if self._closed:
            return
        self._closed = True
        self.commits.close()
        self.watch.close()
        self.members.close()
        self.mirror.close()
        if not self.producers.close(CLOSE_S):
            log.warning("records in flight to Kafka were not answered in %g s", CLOSE_S)
        self.state.stop(CLOSE_S)
