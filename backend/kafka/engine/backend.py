"""KafkaBackend: the backend port over a Kafka cluster, put together.

topics.py surveys the topics, appends.py writes, readers.py reads, queries.py asks where queues begin and end,
and process.py has settings, progress, commits and memberships. This file joins them and keeps the order
between them: a commit waits for the earlier appends to its queues, and an append for the earlier commits to
its queues. Settings and topics are known once the system topics have been followed to their end; until then,
and while the cluster does not answer, the engine is not ready and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gevent

from backend.completion import Completion
from backend.engine import StoreClock, TopicAnswer, Watchers, check_topic
from backend.kafka.client_metrics import ClientCollector
from backend.kafka.clients.admin import Cluster
from backend.kafka.clients.bridge import Bridge
from backend.kafka.commits.plan import OffsetEntry
from backend.kafka.coordination.feature_level import NUMBERS_LEVEL
from backend.kafka.engine.appends import Appends
from backend.kafka.engine.missing_topics import MissingTopics
from backend.kafka.engine.process import KafkaProcess
from backend.kafka.engine.queries import KafkaQueries, Offsets
from backend.kafka.engine.readers import Readers
from backend.kafka.engine.topics import KafkaTopics
from backend.kafka.errors import to_failed_result
from backend.kafka.options import KafkaOptions, StoreOnce, capabilities
from backend.kafka.sends.routing import SendRouter
from backend.kafka.topic_info import KafkaTopic, TopicRegistry
from backend.port import (
    Backend,
    FindCall,
    Health,
    Join,
    Membership,
    MembershipListener,
    PeerCalls,
    ReadCall,
    Wait,
)
from backend.progress.group_progress import check_delta
from backend.records import (
    AppendResult,
    AppendStatus,
    Bounds,
    CommitBatch,
    NewRecord,
    ProgressView,
    QueueRef,
    ReadBatch,
    StoredRecord,
    TopicInfo,
)
from ddmq_common.clock import Clock, SystemClock
from ddmq_common.errors import (
    DdmqError,
    DrainingError,
    RemoteError,
    StorageError,
    TryLaterError,
    UnsupportedError,
)
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import SENDS_GROUP, SENDS_TOPIC
from ddmq_common.security.quotas import SenderQuota

T = TypeVar("T")
log = logging.getLogger(__name__)
RETRY_S = 0.2
_UNKNOWN_PROGRESS = ProgressView(None, (), {}, 0, 0)


class KafkaBackend(Backend):
    """The backend port over a Kafka cluster. Create it on the thread of the hub that will serve it."""

    gapless = False  # the marker of a transaction takes an offset, and compaction leaves holes
    compacts = True

    def __init__(
        self, options: KafkaOptions, clock: Clock | None = None, metrics: Registry | None = None
    ) -> None:
        self._options = options
        self._clock: Clock = SystemClock() if clock is None else clock
        self.capabilities = capabilities(options)
        self.recognises_numbers = options.store_once == StoreOnce.ALL
        self._loop: Any = gevent.get_hub().loop
        self._later: Callable[..., Any] = self._loop.run_callback
        self._bridge = Bridge()
        self._watchers = Watchers(self._later)
        self._store_clock = StoreClock(self._clock, 0)
        self._draining = self._closed = False
        cluster = Cluster(options, self._bridge)
        self._table = TopicRegistry(options.names)
        self.readers = Readers(options, self._bridge, self._clock)
        self._appends = Appends(
            options,
            self._bridge,
            self._clock,
            self._table,
            self._on_stored,
            lambda: self._topics.survey_all(),
            lambda: self._topics.on_connection_lost(),
        )
        self.process = KafkaProcess(
            options,
            self._bridge,
            self._clock,
            self._table,
            self._appends.when_answered,
            self._watchers.notify_changed,
            lambda name: self._topics.on_info_changed(name),
            lambda: self._topics.survey(),
            metrics,
        )
        self.state, self._commits = self.process.state, self.process.commits
        self._topics = KafkaTopics(
            options,
            cluster,
            self._clock,
            self._table,
            self.state,
            self._commits,
            self._appends.add_topic,
            self._on_topic_changed,
            self._on_other_cluster,
        )
        self._missing_topics = MissingTopics(self._table, self._topics, self.state)
        if metrics is not None:
            self._collect_metrics(metrics)
        offsets = Offsets(cluster.admin, self._bridge, self._clock, lambda: self._table.leaderless)
        self._queries = KafkaQueries(self._table, self.readers, offsets)
        self._sends = self._create_router(options)
        self._retry = HubTimer(ref=False)
        self._start_topics()

    def _collect_metrics(self, metrics: Registry) -> None:
        """Register the metrics of the Kafka clients."""
        ClientCollector(
            metrics,
            self._appends,
            self.process.producers,
            self.process.members,
            self._clock.monotonic,
            lambda: self.process.level.level,
        )

    def _create_router(self, options: KafkaOptions) -> SendRouter:
        return SendRouter(
            self,
            self._clock,
            self._table,
            self._later,
            self._commit_sends,
            self._append_plain,
            lambda: self.process.members.holders(SENDS_GROUP, SENDS_TOPIC),
            options.pending_max,
            options.pending_bytes_max,
            self.recognises_numbers,
            self._confirm_topics,
        )

    def _start_topics(self) -> None:
        """Start surveying the topics, once their stored settings are known."""
        self.state.catch_up().then(self._on_caught_up)

    def _on_caught_up(self, barrier: Completion[None]) -> None:
        if self._closed:
            return
        if barrier.error is None:
            self._topics.start()
        else:
            self._retry.once(RETRY_S, self._start_topics)

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        topic = self._table.find_topic(name)
        return None if topic is None else topic.info

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: topic.info for name, topic in self._table.topics.items()}

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)
        answer: TopicAnswer = Completion() if into is None else into
        self._run_if_ready(answer, lambda: self._topics.put(info, deadline, answer, topics_max))
        return answer

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        answer: Completion[None] = Completion()
        self._run_if_ready(answer, lambda: self._topics.delete(name, deadline, answer))
        return answer

    def _run_if_ready(self, answer: Completion[Any], action: Callable[[], object]) -> None:
        """Call `action` in the next turn of the hub.

        If the engine is not ready, fail `answer` then instead.
        """
        error = self._why_not_ready()
        if error is not None:
            self._later(answer.fail, error)
        else:
            self._later(action)

    def _why_not_ready(self) -> DdmqError | None:
        if self._draining:
            return DrainingError("the Kafka engine is draining; it takes nothing new")
        if self.state.other_cluster:
            return TryLaterError(self.state.other_cluster)
        if not self._topics.has_surveyed:
            return TryLaterError(f"the Kafka engine is not ready: {self._health_reason()}")
        return None

    def why_unavailable(self, topic: str) -> str:
        return self._table.unavailable.reason_of(topic)

    def setting(self, key: str) -> bytes | None:
        return self.state.settings.get(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.state.settings.items() if key.startswith(prefix)}

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    def _on_other_cluster(self, reason: str) -> None:
        """Take no part in another cluster, and take new names when the first one is back (`reason` is "")."""
        self.state.set_other_cluster(reason)
        self.readers.end_streams(RemoteError(reason or "the brokers have changed"))
        self._commits.renew(reason or "the brokers belong to the cluster of this process again")
        self._commits.resume()

    def _on_topic_changed(self, name: str, before: KafkaTopic | None) -> None:
        self._watchers.notify_changed(f"topic/{name}")
        topic = self._table.find_topic(name)
        if before is not None and (topic is None or topic.info.incarnation != before.info.incarnation):
            self.readers.on_topic_deleted(name, before.info.incarnation)
        self.process.members.on_topic_changed(name)

    def caught_up(self) -> Completion[None]:
        return self._missing_topics.catch_up()

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        answer: Completion[list[AppendResult]] = Completion() if into is None else into
        unknown = self._missing_topics.find_unknown(records)
        if unknown and self._why_not_ready() is None:
            records = list(records)
            self._missing_topics.confirm_topics(
                unknown, lambda error: self._append(records, deadline, answer, error)
            )
        else:
            self._append(records, deadline, answer, None)
        return answer

    def _confirm_topics(self, records: Sequence[NewRecord], then: Callable[[DdmqError | None], None]) -> None:
        """Look for topics of records that another process may just have created."""
        unknown = self._missing_topics.find_unknown(records)
        if unknown and self._why_not_ready() is None:
            self._missing_topics.confirm_topics(unknown, then)
        else:
            then(None)

    def _append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        answer: Completion[list[AppendResult]],
        error: DdmqError | None,
    ) -> None:
        error = error or self._why_not_ready()
        if error is not None:
            self._later(answer.succeed, [to_failed_result(error, AppendStatus.NOT_STORED)] * len(records))
        elif self.capabilities.idempotent and self._sends.are_concerned(records):
            self._sends.append(records, deadline, answer)
        else:
            self._append_plain(records, deadline, answer)

    def _append_plain(
        self, records: Sequence[NewRecord], deadline: float, answer: Completion[list[AppendResult]]
    ) -> None:
        if self._commits.touches_queues(records):
            records = list(records)
            self._commits.run_after(records, lambda: self._appends.append(records, deadline, answer))
        else:
            self._appends.append(records, deadline, answer)

    def serve_peers(self, address: str, peers: PeerCalls) -> None:
        if self.capabilities.idempotent:
            self._later(self._sends.serve_peers, address, peers)

    def take_peer_call(self, data: bytes, deadline: float) -> Completion[bytes]:
        return self._sends.take_peer_call(data, deadline)

    def _commit_sends(
        self, batch: CommitBatch, deadline: float, entry: OffsetEntry
    ) -> Completion[list[AppendResult]]:
        """Commit sends with an identity, and the entry that states their offsets."""
        answer: Completion[list[AppendResult]] = Completion()
        records = list(batch.records)
        commit = self._commits.commit(batch, deadline, None, entry)
        commit.then(lambda commit: self._on_committed(records, commit, answer))
        return answer

    def _on_stored(self, topic_name: str, queue_id: int, next_offset: int, stored_ms: int) -> None:
        """Note a record that this process has stored, so that reads of the queue wait for it."""
        topic = self._table.find_topic(topic_name)
        if topic is not None:
            self.readers.set_next_offset(QueueRef(topic_name, topic.info.incarnation, queue_id), next_offset)
        if stored_ms:
            self._store_clock.advance_to(stored_ms)

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        for delta in batch.progress:
            check_delta(delta)
        answer: Completion[list[AppendResult]] = Completion() if into is None else into
        unknown = self._missing_topics.find_unknown(batch.records)
        if unknown and self._why_not_ready() is None:
            self._missing_topics.confirm_topics(
                unknown, lambda error: self._commit(batch, deadline, answer, error)
            )
        else:
            self._commit(batch, deadline, answer, None)
        return answer

    def _commit(
        self,
        batch: CommitBatch,
        deadline: float,
        answer: Completion[list[AppendResult]],
        error: DdmqError | None,
    ) -> None:
        error = error or self._why_not_ready()
        if error is not None:
            self._later(answer.fail, error)
        elif not batch.records:
            self._commits.commit(batch, deadline, answer)
        else:
            records = list(batch.records)
            commit = self._commits.commit(batch, deadline)
            commit.then(lambda commit: self._on_committed(records, commit, answer))

    def _on_committed(
        self, records: Sequence[NewRecord], commit: Completion[list[AppendResult]], answer: Completion[Any]
    ) -> None:
        if commit.error is not None:
            answer.fail(commit.error)
            return
        for record, result in zip(records, commit.value, strict=True):
            self._on_stored(record.topic, record.queue_id, result.offset + 1, 0)
        answer.succeed(commit.value)

    # --- reading

    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        if self.state.other_cluster:
            self._later(completion.fail, RemoteError(self.state.other_cluster))
        else:
            self._queries.read(call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        wait = Wait() if into is None else into
        self._later(self._start_wait, queue, offset, deadline, wait)
        return wait

    def _start_wait(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        if wait.cancelled or wait.done:
            return
        if self._draining:
            wait.fail(DrainingError("the Kafka engine is draining"))
        elif self.state.other_cluster:
            wait.fail(RemoteError(self.state.other_cluster))
        else:
            self._queries.wait(queue, offset, deadline, wait)

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self._queries.bounds(queues)

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._queries.offset_for_time(queue, wall_ms)

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        answer: Completion[list[StoredRecord]] = Completion()
        text = "Kafka cannot find messages by key or id: it keeps no index of them (capability find_by_key)"
        self._later(answer.fail, UnsupportedError(text))
        return answer

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        answer: Completion[list[ProgressView]] = Completion()
        queues = list(queues)

        def on_caught_up(barrier: Completion[None]) -> None:
            if barrier.error is not None:
                answer.fail(barrier.error)
                return
            try:
                views = [self._view_progress(group, queue) for queue in queues]
            except StorageError as error:  # damaged, or of a newer release
                answer.fail(error)
            else:
                answer.succeed(views)

        self.state.catch_up().then(on_caught_up)
        return answer

    def _view_progress(self, group: str, queue: QueueRef) -> ProgressView:
        if self._table.find_queue_topic(queue) is None:
            return _UNKNOWN_PROGRESS
        return self.state.progress.view((group, queue))

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("the Kafka engine is draining; nobody joins any more")
        return self.process.members.join(join, listener)

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        completion: Completion[Mapping[QueueRef, str]] = Completion()

        def answer() -> None:
            if self._closed:
                completion.fail(DrainingError("the Kafka engine was closed"))
            else:
                completion.succeed(self.process.members.holders(group, topic))

        self._later(answer)
        return completion

    # --- the engine itself

    def trim(self, queue: QueueRef, before: int) -> None:
        self._topics.trim(queue, before)

    def count_owned_sends(self) -> Mapping[str, SenderQuota]:
        return self._sends.count_owned()

    def health(self) -> Health:
        if self._draining:
            return Health(False, "draining")
        reason = self._health_reason()
        warnings = (self.process.watch.shared_addresses.health_warning, self.process.level.warning)
        return Health(not reason, reason or self._appends.health_reason(), "; ".join(filter(None, warnings)))

    def _health_reason(self) -> str:
        return self.state.reason or self._topics.reason or self._level_reason()

    def _level_reason(self) -> str:
        level = self.process.level
        if self.recognises_numbers and level.level < NUMBERS_LEVEL and not level.error:
            return f"store_once is all; {level.warning or 'the feature level is about to rise'}"
        return level.error

    def clock_ms(self) -> int:
        return self._store_clock.now_ms()

    def drain(self, deadline: float) -> Completion[None]:
        completion: Completion[None] = Completion()
        self._draining = True
        timeout = HubTimer(ref=False)

        def on_idle() -> None:
            timeout.stop()
            if not completion.done:
                completion.succeed(None)

        def on_timeout() -> None:
            if not completion.done:
                completion.fail(TryLaterError("what is pending was not answered by Kafka by the deadline"))

        self.readers.release_waits(DrainingError("the Kafka engine is draining"))
        if self._closed:
            self._later(on_idle)
            return completion
        timeout.once(deadline - self._clock.monotonic(), on_timeout)

        def drain_commits() -> None:
            self._commits.drain()
            self._commits.when_idle(lambda: self._appends.when_answered(None, lambda: self._later(on_idle)))

        self._sends.when_answered(drain_commits)
        return completion

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._draining = True
        self._watchers.clear()
        self._retry.stop()
        self._missing_topics.close()
        self._sends.close()
        self._appends.close()
        self.process.close()
        self._queries.close()
        self._topics.close()
        self._bridge.close()
