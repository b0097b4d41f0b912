"""Open the Kafka engine: find the cluster, check that it is the right one, and wait for its state.

An installation belongs to one cluster: offsets, progress and delays of one mean nothing on another. The
cluster's id is recorded twice: in a file of the local data directory (its delay stores follow that cluster's
log), and in the settings topic, which a copy of the topics to another cluster takes along.

ClusterCheck reads the settings of a cluster once, within a deadline, for the rules of cluster_rules.py. It
belongs to a native thread.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gevent
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ClusterMetadata, ConfigResource

from backend.kafka.admission import TopicAdmission
from backend.kafka.clients.admin import WAITING_TOPICS, SystemTopics
from backend.kafka.cluster_rights import NEEDED_RIGHTS, find_denied
from backend.kafka.cluster_rules import (
    REPLICAS,
    CheckedResource,
    ClusterFacts,
    ClusterFinding,
    Kind,
    find_version_error,
    find_violations,
)
from backend.kafka.coordination.feature_level import (
    CLUSTER_SETTING,
    ClusterRecord,
    format_cluster_record,
    parse_cluster_record,
    recorded_level,
)
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.errors import LastError, client_settings, has_code, is_unknown_topic
from backend.kafka.options import KafkaOptions
from backend.kafka.state.tables import SettingsState
from backend.kafka.tokens import TokenProvider
from backend.records import CommitBatch
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError, DdmqError, RemoteError
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import COMPACTED_TOPICS, SENDS_TOPIC, is_internal
from ddmq_common.native_threads import in_thread

log = logging.getLogger(__name__)
POLL_INTERVAL_S, PAUSE_S, LOG_INTERVAL_S = 0.01, 0.5, 10.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(
    options: KafkaOptions,
    *,
    clock: Clock,
    data_dir: Path | None = None,
    metrics: Registry | None = None,
    on_waiting: Callable[[str], object] = lambda reason: None,
) -> KafkaBackend:
    """Open the Kafka engine; return when the cluster answers and its state was read.

    Blocks the calling greenlet. While the cluster does not answer, the reason is logged at once and then
    every LOG_INTERVAL_S; `on_waiting` is called with it at each poll. Settings of the cluster that break a
    promise are logged a moment later. `data_dir`: the local directory, which belongs to one cluster. Raises
    ConfigError if it belongs to another one, and for settings that librdkafka rejects.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    cluster_id = _await_cluster(options, clock, on_waiting)
    if data_dir is not None:
        check_directory(data_dir, cluster_id, options.bootstrap)
    backend = KafkaBackend(options, clock, metrics)
    try:
        next_log_at = clock.monotonic() + LOG_INTERVAL_S
        while not (health := backend.health()).ready:
            on_waiting(health.reason)
            if clock.monotonic() >= next_log_at:
                next_log_at += LOG_INTERVAL_S
                _log_waiting(options, health.reason)
            gevent.sleep(POLL_INTERVAL_S)
            check_recorded(backend, options, cluster_id)
        check_recorded(backend, options, cluster_id)
        record_cluster_id(backend, clock, data_dir, cluster_id)
    except BaseException:
        backend.close()
        raise
    start_cluster_check(options, backend.state.topic_infos)
    return backend


def _await_cluster(options: KafkaOptions, clock: Clock, on_waiting: Callable[[str], object]) -> str:
    """Wait until the cluster answers, and return its id."""
    next_log_at = clock.monotonic()
    check: ClusterCheck | None = None
    while True:
        try:
            check = check or in_thread(ClusterCheck, options)
            cluster_id = in_thread(check.read_cluster_id)
            in_thread(check.check_versions)
            return cluster_id
        except RemoteError as error:
            reason = str(error)
        on_waiting(reason)
        if clock.monotonic() >= next_log_at:
            next_log_at = clock.monotonic() + LOG_INTERVAL_S
            _log_waiting(options, reason)
        gevent.sleep(PAUSE_S)


def _log_waiting(options: KafkaOptions, reason: str) -> None:
    log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": reason})


CHECK_TIMEOUT_S = 15.0  # for all of it
ANSWER_S = 2.0  # then the cluster counts as not answering
BROKERS_MAX = 32  # whose settings are read; all brokers have the same
TOPICS_AT_ONCE = 200
TRANSACTIONS = "__transaction_state"
T = TypeVar("T")
_HIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class ClusterCheck:
    """Reads the settings and the id of a cluster, within a deadline.

    Raises RemoteError, with the reason, if the cluster does not answer in time, and ConfigError for settings
    that librdkafka rejects.
    """

    def __init__(self, options: KafkaOptions, wait_s: float = CHECK_TIMEOUT_S) -> None:
        self._options = options
        self._end = time.monotonic() + wait_s
        self._last_error = LastError(options)
        if options.loaded_provider is not None:
            self._fetch_token(options.loaded_provider)
        settings = {**options.client_settings(client_id="ddmq-check"), "error_cb": self._last_error}
        with client_settings(options):
            self._admin = AdminClient(settings)  # type: ignore[arg-type]

    def _fetch_token(self, tokens: TokenProvider) -> None:
        try:
            tokens.fetch()
        except RemoteError as error:
            raise RemoteError(f"Kafka at {self._options.bootstrap} is not asked: {error}") from error

    def read_facts(self, created: Iterable[str] | None = None) -> ClusterFacts:
        """Read the settings that the cluster rules check.

        `created`: the topics that this installation created; None reads them from the settings topic.
        """
        return self._call_cluster(lambda: self._read_facts(None if created is None else frozenset(created)))

    def read_cluster_id(self) -> str:
        """Return the cluster's id, asking the cluster each time."""
        return self._call_cluster(lambda: str(self._admin.list_topics(timeout=ANSWER_S).cluster_id or ""))

    def check_versions(self) -> None:
        """Raise ConfigError if a broker is too old. Nothing is known if this user may not see that."""
        self._end = time.monotonic() + CHECK_TIMEOUT_S  # the cluster may have been away for longer
        brokers = self._call_cluster(
            lambda: self._read_brokers(self._admin.list_topics(timeout=self._remaining_s()))
        )
        error = find_version_error(brokers)
        if error:
            raise ConfigError(f"Kafka at {self._options.bootstrap}: {error}")

    def _call_cluster(self, request: Callable[[], T]) -> T:
        try:
            return request()
        except KafkaException as error:
            self._admin.poll(0)  # tells its `error_cb`
            why = self._last_error.reason_for(
                error
            )  # the last error is retained, so that each retry has the same reason
            raise RemoteError(f"Kafka at {self._options.bootstrap} does not answer: {why}") from error

    def _remaining_s(self) -> float:
        remaining_s = self._end - time.monotonic()
        if remaining_s <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return remaining_s

    def _read_facts(self, facts: frozenset[str] | None) -> ClusterFacts:
        listed = self._admin.list_topics(timeout=self._remaining_s())
        system = SystemTopics.named_by(self._options)
        level = None
        if facts is None:
            facts = frozenset()
            if system.settings in listed.topics:
                state = self._read_settings(system.settings)
                facts = frozenset(state.topic_infos)
                level = recorded_level(state.settings, self._options.supported_level)
        admission = TopicAdmission(self._options.names)
        names = admission.select_topics(listed.topics.keys(), facts)
        kinds = {
            name: kind
            for name in listed.topics
            if (kind := self._kind_of(name, names.get(name), system, facts)) is not None
        }
        topics = [
            resource for batch in _in_batches(list(kinds)) for resource in self._read_topics(batch, kinds)
        ]
        brokers = self._read_brokers(listed)
        same_prefix_roots = tuple(admission.find_same_prefix_roots())
        return ClusterFacts(
            listed.cluster_id or "", len(listed.brokers), (*brokers, *topics), same_prefix_roots, level
        )

    def _kind_of(
        self, name: str, topic: str | None, system: SystemTopics, created: frozenset[str]
    ) -> Kind | None:
        if name in system:
            return Kind.COORDINATION if name == system.coordination else Kind.STATE
        if name == TRANSACTIONS:
            return Kind.TRANSACTIONS
        if topic is None:
            return None
        if topic in COMPACTED_TOPICS:
            return Kind.STATE
        if topic in WAITING_TOPICS:
            return Kind.DELAYED
        if topic == SENDS_TOPIC:
            return Kind.ENTRIES
        if is_internal(topic):
            return Kind.INNER
        return Kind.CREATED if topic in created else Kind.OTHERS

    def _read_settings(self, topic: str) -> SettingsState:
        """Return the content of the settings topic `topic`."""
        state = SettingsState()
        consumer = Consumer(self._options.client_settings(
            group_id=self._options.names.system_group("check"), enable_auto_commit=False,
            enable_partition_eof=True, isolation_level="read_committed", auto_offset_reset="earliest",
        ))  # fmt: skip
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(self._remaining_s())
                error = None if message is None else message.error()
                if message is None or error is not None:
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return state
                    raise KafkaException(error or KafkaError(KafkaError._TIMED_OUT))
                try:
                    state.apply(message.key() or b"", message.value())
                except DdmqError as damaged:  # the server tells it, too
                    log.warning("skipping a record of %s: %s", topic, damaged)
        finally:
            consumer.close()

    def _read_topics(self, names: list[str], kinds: Mapping[str, Kind]) -> list[CheckedResource]:
        descriptions = self._admin.describe_topics(
            TopicCollection(names), request_timeout=self._remaining_s(), include_authorized_operations=True
        )
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=self._remaining_s())
        settings = {resource.name: self._to_settings(answer) for resource, answer in answers.items()}
        checked = []
        for name, answer in descriptions.items():
            try:
                topic = answer.result(self._remaining_s())
            except KafkaException as error:
                if is_unknown_topic(error):
                    continue
                if not has_code(error, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                    raise
                checked.append(CheckedResource(name, kinds[name], None))
                continue
            copies = min((len(partition.replicas) for partition in topic.partitions), default=1)
            topic_settings = settings[name]
            checked.append(
                CheckedResource(
                    name,
                    kinds[name],
                    None if topic_settings is None else {**topic_settings, REPLICAS: str(copies)},
                    _find_missing_rights(topic.authorized_operations),
                )
            )
        return checked

    def _read_brokers(self, listed: ClusterMetadata) -> list[CheckedResource]:
        return [self._read_broker(number) for number in sorted(listed.brokers)[:BROKERS_MAX]]

    def _read_broker(self, number: int) -> CheckedResource:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        [answer] = self._admin.describe_configs([resource], request_timeout=self._remaining_s()).values()
        return CheckedResource(str(number), Kind.BROKER, self._to_settings(answer))

    def _to_settings(self, answer: Any) -> dict[str, str] | None:
        """Convert one description into settings.

        None if this user may not see them, empty if the topic is gone.
        """
        try:
            return {
                name: entry.value for name, entry in answer.result(self._remaining_s()).items() if entry.value
            }
        except KafkaException as error:
            if is_unknown_topic(error):
                return {}
            if any(has_code(error, code) for code in _HIDDEN):
                return None
            raise


def _find_missing_rights(allowed: Sequence[AclOperation] | None) -> frozenset[str]:
    """Return the needed rights that are not among the allowed operations; None: the brokers do not say."""
    if not allowed:
        return frozenset()
    names = {operation.name.replace("_", "").lower() for operation in allowed}
    return frozenset(right for right in NEEDED_RIGHTS if right.lower() not in names)


def _in_batches(names: list[str]) -> Iterable[list[str]]:
    return (names[start : start + TOPICS_AT_ONCE] for start in range(0, len(names), TOPICS_AT_ONCE))


def start_cluster_check(options: KafkaOptions, created: Iterable[str]) -> threading.Thread:
    """Check the Kafka cluster's settings in a new thread and log a warning for each promise that they
    break."""
    topics = frozenset(created)
    thread = threading.Thread(target=_log_violations, args=(options, topics), name="kafka-check", daemon=True)
    thread.start()
    return thread


def _log_violations(options: KafkaOptions, created: frozenset[str]) -> None:
    try:
        facts = ClusterCheck(options).read_facts(created)
        violations: list[ClusterFinding] = [*find_denied(facts), *find_violations(facts, options)]
    except Exception as error:  # nothing waits for it
        log.warning("the cluster's settings were not checked: %s", options.mask_secrets(str(error)))
        return
    for finding in violations:
        log.warning("a setting of Kafka's breaks a promise: %s", finding)


FILE = "kafka-cluster"  # in the data directory
WAIT_S = 10.0


def read_recorded_id(data_dir: Path) -> str:
    """Return the id of the cluster that the directory belongs to; "" if none is recorded."""
    try:
        return (data_dir / FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def check_directory(data_dir: Path, cluster_id: str, bootstrap: str) -> None:
    """Raise ConfigError if the directory belongs to another cluster."""
    recorded = read_recorded_id(data_dir)
    if recorded and recorded != cluster_id:
        raise ConfigError(
            f"{data_dir.absolute()} belongs to Kafka cluster {recorded}, and {bootstrap} is cluster"
            f" {cluster_id}: set bootstrap to that cluster's brokers, or choose another data directory;"
            " if that cluster is gone for good, move this directory away"
        )


def check_recorded(backend: KafkaBackend, options: KafkaOptions, cluster_id: str) -> None:
    """Raise ConfigError if the settings topic was copied from another cluster, or the installation is at a
    feature level that this process does not support."""
    if not backend.state.ready:
        return
    value = backend.setting(CLUSTER_SETTING)
    recorded = None if value is None else parse_cluster_record(value)
    if recorded is not None and recorded.cluster_id != cluster_id:
        topic, bootstrap = SystemTopics.named_by(options).settings, options.bootstrap
        raise ConfigError(
            f"the topic {topic} belongs to Kafka cluster {recorded.cluster_id}, and {bootstrap} is cluster"
            f" {cluster_id}: the topics were copied, and offsets and progress in them are the other"
            " cluster's; set bootstrap to its brokers, or choose another namespace for this one"
        )
    if backend.process.level.error:
        raise ConfigError(backend.process.level.error)


def record_cluster_id(backend: KafkaBackend, clock: Clock, data_dir: Path | None, cluster_id: str) -> None:
    """Record the cluster's id in the directory and the settings topic, where it is missing.

    Raises OSError if the directory cannot be written.
    """
    if data_dir is not None and not read_recorded_id(data_dir):
        making = data_dir / f"{FILE}.{os.getpid()}.making"
        with making.open("w", encoding="utf-8") as file:
            file.write(f"{cluster_id}\n")
            file.flush()
            os.fsync(file.fileno())
        making.replace(data_dir / FILE)
    if backend.setting(CLUSTER_SETTING) is None:
        try:
            value = format_cluster_record(ClusterRecord(cluster_id, backend.process.level.level))
            batch = CommitBatch(settings={CLUSTER_SETTING: value})
            backend.commit(batch, clock.monotonic() + WAIT_S).wait(WAIT_S)
        except (DdmqError, TimeoutError) as error:  # the next start does it
            log.warning("the cluster's id is not in the settings yet", extra={"reason": str(error)})
