"""TopicUpkeep: what is done to topics unasked: what waits does not go too soon, what nobody needs goes."""

from __future__ import annotations

import logging
from functools import partial

from backend.kafka.topics import cluster as work
from backend.kafka.topics.cluster import Cluster
from backend.kafka.topics.info import FoundTopic, KafkaTopic
from backend.records import QueueRef

log = logging.getLogger(__name__)


class TopicUpkeep:
    """By the cluster's thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._trimmed: dict[QueueRef, int] = {}

    def keep(self, ours: str, found: FoundTopic) -> None:
        """A topic of delayed messages that somebody else made, or changed."""

        def set_so(_: FoundTopic | None, error: Exception | None) -> None:
            name = found.kafka_name
            if error is not None:
                log.error("delayed messages in topic %s may go by age or size: %s", name, error)
            else:
                log.warning("topic %s lets nothing go by age or size any more: it has delayed messages", name)

        self._cluster.ask(partial(work.keep, name=ours, found=found), set_so)

    def trim(self, topic: KafkaTopic, queue: QueueRef, before: int) -> None:
        """As Backend.trim; the queue is one of the topic's."""
        if before <= self._trimmed.get(queue, 0):
            return
        self._trimmed[queue] = before

        def trimmed(_: None, error: Exception | None) -> None:
            if error is not None:
                self._trimmed.pop(queue, None)
                log.warning("topic %s keeps what nobody needs: %s", topic.kafka_name, error)

        name, number = topic.kafka_name, queue.queue_id
        self._cluster.ask(partial(work.trim, kafka_name=name, partition=number, before=before), trimmed)

    def gone(self, name: str) -> None:
        """The topic is not there any more, or is another one."""
        self._trimmed = {queue: before for queue, before in self._trimmed.items() if queue.topic != name}
