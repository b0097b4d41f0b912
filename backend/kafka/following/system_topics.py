"""The three topics of the system's own: their names, and how they are made. Belongs to a native thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from backend.kafka.options import KafkaOptions

log = logging.getLogger(__name__)
RECORD_BYTES_MAX = 16 << 20  # of one record of ours; the cluster's own bound holds for messages only
COORDINATION_KEPT_MS = 3_600_000
ASK_S = 5.0
LOOK_S = 2.0  # then the cluster counts as not answering
PAUSE_S = 0.5
SYSTEM_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.3",
}
_DELETED = {
    "cleanup.policy": "delete",
    "retention.ms": str(COORDINATION_KEPT_MS),
    "retention.bytes": "-1",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}


class SystemTopics(NamedTuple):
    """Their names in Kafka."""

    settings: str
    progress: str
    coordination: str

    @classmethod
    def of(cls, options: KafkaOptions) -> SystemTopics:
        """Those of an installation."""
        system = options.names.system
        return cls(system("settings"), system("progress"), system("coordination"))


def made(
    admin: AdminClient,
    options: KafkaOptions,
    stopped: Callable[[], bool],
    trouble: Callable[[BaseException], None],
) -> dict[str, int]:
    """Make what is missing; gives the partitions of each. Tries until it works, or nothing if `stopped`."""
    names = SystemTopics.of(options)
    while not stopped():
        try:
            there = admin.list_topics(timeout=LOOK_S).topics
            counts = {name: len(there[name].partitions) for name in names if name in there}
            if len(counts) == len(names) and all(counts.values()):
                return counts
            _make(admin, options, [name for name in names if name not in there])
        except KafkaException as error:
            admin.poll(0)  # tells its `error_cb`
            trouble(error)
            time.sleep(PAUSE_S)
        else:
            time.sleep(0.05)
    return {}


def _make(admin: AdminClient, options: KafkaOptions, missing: list[str]) -> None:
    names = SystemTopics.of(options)
    wanted = []
    for name in missing:
        config = dict(_DELETED if name == names.coordination else SYSTEM_COMPACTED)
        config["max.message.bytes"] = str(RECORD_BYTES_MAX)
        config["unclean.leader.election.enable"] = "false"
        if options.min_insync:
            config["min.insync.replicas"] = str(options.min_insync)
        partitions = options.progress_partitions if name == names.progress else 1
        wanted.append(NewTopic(name, partitions, options.replication_factor or -1, config=config))
    if not wanted:
        return
    for name, answer in admin.create_topics(wanted, request_timeout=ASK_S).items():
        try:
            answer.result()
            log.info("topic %s was made", name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
