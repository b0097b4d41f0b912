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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import gevent
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from backend.kafka.clients.admin import OF_WAITING, SystemTopics
from backend.kafka.cluster_rules import REPLICAS, CheckedPlace, ClusterFacts, ClusterFinding, Kind, findings
from backend.kafka.engine.backend import KafkaBackend
from backend.kafka.errors import LastError, client_settings, has_code, is_gone
from backend.kafka.options import KafkaOptions
from backend.kafka.state.tables import SettingsState
from backend.port import Backend
from backend.records import CommitBatch
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError, DdmqError, RemoteError
from ddmq_common.names import COMPACTED_TOPICS, is_internal
from ddmq_common.native_threads import in_thread

log = logging.getLogger(__name__)
POLL_INTERVAL_S, PAUSE_S, SAY_S = 0.01, 0.5, 10.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(
    options: KafkaOptions,
    *,
    clock: Clock,
    data_dir: Path | None = None,
    told: Callable[[str], object] = lambda reason: None,
) -> KafkaBackend:
    """Return once the cluster answers and its state is known here; blocks the calling greenlet until then.

    A cluster that does not answer is waited for, and said at once and then every SAY_S; `told` hears the
    reason each time that it is looked at. What of the cluster's settings breaks a promise is told in the log,
    a moment later. `data_dir`: what is kept on this machine belongs to one cluster. Raises ConfigError when
    that is another one, and for settings that librdkafka does not take.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    cluster_id = _found(options, clock, told)
    if data_dir is not None:
        check_directory(data_dir, cluster_id, options.bootstrap)
    backend = KafkaBackend(options, clock)
    try:
        say_at = clock.monotonic() + SAY_S
        while not (health := backend.health()).ready:
            told(health.reason)
            if clock.monotonic() >= say_at:
                say_at += SAY_S
                _say(options, health.reason)
            gevent.sleep(POLL_INTERVAL_S)
        topic = SystemTopics.of(options).settings
        check_settings(backend.setting(SETTING), topic, cluster_id, options.bootstrap)
        keep(backend, clock, data_dir, cluster_id)
    except BaseException:
        backend.close()
        raise
    tell_findings(options, backend.state.topic_infos)
    return backend


def _found(options: KafkaOptions, clock: Clock, told: Callable[[str], object]) -> str:
    """The id of the cluster, once it answers."""
    say_at = clock.monotonic()
    look = Look(options)
    while True:
        try:
            return in_thread(look.cluster_id)
        except RemoteError as error:
            reason = str(error)
        told(reason)
        if clock.monotonic() >= say_at:
            say_at = clock.monotonic() + SAY_S
            _say(options, reason)
        gevent.sleep(PAUSE_S)


def _say(options: KafkaOptions, reason: str) -> None:
    log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": reason})


CHECK_TIMEOUT_S = 15.0  # for all of it
ANSWER_S = 2.0  # then the cluster counts as not answering
BROKERS_MAX = 32  # that are asked for their settings; they are set alike
TOPICS_AT_ONCE = 200
TRANSACTIONS = "__transaction_state"
T = TypeVar("T")
_HIDDEN = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)


class Look:
    """One look at a cluster. Raises RemoteError, with the reason, when it does not answer in time, and
    ConfigError for settings that librdkafka does not take."""

    def __init__(self, options: KafkaOptions, wait_s: float = CHECK_TIMEOUT_S) -> None:
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


FILE = "kafka-cluster"  # in the data directory
SETTING = "kafka/cluster"
WAIT_S = 10.0


def kept_in(data_dir: Path) -> str:
    """The id of the cluster that the directory belongs to; empty when it belongs to none."""
    try:
        return (data_dir / FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def check_directory(data_dir: Path, cluster_id: str, bootstrap: str) -> None:
    """Refuse a directory that belongs to another cluster. Raises ConfigError."""
    kept = kept_in(data_dir)
    if kept and kept != cluster_id:
        raise ConfigError(
            f"{data_dir.absolute()} belongs to Kafka cluster {kept}, and {bootstrap} is cluster {cluster_id}:"
            " set bootstrap to that cluster's brokers, or choose another data directory;"
            " if that cluster is gone for good, move this directory away"
        )


def check_settings(kept: bytes | None, topic: str, cluster_id: str, bootstrap: str) -> None:
    """Refuse settings that belong to another cluster. Raises ConfigError."""
    if kept is not None and kept.decode() != cluster_id:
        raise ConfigError(
            f"the topic {topic} belongs to Kafka cluster {kept.decode()}, and {bootstrap} is cluster"
            f" {cluster_id}: the topics were copied, and offsets and progress in them are the other"
            " cluster's; set bootstrap to its brokers, or choose another namespace for this one"
        )


def keep(backend: Backend, clock: Clock, data_dir: Path | None, cluster_id: str) -> None:
    """Write down what nobody has yet. Raises OSError when the directory cannot be written."""
    if data_dir is not None and not kept_in(data_dir):
        making = data_dir / f"{FILE}.{os.getpid()}.making"
        with making.open("w", encoding="utf-8") as file:
            file.write(f"{cluster_id}\n")
            file.flush()
            os.fsync(file.fileno())
        making.replace(data_dir / FILE)
    if backend.setting(SETTING) is None:
        try:
            batch = CommitBatch(settings={SETTING: cluster_id.encode()})
            backend.commit(batch, clock.monotonic() + WAIT_S).wait(WAIT_S)
        except (DdmqError, TimeoutError) as error:  # the next start does it
            log.warning("the cluster's id is not in the settings yet", extra={"reason": str(error)})
