"""TopicUpkeep: changes to topics that no caller requests: required settings, and records to delete."""

from __future__ import annotations

import logging
from functools import partial

from backend.kafka.clients import admin as topic_admin
from backend.kafka.clients.admin import Cluster
from backend.kafka.topic_info import ClusterTopic, KafkaTopic
from backend.records import QueueRef

log = logging.getLogger(__name__)


class TopicUpkeep:
    """Changes topics without a caller's request, in the cluster's thread.

    Topics of delayed messages get unlimited retention; records that no group needs any more are deleted.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._trimmed: dict[QueueRef, int] = {}

    def set_unlimited_retention(self, name: str, described: ClusterTopic) -> None:
        """Set unlimited retention for a topic of delayed messages that another program made or changed."""

        def on_done(_: ClusterTopic | None, error: Exception | None) -> None:
            if error is not None:
                log.error(
                    "delayed messages in topic %s may expire by age or size: %s", described.kafka_name, error
                )
            else:
                log.warning(
                    "set unlimited retention for topic %s: it has delayed messages", described.kafka_name
                )

        self._cluster.run_job(partial(topic_admin.set_required_settings, name=name, topic=described), on_done)

    def trim_queue(self, topic: KafkaTopic, queue: QueueRef, before: int) -> None:
        """Delete the records of one of the topic's queues below an offset; see Backend.trim."""
        if before <= self._trimmed.get(queue, 0):
            return
        self._trimmed[queue] = before

        def on_done(_: None, error: Exception | None) -> None:
            if error is not None:
                self._trimmed.pop(queue, None)
                log.warning("cannot delete unneeded records of topic %s: %s", topic.kafka_name, error)

        name, number = topic.kafka_name, queue.queue_id
        self._cluster.run_job(
            partial(topic_admin.delete_records, kafka_name=name, partition=number, before=before), on_done
        )

    def forget_topic(self, name: str) -> None:
        """Remove the notes about a topic that was deleted or replaced."""
        self._trimmed = {queue: before for queue, before in self._trimmed.items() if queue.topic != name}
