"""KafkaBackend: the backend port over a Kafka cluster, put together.

Who does what: topics.py knows the topics, appends.py writes, readers.py reads, offsets.py asks where queues
begin and end, parts.py has settings, progress, commits and memberships. This file joins them and keeps the
order between them: a commit waits for the appends to its queues that were called before, and an append for
such commits. Settings and topics are known once the system topics have been followed to their end; until
then, and while the cluster does not answer, the engine is not ready and says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gevent

from backend.completion import Completion
from backend.engine import StoreClock, TopicAnswer, Watchers, check_topic
from backend.kafka.clients.admin import Cluster
from backend.kafka.clients.bridge import Bridge
from backend.kafka.commits.plan import KafkaWrite
from backend.kafka.engine.appends import Appends
from backend.kafka.engine.process import KafkaParts, PartsTerms
from backend.kafka.engine.queries import KafkaQueries, Offsets
from backend.kafka.engine.readers import Readers
from backend.kafka.engine.topics import KafkaTopics, TopicDoubts
from backend.kafka.errors import refused
from backend.kafka.options import KafkaOptions, capabilities
from backend.kafka.records import encode
from backend.kafka.topic_info import KafkaTopic
from backend.port import Backend, FindCall, Health, Join, Membership, MembershipListener, ReadCall, Wait
from backend.progress.group_progress import check_delta
from backend.records import (
    AppendResult,
    AppendStatus,
    Bounds,
    CommitBatch,
    Durability,
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
    StorageError,
    TryLaterError,
    UnsupportedError,
)
from ddmq_common.hub_timer import HubTimer
from ddmq_common.names import COMPACTED_TOPICS

T = TypeVar("T")
log = logging.getLogger(__name__)
RETRY_S = 0.2
_NOTHING_SEEN = ProgressView(None, (), {}, 0, 0)


class KafkaBackend(Backend):
    """Make it on the thread of the hub that is to serve it."""

    gapless = False  # the marker of a transaction takes an offset, and compaction leaves holes
    compacts = True

    def __init__(self, options: KafkaOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock: Clock = SystemClock() if clock is None else clock
        self.capabilities = capabilities(options)
        self._loop: Any = gevent.get_hub().loop
        self._later: Callable[..., Any] = self._loop.run_callback
        self._bridge = Bridge()
        self._watchers = Watchers(self._later)
        self._store_clock = StoreClock(self._clock, 0)
        self._draining = self._closed = False
        cluster = Cluster(options, self._bridge)
        offsets = Offsets(cluster.admin, self._bridge, self._clock)
        self.readers = Readers(options, self._bridge, self._clock)
        terms = PartsTerms(
            lambda name: self.topic(name), self._kafka_name, self._durability, self._encode,
            lambda record: self._topics.refusal(record), self._watchers.changed,
            lambda name: self._topics.info_changed(name),
        )  # fmt: skip
        self.parts = KafkaParts(options, self._bridge, self._clock, terms)
        self._topics = KafkaTopics(
            options, cluster, self._clock, lambda: self.parts.state.topic_infos,
            self.parts.line.put_topic_info, self.parts.line.forget, self._topic_changed,
            lambda name: self._appends.touch(name),
        )  # fmt: skip
        self._doubts = TopicDoubts(
            self._topics, lambda: self.parts.state.topic_infos, self.parts.state.caught_up
        )
        self._appends = Appends(options, self._bridge, self._clock, self._topics, self._stored)
        self._queries = KafkaQueries(self._topics, self.readers, offsets)
        self.parts.line.quiet = self._appends.quiet
        self._timer = HubTimer(ref=False)
        self._timer.every(options.sweep_ms / 1000, lambda: self.readers.sweep(self._clock.monotonic()))
        self._retry = HubTimer(ref=False)
        self._follow()

    def _follow(self) -> None:
        """Look for topics once it is known what is kept of them."""
        self.parts.state.caught_up().then(self._followed)

    def _followed(self, state: Completion[None]) -> None:
        if self._closed:
            return
        if state.error is None:
            self._topics.start()
        else:
            self._retry.once(RETRY_S, self._follow)

    # --- topics and settings

    def topic(self, name: str) -> TopicInfo | None:
        found = self._topics.find(name)
        return None if found is None else found.info

    def topics(self) -> Mapping[str, TopicInfo]:
        return {name: found.info for name, found in self._topics.topics.items()}

    def put_topic(
        self, info: TopicInfo, deadline: float, into: TopicAnswer | None = None, topics_max: int | None = None
    ) -> TopicAnswer:
        check_topic(info, self.capabilities)
        done: TopicAnswer = Completion() if into is None else into
        self._admitted(done, lambda: self._topics.put(info, deadline, done, topics_max))
        return done

    def delete_topic(self, name: str, deadline: float) -> Completion[None]:
        done: Completion[None] = Completion()
        self._admitted(done, lambda: self._topics.delete(name, deadline, done))
        return done

    def _admitted(self, done: Completion[Any], act: Callable[[], object]) -> None:
        """Begin what changes something, later."""
        error = self._not_now()
        if error is not None:
            self._later(done.fail, error)
        else:
            self._later(act)

    def _not_now(self) -> DdmqError | None:
        if self._draining:
            return DrainingError("the Kafka engine is draining; it takes nothing new")
        if not self._topics.known:
            return TryLaterError(f"the Kafka engine is not ready: {self._reason()}")
        return None

    def setting(self, key: str) -> bytes | None:
        return self.parts.state.settings.get(key)

    def settings(self, prefix: str) -> Mapping[str, bytes]:
        return {key: value for key, value in self.parts.state.settings.items() if key.startswith(prefix)}

    def watch_settings(self, listener: Callable[[str], None], *prefixes: str) -> Callable[[], None]:
        return self._watchers.watch(listener, prefixes)

    def _topic_changed(self, name: str, before: KafkaTopic | None) -> None:
        self._watchers.changed(f"topic/{name}")
        now = self._topics.find(name)
        if before is not None and (now is None or now.info.incarnation != before.info.incarnation):
            self.readers.gone(name, before.info.incarnation)
        self.parts.topic_changed(name)

    def _kafka_name(self, name: str) -> str:
        found = self._topics.find(name)
        return self._options.names.to_kafka(name) if found is None else found.kafka_name

    def _durability(self, name: str) -> Durability:
        found = self._topics.find(name)
        return Durability.WRITTEN if found is None else found.durability

    def caught_up(self) -> Completion[None]:
        return self._doubts.caught_up()

    # --- writing

    def append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        into: Completion[list[AppendResult]] | None = None,
    ) -> Completion[list[AppendResult]]:
        done: Completion[list[AppendResult]] = Completion() if into is None else into
        doubted = self._doubts.of(records)
        if doubted and self._not_now() is None:
            taken = list(records)
            self._doubts.settle(doubted, lambda error: self._append(taken, deadline, done, error))
        else:
            self._append(records, deadline, done, None)
        return done

    def _append(
        self,
        records: Sequence[NewRecord],
        deadline: float,
        done: Completion[list[AppendResult]],
        error: DdmqError | None,
    ) -> None:
        error = error or self._not_now()
        if error is not None:
            self._later(done.succeed, [refused(error, AppendStatus.NOT_STORED)] * len(records))
        elif self.parts.line.touches(records):
            taken = list(records)
            self.parts.line.after(taken, lambda: self._appends.append(taken, deadline, done))
        else:
            self._appends.append(records, deadline, done)

    def _stored(self, topic: str, queue_id: int, next_offset: int, stored_ms: int) -> None:
        """A record of ours is in Kafka: who reads there does not miss it."""
        found = self._topics.find(topic)
        if found is not None:
            self.readers.seen(QueueRef(topic, found.info.incarnation, queue_id), next_offset)
        if stored_ms:
            self._store_clock.told(stored_ms)

    def commit(
        self, batch: CommitBatch, deadline: float, into: Completion[list[AppendResult]] | None = None
    ) -> Completion[list[AppendResult]]:
        for delta in batch.progress:
            check_delta(delta)
        done: Completion[list[AppendResult]] = Completion() if into is None else into
        doubted = self._doubts.of(batch.records)
        if doubted and self._not_now() is None:
            self._doubts.settle(doubted, lambda error: self._commit(batch, deadline, done, error))
        else:
            self._commit(batch, deadline, done, None)
        return done

    def _commit(
        self,
        batch: CommitBatch,
        deadline: float,
        done: Completion[list[AppendResult]],
        error: DdmqError | None,
    ) -> None:
        error = error or self._not_now()
        if error is not None:
            self._later(done.fail, error)
        elif not batch.records:
            self.parts.line.commit(batch, deadline, done)
        else:
            records = list(batch.records)
            stored = self.parts.line.commit(batch, deadline)
            stored.then(lambda found: self._committed(records, found, done))

    def _committed(
        self, records: Sequence[NewRecord], found: Completion[list[AppendResult]], done: Completion[Any]
    ) -> None:
        if found.error is not None:
            done.fail(found.error)
            return
        for record, result in zip(records, found.value, strict=True):
            self._stored(record.topic, record.queue_id, result.offset + 1, 0)
        done.succeed(found.value)

    def _encode(self, record: NewRecord) -> KafkaWrite:
        key, value, headers = encode(record)
        kept = value or None if record.topic in COMPACTED_TOPICS else value
        return KafkaWrite(self._kafka_name(record.topic), record.queue_id, key, kept, headers)

    # --- reading

    def start_read(self, call: ReadCall, completion: Completion[ReadBatch]) -> None:
        self._queries.read(call, completion)

    def wait(self, queue: QueueRef, offset: int, deadline: float, into: Wait | None = None) -> Wait:
        wait = Wait() if into is None else into
        self._later(self._park, queue, offset, deadline, wait)
        return wait

    def _park(self, queue: QueueRef, offset: int, deadline: float, wait: Wait) -> None:
        if wait.cancelled or wait.done:
            return
        if self._draining:
            wait.fail(DrainingError("the Kafka engine is draining"))
        else:
            self._queries.wait(queue, offset, deadline, wait)

    def bounds(self, queues: Sequence[QueueRef]) -> Completion[list[Bounds | None]]:
        return self._queries.bounds(queues)

    def offset_for_time(self, queue: QueueRef, wall_ms: int) -> Completion[int]:
        return self._queries.offset_for_time(queue, wall_ms)

    def start_find(self, call: FindCall) -> Completion[list[StoredRecord]]:
        done: Completion[list[StoredRecord]] = Completion()
        text = "Kafka cannot find messages by key or id: it keeps no index of them (capability find_by_key)"
        self._later(done.fail, UnsupportedError(text))
        return done

    # --- group progress and membership

    def progress(self, group: str, queues: Sequence[QueueRef]) -> Completion[list[ProgressView]]:
        done: Completion[list[ProgressView]] = Completion()
        asked = list(queues)

        def followed(state: Completion[None]) -> None:
            if state.error is not None:
                done.fail(state.error)
                return
            try:
                views = [self._view(group, queue) for queue in asked]
            except StorageError as error:  # damaged, or of a newer release
                done.fail(error)
            else:
                done.succeed(views)

        self.parts.state.caught_up().then(followed)
        return done

    def _view(self, group: str, queue: QueueRef) -> ProgressView:
        if self._topics.living(queue) is None:
            return _NOTHING_SEEN
        return self.parts.state.progress.view((group, queue))

    def join(self, join: Join, listener: MembershipListener) -> Membership:
        if self._draining:
            raise DrainingError("the Kafka engine is draining; nobody joins any more")
        return self.parts.members.join(join, listener)

    def holders(self, group: str, topic: str, deadline: float) -> Completion[Mapping[QueueRef, str]]:
        done: Completion[Mapping[QueueRef, str]] = Completion()

        def answer() -> None:
            if self._closed:
                done.fail(DrainingError("the Kafka engine was closed"))
            else:
                done.succeed(self.parts.members.holders(group, topic))

        self._later(answer)
        return done

    # --- the engine itself

    def trim(self, queue: QueueRef, before: int) -> None:
        self._topics.trim(queue, before)

    def health(self) -> Health:
        if self._draining:
            return Health(False, "draining")
        reason = self._reason()
        return Health(not reason, reason)

    def _reason(self) -> str:
        return self.parts.state.reason or self._topics.reason

    def clock_ms(self) -> int:
        return self._store_clock.now_ms()

    def drain(self, deadline: float) -> Completion[None]:
        done: Completion[None] = Completion()
        self._draining = True
        late = HubTimer(ref=False)

        def over() -> None:
            late.stop()
            if not done.done:
                done.succeed(None)

        def too_late() -> None:
            if not done.done:
                done.fail(TryLaterError("what is pending was not answered by Kafka by the deadline"))

        self.readers.release_waits(DrainingError("the Kafka engine is draining"))
        if self._closed:
            self._later(over)
            return done
        late.once(deadline - self._clock.monotonic(), too_late)
        self.parts.line.drain()
        self.parts.line.when_idle(lambda: self._appends.quiet(None, lambda: self._later(over)))
        return done

    def close(self) -> None:
        if self._closed:
            return
        self._closed = self._draining = True
        self._watchers.clear()
        self._timer.stop()
        self._retry.stop()
        self._doubts.close()
        self._appends.close()
        self.parts.close()
        self._queries.close()
        self._topics.close()
        self._bridge.close()
