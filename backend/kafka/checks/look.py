"""Looks at a cluster once, within a deadline, and says what breaks a promise. Belongs to a native thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from backend.kafka.checks.rules import REPLICAS, CheckedPlace, ClusterFacts, ClusterFinding, Kind, findings
from backend.kafka.faults import LastError, client_settings, has_code, is_gone
from backend.kafka.following.system_topics import SystemTopics
from backend.kafka.options import KafkaOptions
from backend.kafka.state import SettingsState
from backend.kafka.topics.cluster import OF_WAITING
from ddmq_common.errors import DdmqError, RemoteError
from ddmq_common.names import COMPACTED_TOPICS, is_internal

log = logging.getLogger(__name__)
LOOK_S = 15.0  # for all of it
ANSWER_S = 2.0  # then the cluster counts as not answering
BROKERS_MAX = 32  # that are asked for their settings; they are set alike
TOPICS_AT_ONCE = 200
TRANSACTIONS = "__transaction_state"
T = TypeVar("T")
_HIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Look:
    """One look at a cluster. Raises RemoteError, with the reason, when it does not answer in time, and
    ConfigError for settings that librdkafka does not take."""

    def __init__(self, options: KafkaOptions, wait_s: float = LOOK_S) -> None:
        self._options = options
        self._end = time.monotonic() + wait_s
        self._heard = LastError(options)
        settings = {**options.client(client_id="ddmq-check"), "error_cb": self._heard}
        with client_settings(options):
            self._admin = AdminClient(settings)  # type: ignore[arg-type]

    def facts(self, made: Iterable[str] | None = None) -> ClusterFacts:
        """What there is. `made`: our names of the topics that were made here; None: as ddmq.settings says."""
        return self._answered(lambda: self._facts(None if made is None else frozenset(made)))

    def cluster_id(self) -> str:
        """Which cluster it is; asked anew each time."""
        return self._answered(lambda: str(self._admin.list_topics(timeout=ANSWER_S).cluster_id or ""))

    def _answered(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except KafkaException as error:
            self._admin.poll(0)  # tells its `error_cb`
            why = self._heard.why(error)  # what was heard last stays: each try has the same reason
            raise RemoteError(f"Kafka at {self._options.bootstrap} does not answer: {why}") from error

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return left

    def _facts(self, made: frozenset[str] | None) -> ClusterFacts:
        listed = self._admin.list_topics(timeout=self._left())
        system = SystemTopics.of(self._options)
        if made is None:
            made = self._made(system.settings) if system.settings in listed.topics else frozenset()
        kinds = {name: kind for name in listed.topics if (kind := self._kind(name, system, made)) is not None}
        topics = [place for some in _in_parts(list(kinds)) for place in self._topics(some, kinds)]
        brokers = [self._broker(number) for number in sorted(listed.brokers)[:BROKERS_MAX]]
        return ClusterFacts(listed.cluster_id or "", len(listed.brokers), (*brokers, *topics))

    def _kind(self, name: str, system: SystemTopics, made: frozenset[str]) -> Kind | None:
        if name in system:
            return Kind.COORDINATION if name == system.coordination else Kind.STATE
        if name == TRANSACTIONS:
            return Kind.TRANSACTIONS
        ours = self._options.names.from_kafka(name)
        if ours is None:
            return None
        if ours in COMPACTED_TOPICS:
            return Kind.STATE
        if ours in OF_WAITING:
            return Kind.DELAYED
        if is_internal(ours):
            return Kind.INNER
        return Kind.MADE if ours in made else Kind.OTHERS

    def _made(self, topic: str) -> frozenset[str]:
        """The topics of which the settings topic says something, as a server reads it."""
        state = SettingsState()
        consumer = Consumer(self._options.client(
            group_id=f"{self._options.namespace}.check", enable_auto_commit=False, enable_partition_eof=True,
            isolation_level="read_committed", auto_offset_reset="earliest",
        ))  # fmt: skip
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(self._left())
                error = None if message is None else message.error()
                if message is None or error is not None:
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return frozenset(state.topic_infos)
                    raise KafkaException(error or KafkaError(KafkaError._TIMED_OUT))
                try:
                    state.apply(message.key() or b"", message.value())
                except DdmqError as damaged:  # the server tells it, too
                    log.warning("a record of %s is passed over: %s", topic, damaged)
        finally:
            consumer.close()

    def _topics(self, names: list[str], kinds: Mapping[str, Kind]) -> list[CheckedPlace]:
        asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self._left())
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        answers = self._admin.describe_configs(resources, request_timeout=self._left())
        settings = {resource.name: self._settings(answer) for resource, answer in answers.items()}
        found = []
        for name, answer in asked.items():
            try:
                parts = answer.result(self._left()).partitions
            except KafkaException as error:
                if is_gone(error):
                    continue
                if not has_code(error, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                    raise
                found.append(CheckedPlace(name, kinds[name], None))
                continue
            copies = min((len(part.replicas) for part in parts), default=1)
            known = settings[name]
            found.append(
                CheckedPlace(name, kinds[name], None if known is None else {**known, REPLICAS: str(copies)})
            )
        return found

    def _broker(self, number: int) -> CheckedPlace:
        resource = ConfigResource(ConfigResource.Type.BROKER, str(number))
        [answer] = self._admin.describe_configs([resource], request_timeout=self._left()).values()
        return CheckedPlace(str(number), Kind.BROKER, self._settings(answer))

    def _settings(self, answer: Any) -> dict[str, str] | None:
        """None when this user may not see them; empty when it is gone."""
        try:
            return {name: entry.value for name, entry in answer.result(self._left()).items() if entry.value}
        except KafkaException as error:
            if is_gone(error):
                return {}
            if any(has_code(error, code) for code in _HIDDEN):
                return None
            raise


def _in_parts(names: list[str]) -> Iterable[list[str]]:
    return (names[start : start + TOPICS_AT_ONCE] for start in range(0, len(names), TOPICS_AT_ONCE))


def tell_findings(options: KafkaOptions, made: Iterable[str]) -> threading.Thread:
    """At the start of a process: what breaks a promise, one warning each, by a thread that ends then."""
    known = frozenset(made)
    thread = threading.Thread(target=_tell, args=(options, known), name="kafka-check", daemon=True)
    thread.start()
    return thread


def _tell(options: KafkaOptions, made: frozenset[str]) -> None:
    try:
        found: list[ClusterFinding] = findings(Look(options).facts(made), options)
    except Exception as error:  # nothing waits for it
        log.warning("the cluster's settings were not checked: %s", options.masked(str(error)))
        return
    for finding in found:
        log.warning("a setting of Kafka's breaks a promise: %s", finding)
