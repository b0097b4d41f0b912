"""The topics of the cluster, described and changed by one native thread with an AdminClient.

Everything here but `Cluster.ask` runs in a native thread, one job after the other, and returns plain data.
The names and settings of the system's own three topics are here too.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
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
from backend.kafka.errors import LastError, has_code, is_gone, translated
from backend.kafka.options import KafkaOptions
from backend.kafka.topic_info import ClusterTopic, kafka_settings
from backend.records import Durability, TopicInfo
from ddmq_common.errors import CallerError, RemoteError, UnknownTopicError
from ddmq_common.names import COMPACTED_TOPICS, DELAY_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
log = logging.getLogger(__name__)
ASK_S = 5.0  # for one question
SURVEY_S = 3.0  # then the cluster counts as not answering
CHANGE_S = 20.0  # for one change: a controller may have to be elected first
SETTLE_S = 20.0  # for what Kafka does after it has answered: a topic's end, a partition's first leader
PAUSE_S = 0.02
RECORD_BYTES_MAX = 16 << 20  # of one record of ours; the cluster's own bound holds for messages only
COORDINATION_KEPT_MS = 3_600_000
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
    "retention.ms": str(COORDINATION_KEPT_MS),
    "retention.bytes": "-1",
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}
# what waits there may be older than any retention
OF_WAITING = frozenset((DELAY_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC))
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}  # of waiting messages
COMPACTED = {**SYSTEM_COMPACTED, "max.message.bytes": str(RECORD_BYTES_MAX)}  # of COMPACTED_TOPICS


class Survey(NamedTuple):
    """All names that were let in, those of them that were looked at, and the cluster's id."""

    names: frozenset[str]
    looked_at: tuple[ClusterTopic, ...]
    cluster_id: str


class Cluster:
    """Gives jobs to the thread; what they come to follows on the hub."""

    def __init__(self, options: KafkaOptions, bridge: Bridge) -> None:
        self._bridge = bridge
        self._options = options
        self._jobs: queue.SimpleQueue[Callable[[AdminClient], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="kafka-admin", daemon=True)
        self.heard = LastError(options)
        self.admin = AdminClient({**options.client(client_id="ddmq-admin"), "error_cb": self.heard})  # type: ignore[dict-item]
        self._thread.start()

    def ask(
        self, job: Callable[[AdminClient], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        """Run `job` in the thread, then `done(value, error)` on the hub."""

        def run(admin: AdminClient) -> None:
            try:
                value = job(admin)
                admin.poll(0)  # errors of connections are told to `heard`
            except Exception as error:  # who asked decides
                admin.poll(0)
                self._bridge.call(done, None, error)
            else:
                self._bridge.call(done, value, None)

        self._jobs.put(run)

    def close(self) -> None:
        """Take no more jobs; the one under way ends by itself."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job(self.admin)


def survey(
    admin: AdminClient,
    let_in: Callable[[str], bool],
    known: Mapping[str, int] | None,
    before: Mapping[str, int],
    grown: Callable[[str], object],
) -> Survey:
    """What is there. Looked at are topics whose number of partitions is not as `known`; None: all of them.
    `grown` is told of those that have more than `before`."""
    found = admin.list_topics(timeout=SURVEY_S)
    names = {name: len(topic.partitions) for name, topic in found.topics.items() if let_in(name)}
    wanted = [name for name, count in names.items() if known is None or known.get(name) != count]
    looked_at = tuple(described(admin, wanted))
    for each in looked_at:
        if each.partitions > before.get(each.kafka_name, each.partitions):
            grown(each.kafka_name)
    return Survey(frozenset(names), looked_at, found.cluster_id or "")


def described(admin: AdminClient, names: Iterable[str]) -> list[ClusterTopic]:
    """Those of `names` that are there."""
    wanted = list(names)
    if not wanted:
        return []
    asked = admin.describe_topics(
        TopicCollection(wanted), request_timeout=ASK_S, include_authorized_operations=True
    )
    there = {}
    for name, answer in asked.items():
        try:
            there[name] = answer.result()
        except Exception as error:
            if not is_gone(error):
                raise
    return _with_settings(admin, there)


def _with_settings(admin: AdminClient, there: Mapping[str, Any]) -> list[ClusterTopic]:
    if not there:
        return []
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in there]
    found = []
    for resource, answer in admin.describe_configs(resources, request_timeout=ASK_S).items():
        topic = there[resource.name]
        try:
            settings = {name: entry.value for name, entry in answer.result().items()}
        except Exception as error:
            if is_gone(error):
                continue
            if not has_code(error, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                raise
            settings = {}  # this user may not see them
        bytes_max = int(settings.get("max.message.bytes") or 1_048_588)
        flushed = settings.get("flush.messages") == "1"
        kept = not settings or all(settings.get(name) == value for name, value in KEPT.items())
        compacted = settings.get("cleanup.policy", "compact") == "compact"
        keyed = "compact" in (settings.get("cleanup.policy") or "")
        allowed = topic.authorized_operations
        replicas = min((len(part.replicas) for part in topic.partitions), default=1)
        partitions = len(topic.partitions)
        topic_id = str(topic.topic_id)
        terms = [settings.get(name) for name in ("min.insync.replicas", "retention.ms")]
        min_insync, retention_ms = [None if value is None else int(value) for value in terms]
        found.append(
            ClusterTopic(
                resource.name,
                topic_id,
                partitions,
                replicas,
                bytes_max,
                flushed,
                kept,
                min_insync,
                retention_ms,
                compacted,
                keyed,
                not allowed or AclOperation.WRITE in allowed,
            )
        )
    return found


def create(admin: AdminClient, options: KafkaOptions, name: str, info: TopicInfo) -> ClusterTopic:
    """Make the topic `name`, or find it made; ready to be written to when this returns."""
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
    settings.update(keeping(info.name) or kafka_settings(info))
    copies = info.replication_factor or options.replication_factor or -1
    topic = NewTopic(name, queues, copies, config=settings)
    [answer] = admin.create_topics([topic], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if has_code(error, KafkaError.TOPIC_ALREADY_EXISTS):
            return _seen(admin, name, 1)
        raise translated(error, f"topic {name} cannot be made") from error
    found = _seen(admin, name, queues)
    try:
        check_copies(info, found)
    except CallerError:
        delete(admin, name)  # nobody could write to it
        raise
    if durable and found.replicas < 2:  # with nobody else who has it, it must be on the disk
        found = flush_each(admin, found)
    touch(admin, found)
    return found


def change(admin: AdminClient, found: ClusterTopic, info: TopicInfo) -> tuple[ClusterTopic, bool]:
    """Make of the topic what `info` says; whether settings of Kafka's were changed."""
    if info.replication_factor not in (None, found.replicas):
        raise CallerError(
            f"topic {info.name}: replication_factor is {info.replication_factor}; it has {found.replicas},"
            " and kafka-reassign-partitions.sh alone changes that of partitions that are there"
        )
    check_copies(info, found)
    if info.queues > found.partitions:
        found = grow(admin, found.kafka_name, info.queues)
    there = {"min.insync.replicas": str(found.min_insync), "retention.ms": str(found.retention_ms)}
    wanted = {name: value for name, value in kafka_settings(info).items() if value != there[name]}
    if info.durability >= Durability.DURABLE and found.replicas < 2 and not found.flushed:
        wanted["flush.messages"] = "1"
    if wanted:
        _set(admin, found, wanted)
    flushed = found.flushed or "flush.messages" in wanted
    min_insync = found.min_insync if info.min_insync is None else info.min_insync
    retention_ms = found.retention_ms if info.retention_ms is None else info.retention_ms
    found = found._replace(flushed=flushed, min_insync=min_insync, retention_ms=retention_ms)
    return found, bool(wanted)


def check_copies(info: TopicInfo, found: ClusterTopic) -> None:
    """Raises CallerError where there are fewer copies than have to have what is answered."""
    if info.durability is Durability.REPLICATED and found.replicas < 2:
        raise CallerError(
            f"topic {info.name}: durability is replicated; allowed with one copy: sync, written"
        )
    if info.min_insync is not None and info.min_insync > found.replicas:
        raise CallerError(
            f"topic {info.name}: min_insync is {info.min_insync}; allowed: at most {found.replicas}"
        )


def _seen(admin: AdminClient, name: str, queues: int) -> ClusterTopic:
    """The topic once the brokers know of it with so many queues."""
    end = time.monotonic() + SETTLE_S
    while True:
        found = described(admin, [name])
        if found and found[0].partitions >= queues:
            return found[0]
        if time.monotonic() >= end:
            raise RemoteError(f"topic {name} was made in Kafka and is not to be seen after {SETTLE_S:g} s")
        time.sleep(PAUSE_S)


def flush_each(admin: AdminClient, found: ClusterTopic) -> ClusterTopic:
    """Have each message of the topic synced before it is answered."""
    _set(admin, found, {"flush.messages": "1"})
    return found._replace(flushed=True)


def keeping(name: str) -> Mapping[str, str]:
    """The settings that a topic (by our name) must have so that nothing in it goes too soon; mostly none."""
    if name in OF_WAITING:
        return KEPT
    return COMPACTED if name in COMPACTED_TOPICS else {}


def keeps(name: str, found: ClusterTopic) -> bool:
    """Whether it has them."""
    return (found.unlimited or name not in OF_WAITING) and (found.compacted or name not in COMPACTED_TOPICS)


def keep(admin: AdminClient, name: str, found: ClusterTopic) -> ClusterTopic:
    """Have nothing in the topic go too soon."""
    _set(admin, found, keeping(name))
    return found


def trim(admin: AdminClient, kafka_name: str, partition: int, before: int) -> None:
    """Delete the records of a partition below an offset; the brokers do it segment by segment."""
    asked = [TopicPartition(kafka_name, partition, before)]
    for answer in admin.delete_records(asked, request_timeout=CHANGE_S).values():
        answer.result()


def _set(admin: AdminClient, found: ClusterTopic, settings: Mapping[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, found.kafka_name, incremental_configs=entries)
    [answer] = admin.incremental_alter_configs([resource], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
        raise translated(error, f"topic {found.kafka_name} cannot be set to {wanted}") from error


def grow(admin: AdminClient, found_name: str, queues: int) -> ClusterTopic:
    """Give the topic so many queues."""
    [answer] = admin.create_partitions([NewPartitions(found_name, queues)], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if not has_code(error, KafkaError.INVALID_PARTITIONS):  # it has as many by now, or more
            raise translated(error, f"topic {found_name} cannot grow to {queues} queues") from error
    found = _seen(admin, found_name, queues)
    touch(admin, found)
    return found


def touch(admin: AdminClient, found: ClusterTopic) -> None:
    """Wait until each partition has a leader that answers: the first writes do not have to."""
    end = time.monotonic() + SETTLE_S
    left = set(range(found.partitions))
    latest: Any = OffsetSpec
    while left and time.monotonic() < end:
        asked = {TopicPartition(found.kafka_name, number): latest.latest() for number in left}
        for place, answer in admin.list_offsets(asked, request_timeout=ASK_S).items():
            if answer.exception() is None:
                left.discard(place.partition)
        if left:
            time.sleep(PAUSE_S)


def delete(admin: AdminClient, name: str) -> None:
    """End the topic; returns when the brokers say that it is gone."""
    [answer] = admin.delete_topics([name], request_timeout=CHANGE_S).values()
    try:
        answer.result()
    except Exception as error:
        if is_gone(error):
            raise UnknownTopicError(f"topic {name} does not exist in Kafka") from error
        raise translated(error, f"topic {name} cannot be deleted") from error
    end = time.monotonic() + SETTLE_S
    while described(admin, [name]):
        if time.monotonic() >= end:
            raise RemoteError(f"topic {name} was deleted in Kafka and is still there after {SETTLE_S:g} s")
        time.sleep(PAUSE_S)


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
            there = admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics
            counts = {name: len(there[name].partitions) for name in names if name in there}
            if len(counts) == len(names) and all(counts.values()):
                return counts
            _make(admin, options, [name for name in names if name not in there])
        except KafkaException as error:
            admin.poll(0)  # tells its `error_cb`
            trouble(error)
            time.sleep(RETRY_PAUSE_S)
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
