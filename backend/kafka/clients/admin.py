"""The topics of the cluster, described and changed by one native thread with an AdminClient.

Everything here except `Cluster.run_job` runs in that native thread, one job after the other, and returns
plain data. The names and settings of the system's own three topics are here too.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from backend.kafka.clients.bridge import Bridge
from backend.kafka.clients.reachability import find_unreachable
from backend.kafka.errors import LastError, has_code, is_unknown_topic, to_ddmq_error
from backend.kafka.options import KafkaOptions
from backend.kafka.targets import why_blocked
from backend.kafka.topic_info import ClusterTopic, kafka_settings
from backend.records import Durability, TopicInfo
from ddmq_common.errors import CallerError, RemoteError, UnknownTopicError
from ddmq_common.names import COMPACTED_TOPICS, DELAY_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
log = logging.getLogger(__name__)
REQUEST_S = 5.0  # for one question
SURVEY_S = 3.0  # then the cluster counts as not answering
FIRST_ANSWER_S = 1.0  # then another broker is asked: the first one may just have been lost
CHANGE_S = 20.0  # for one change: a controller may have to be elected first
SETTLE_S = 20.0  # for what Kafka does after it has answered: a topic's end, a partition's first leader
PAUSE_S = 0.02
RECORD_BYTES_MAX = 16 << 20  # of one record of ours; the cluster's own bound holds for messages only
COORDINATION_RETENTION_MS = 3_600_000
ANSWER_TIMEOUT_S = 2.0  # then the cluster counts as not answering
RETRY_PAUSE_S = 0.5
SYSTEM_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 << 20),
    "segment.ms": "3600000",
    "min.cleanable.dirty.ratio": "0.3",
}
_DELETED = {
    "cleanup.policy": "delete",
    "retention.ms": str(COORDINATION_RETENTION_MS),
    "retention.bytes": "-1",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}
# what waits there may be older than any retention
WAITING_TOPICS = frozenset((DELAY_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC))
UNLIMITED = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # of waiting messages
COMPACTED = {**SYSTEM_COMPACTED, "max.message.bytes": str(RECORD_BYTES_MAX)}  # of COMPACTED_TOPICS


class Survey(NamedTuple):
    """The result of one survey of the cluster's topics.

    It has our name of each visible topic by its name in Kafka, descriptions of those that changed, the
    cluster's id, and the number of all topics in the cluster.
    `blocked`: the topics, by their names in Kafka, with a partition that can take no record, and the reasons.
    `has_probed`: it has tried to connect to the leaders that no other broker can replace. `leaderless`: the
    partitions without a leader.
    """

    names: Mapping[str, str]
    described: tuple[ClusterTopic, ...]
    cluster_id: str
    topics: int = 0
    blocked: Mapping[str, str] = {}
    has_probed: bool = False
    leaderless: frozenset[tuple[str, int]] = frozenset()


class Cluster:
    """Runs jobs with the AdminClient in its native thread and passes their results to the hub."""

    def __init__(self, options: KafkaOptions, bridge: Bridge) -> None:
        self._bridge = bridge
        self._options = options
        self._jobs: queue.SimpleQueue[Callable[[AdminClient], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kafka-admin", daemon=True)
        self.last_error = LastError(options)
        settings = {**options.client_settings(client_id="ddmq-admin"), "error_cb": self.last_error}
        self.admin = AdminClient(settings)  # type: ignore[arg-type]
        self._thread.start()

    def run_job(
        self, job: Callable[[AdminClient], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run `job` in the thread, then `done(value, error)` on the hub."""

        def run(admin: AdminClient) -> None:
            try:
                value = job(admin)
                admin.poll(0)  # reports errors of connections
            except Exception as error:  # the caller decides
                admin.poll(0)
                self._bridge.call(done, None, error)
            else:
                self._bridge.call(done, value, None)

        self._jobs.put(run)

    def close(self) -> None:
        """Accept no more jobs; a running job still finishes."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job(self.admin)


def survey_topics(
    admin: AdminClient,
    select: Callable[[Collection[str]], Mapping[str, str]],
    unchanged: Mapping[str, int] | None,
    before: Mapping[str, int],
    on_grown: Callable[[str], object],
    min_insync: Callable[[str], int] = lambda name: 0,
    must_probe: bool = False,
) -> Survey:
    """List the cluster's topics and describe those whose number of partitions differs from `unchanged`.

    With `unchanged` None, describe all of them. `select` returns our names of the visible topics by their
    names in Kafka. `on_grown` is called with each topic that has more partitions than in `before`.
    `min_insync(name)`: how many replicas of a topic must be in sync, 0 if that is unknown. `must_probe`: try
    to connect to the leaders that no other broker can replace.
    """
    metadata = _list_topics(admin)
    names = select(metadata.topics.keys())
    counts = {name: len(metadata.topics[name].partitions) for name in names}
    changed = [name for name, count in counts.items() if unchanged is None or unchanged.get(name) != count]
    looked_at = tuple(describe_topics(admin, changed))
    for each in looked_at:
        if each.partitions > before.get(each.kafka_name, each.partitions):
            on_grown(each.kafka_name)
    blocked = _find_blocked(metadata, names, min_insync, must_probe)
    leaderless = frozenset(
        (name, partition.id)
        for name in names
        for partition in metadata.topics[name].partitions.values()
        if partition.leader < 0
    )
    return Survey(
        names, looked_at, metadata.cluster_id or "", len(metadata.topics), blocked, must_probe, leaderless
    )


def _list_topics(admin: AdminClient) -> Any:
    """Return the metadata of all topics.

    A request is not answered if its broker is lost meanwhile, so it is repeated once.
    """
    try:
        return admin.list_topics(timeout=FIRST_ANSWER_S)
    except KafkaException:
        return admin.list_topics(timeout=SURVEY_S - FIRST_ANSWER_S)


def _find_blocked(
    metadata: Any, names: Collection[str], min_insync: Callable[[str], int], must_probe: bool
) -> dict[str, str]:
    """Return the topics among `names` with a partition that can take no record now, and the reasons."""
    topics, blocked = metadata.topics, {}
    unreachable: frozenset[int] = frozenset()
    if must_probe:
        visible = [partition for name in names for partition in topics[name].partitions.values()]
        unreachable = find_unreachable(metadata.brokers, visible)
    for name in names:
        partitions = topics[name].partitions
        if unreachable or any(
            len(partition.isrs) < len(partition.replicas) or partition.leader < 0
            for partition in partitions.values()
        ):
            reason = why_blocked(partitions, partitions, min_insync(name), unreachable)
            if reason:
                blocked[name] = reason
    return blocked


def list_names(admin: AdminClient) -> frozenset[str]:
    """Return the names of all topics of the cluster."""
    return frozenset(admin.list_topics(timeout=SURVEY_S).topics)


def describe_topics(admin: AdminClient, names: Iterable[str]) -> list[ClusterTopic]:
    """Return the existing topics among `names`."""
    requested = list(names)
    if not requested:
        return []
    answers = admin.describe_topics(
        TopicCollection(requested), request_timeout=REQUEST_S, include_authorized_operations=True
    )
    existing = {}
    for name, answer in answers.items():
        try:
            existing[name] = answer.result()
        except Exception as error:
            if not is_unknown_topic(error):
                raise
    return _add_settings(admin, existing)


def _add_settings(admin: AdminClient, existing: Mapping[str, Any]) -> list[ClusterTopic]:
    if not existing:
        return []
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in existing]
    topics = []
    for resource, answer in admin.describe_configs(resources, request_timeout=REQUEST_S).items():
        topic = existing[resource.name]
        try:
            settings = {name: entry.value for name, entry in answer.result().items()}
        except Exception as error:
            if is_unknown_topic(error):
                continue
            if not has_code(error, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                raise
            settings = {}  # this user may not see them
        bytes_max = int(settings.get("max.message.bytes") or 1_048_588)
        flushed = settings.get("flush.messages") == "1"
        unlimited = not settings or all(settings.get(name) == value for name, value in UNLIMITED.items())
        compacted = settings.get("cleanup.policy", "compact") == "compact"
        keyed = "compact" in (settings.get("cleanup.policy") or "")
        allowed = topic.authorized_operations
        replicas = min((len(partition.replicas) for partition in topic.partitions), default=1)
        partitions = len(topic.partitions)
        topic_id = str(topic.topic_id)
        terms = [settings.get(name) for name in ("min.insync.replicas", "retention.ms")]
        min_insync, retention_ms = [None if value is None else int(value) for value in terms]
        topics.append(
            ClusterTopic(
                resource.name,
                topic_id,
                partitions,
                replicas,
                bytes_max,
                flushed,
                unlimited,
                min_insync,
                retention_ms,
                compacted,
                keyed,
                not allowed or AclOperation.WRITE in allowed,
            )
        )
    return topics


def create_topic(admin: AdminClient, options: KafkaOptions, name: str, info: TopicInfo) -> ClusterTopic:
    """Create the topic `name` unless it exists, and return it once it can be written to."""
    queues, durable = info.queues, info.durability >= Durability.DURABLE
    settings = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        "max.message.bytes": str(options.message_bytes_max),
    }
    if options.min_insync:
        settings["min.insync.replicas"] = str(options.min_insync)
    if options.retention_ms:
        settings["retention.ms"] = str(options.retention_ms)
    settings.update(required_settings(info.name) or kafka_settings(info))
    copies = info.replication_factor or options.replication_factor or -1
    new_topic = NewTopic(name, queues, copies, config=settings)
    [answer] = admin.create_topics([new_topic], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if has_code(error, KafkaError.TOPIC_ALREADY_EXISTS):
            return _await_queues(admin, name, 1)
        raise to_ddmq_error(error, f"topic {name} cannot be made") from error
    topic = _await_queues(admin, name, queues)
    try:
        check_copies(info, topic)
    except CallerError:
        delete_topic(admin, name)  # no program could write to it
        raise
    if durable and topic.replicas < 2:  # without another copy it must be on the disk
        topic = set_flush_each(admin, topic)
    await_leaders(admin, topic)
    return topic


def change_topic(admin: AdminClient, topic: ClusterTopic, info: TopicInfo) -> tuple[ClusterTopic, bool]:
    """Change the topic to match `info`; return it, and whether any of Kafka's own settings were changed."""
    if info.replication_factor not in (None, topic.replicas):
        raise CallerError(
            f"topic {info.name}: replication_factor is {info.replication_factor}; it has {topic.replicas},"
            " and kafka-reassign-partitions.sh alone changes that of partitions that are there"
        )
    check_copies(info, topic)
    if info.queues > topic.partitions:
        topic = add_queues(admin, topic.kafka_name, info.queues)
    present_settings = {"min.insync.replicas": str(topic.min_insync), "retention.ms": str(topic.retention_ms)}
    new_settings = {
        name: value for name, value in kafka_settings(info).items() if value != present_settings[name]
    }
    if info.durability >= Durability.DURABLE and topic.replicas < 2 and not topic.flushed:
        new_settings["flush.messages"] = "1"
    if new_settings:
        _set_settings(admin, topic, new_settings)
    flushed = topic.flushed or "flush.messages" in new_settings
    min_insync = topic.min_insync if info.min_insync is None else info.min_insync
    retention_ms = topic.retention_ms if info.retention_ms is None else info.retention_ms
    topic = topic._replace(flushed=flushed, min_insync=min_insync, retention_ms=retention_ms)
    return topic, bool(new_settings)


def check_copies(info: TopicInfo, topic: ClusterTopic) -> None:
    """Raise CallerError if the topic has fewer replicas than the requested durability needs."""
    if info.durability is Durability.REPLICATED and topic.replicas < 2:
        raise CallerError(
            f"topic {info.name}: durability is replicated; allowed with one copy: sync, written"
        )
    if info.min_insync is not None and info.min_insync > topic.replicas:
        raise CallerError(
            f"topic {info.name}: min_insync is {info.min_insync}; allowed: at most {topic.replicas}"
        )


def _await_queues(admin: AdminClient, name: str, queues: int) -> ClusterTopic:
    """Wait until the brokers report the topic with `queues` partitions, and return it."""
    end = time.monotonic() + SETTLE_S
    while True:
        topics = describe_topics(admin, [name])
        if topics and topics[0].partitions >= queues:
            return topics[0]
        if time.monotonic() >= end:
            raise RemoteError(f"topic {name} was made in Kafka and is not to be seen after {SETTLE_S:g} s")
        time.sleep(PAUSE_S)


def set_flush_each(admin: AdminClient, topic: ClusterTopic) -> ClusterTopic:
    """Configure the topic so that Kafka syncs each message before it acknowledges it."""
    _set_settings(admin, topic, {"flush.messages": "1"})
    return topic._replace(flushed=True)


def required_settings(name: str) -> Mapping[str, str]:
    """Return the Kafka settings that the topic `name` needs so that no record expires early; usually none."""
    if name in WAITING_TOPICS:
        return UNLIMITED
    return COMPACTED if name in COMPACTED_TOPICS else {}


def has_required_settings(name: str, topic: ClusterTopic) -> bool:
    """Return whether a topic has its required settings."""
    return (topic.unlimited or name not in WAITING_TOPICS) and (
        topic.compacted or name not in COMPACTED_TOPICS
    )


def set_required_settings(admin: AdminClient, name: str, topic: ClusterTopic) -> ClusterTopic:
    """Set a topic's required settings."""
    _set_settings(admin, topic, required_settings(name))
    return topic


def delete_records(admin: AdminClient, kafka_name: str, partition: int, before: int) -> None:
    """Delete the records of a partition below offset `before`; the brokers delete whole segments."""
    positions = [TopicPartition(kafka_name, partition, before)]
    for answer in admin.delete_records(positions, request_timeout=CHANGE_S).values():
        answer.result()


def _set_settings(admin: AdminClient, topic: ClusterTopic, settings: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic.kafka_name, incremental_configs=entries)
    [answer] = admin.incremental_alter_configs([resource], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        text = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise to_ddmq_error(error, f"topic {topic.kafka_name} cannot be set to {text}") from error


def add_queues(admin: AdminClient, name: str, queues: int) -> ClusterTopic:
    """Increase the topic's partitions to `queues`, if it has fewer; return the topic."""
    [answer] = admin.create_partitions([NewPartitions(name, queues)], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if not has_code(error, KafkaError.INVALID_PARTITIONS):  # it has as many by now, or more
            raise to_ddmq_error(error, f"topic {name} cannot grow to {queues} queues") from error
    topic = _await_queues(admin, name, queues)
    await_leaders(admin, topic)
    return topic


def await_leaders(admin: AdminClient, topic: ClusterTopic) -> None:
    """Wait until each partition has a leader that answers, so that the first writes are not delayed."""
    end = time.monotonic() + SETTLE_S
    remaining = set(range(topic.partitions))
    latest: Any = OffsetSpec
    while remaining and time.monotonic() < end:
        metadata = admin.list_topics(topic.kafka_name, timeout=REQUEST_S).topics[topic.kafka_name]
        with_leader = {number for number, each in metadata.partitions.items() if each.leader >= 0}
        specs = {
            TopicPartition(topic.kafka_name, number): latest.latest() for number in remaining & with_leader
        }
        if not specs:  # see queries.Offsets
            time.sleep(PAUSE_S)
            continue
        for position, answer in admin.list_offsets(specs, request_timeout=REQUEST_S).items():
            if answer.exception() is None:
                remaining.discard(position.partition)
        if remaining:
            time.sleep(PAUSE_S)


def delete_topic(admin: AdminClient, name: str) -> None:
    """Delete the topic and wait until the brokers confirm it."""
    [answer] = admin.delete_topics([name], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if is_unknown_topic(error):
            raise UnknownTopicError(f"topic {name} does not exist in Kafka") from error
        raise to_ddmq_error(error, f"topic {name} cannot be deleted") from error
    end = time.monotonic() + SETTLE_S
    while describe_topics(admin, [name]):
        if time.monotonic() >= end:
            raise RemoteError(f"topic {name} was deleted in Kafka and is still there after {SETTLE_S:g} s")
        time.sleep(PAUSE_S)


class SystemTopics(NamedTuple):
    """The names, in Kafka, of the engine's own topics."""

    settings: str
    progress: str
    coordination: str

    @classmethod
    def named_by(cls, options: KafkaOptions) -> SystemTopics:
        """Return the system topics' names for an installation."""
        system = options.names.system_topic
        return cls(system("settings"), system("progress"), system("coordination"))


def ensure_system_topics(
    admin: AdminClient,
    options: KafkaOptions,
    is_stopped: Callable[[], bool],
    on_error: Callable[[BaseException], None],
) -> dict[str, int]:
    """Create missing system topics and return each one's number of partitions.

    Retries after errors; returns an empty dict if `is_stopped`.
    """
    names = SystemTopics.named_by(options)
    while not is_stopped():
        try:
            there = admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
            counts = {name: len(there[name].partitions) for name in names if name in there}
            if len(counts) == len(names) and all(counts.values()):
                return counts
            _create_system_topics(admin, options, [name for name in names if name not in there])
        except KafkaException as error:
            admin.poll(0)  # tells its `error_cb`
            on_error(error)
            time.sleep(RETRY_PAUSE_S)
        else:
            time.sleep(0.05)
    return {}


def _create_system_topics(admin: AdminClient, options: KafkaOptions, missing: list[str]) -> None:
    names = SystemTopics.named_by(options)
    topics = []
    for name in missing:
        config = dict(_DELETED if name == names.coordination else SYSTEM_COMPACTED)
        config["max.message.bytes"] = str(RECORD_BYTES_MAX)
        config["unclean.leader.election.enable"] = "false"
        if options.min_insync:
            config["min.insync.replicas"] = str(options.min_insync)
        partitions = options.progress_partitions if name == names.progress else 1
        topics.append(NewTopic(name, partitions, options.replication_factor or -1, config=config))
    if not topics:
        return
    for name, answer in admin.create_topics(topics, request_timeout=REQUEST_S).items():
        try:
            answer.result()
            log.info("created topic %s", name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
