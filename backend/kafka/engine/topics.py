"""The topics as this process knows them, on the hub: what Kafka has, and what is kept beside it.

Kafka knows a topic's partitions, its id (from which the incarnation comes) and its settings. What it has no
word for (who may read and write, delays, the durability asked for) is kept under the topic's name by the
state (`put_info`), with the incarnation it belongs to. A topic that has none is taken with what all have.
Everything that is done to one name is done one after the other.

TopicUpkeep: what is done to topics unasked: what waits does not go too soon, what nobody needs goes.
TopicDoubts: nothing is refused for a topic that seems not to be there before the cluster was asked.

Topics that other processes make are seen within `topics_poll_ms`; who writes to one before that waits here
until what was answered by now is followed, and a survey that began after it. A topic of which something is
kept, and which the asked broker does not have, is looked for a few times more: a broker may hear of it later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from backend.completion import Completion
from backend.engine import TopicAnswer, check_change, check_topics_max
from backend.kafka.clients import admin as work
from backend.kafka.clients.admin import Cluster, Survey
from backend.kafka.options import KafkaOptions, incarnation
from backend.kafka.topic_info import FoundTopic, KafkaTopic, kept_info, refusal_of, stored_bytes, topic_of
from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, DrainingError, RemoteError, TryLaterError, UnknownTopicError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
SURE_S = 60.0  # after which a topic that was made anew is no mistake of a broker that is behind
CHANGED_LOOKS = 2  # at what others have changed: a broker may hear of it a little later
OVER_MAX = 1_000  # deleted ones that no broker that is behind brings back
LOOK_AT_ALL = 10  # each so many surveys every topic is looked at, not only those that seem changed
PutInfo = Callable[[str, bytes | None, float], Completion[None]]


class KafkaTopics:
    """`stored`: what is kept, by name; `put_info` keeps it, `forget` ends the progress of what is gone.

    `changed`: told of each change, with the topic as it was. `touch`: makes a producer know a topic, in
    the cluster's thread.
    """

    def __init__(
        self,
        options: KafkaOptions,
        cluster: Cluster,
        clock: Clock,
        stored: Callable[[], Mapping[str, bytes]],
        put_info: PutInfo,
        forget: Callable[[str, int, float], Completion[None]],
        changed: Callable[[str, KafkaTopic | None], None],
        touch: Callable[[str], object],
    ) -> None:
        self._options = options
        self._names = options.names
        self._cluster = cluster
        self._upkeep = TopicUpkeep(cluster)
        self._clock = clock
        self._stored = stored
        self._put_info = put_info
        self._forget = forget
        self._changed = changed
        self._touch = touch
        self.topics: dict[str, KafkaTopic] = {}
        self._found: dict[str, FoundTopic] = {}  # by our names
        self._over: dict[str, None] = {}  # ids of topics that were deleted here
        self._lines: dict[str, deque[Callable[[], None]]] = {}  # names that something is done to
        self._pending: set[Completion[Any]] = set()
        self._doubted: dict[str, int] = {}  # to be looked at so many times more, what others have changed
        self._surveys = 0
        self._asking: list[Callable[[str], object]] = []  # who waits for a survey that has not begun
        self._surveying = self._closed = self._lost = self._look_at_all = False
        self.reason = "the topics of the cluster are not known yet"
        self.cluster_id = ""
        self._timer = HubTimer(ref=False)

    # --- asking

    def find(self, name: str) -> KafkaTopic | None:
        """The topic as it stands."""
        return self.topics.get(name)

    def living(self, queue: QueueRef) -> KafkaTopic | None:
        """The topic of a queue that is there; None when it, its topic or its incarnation is gone."""
        topic = self.topics.get(queue.topic)
        if (
            topic is None
            or topic.info.incarnation != queue.incarnation
            or not 0 <= queue.queue_id < topic.info.queues
        ):
            return None
        return topic

    def refusal(self, record: NewRecord) -> Exception | None:
        """Why a record is not taken."""
        topic = self.topics.get(record.topic)
        if topic is None:
            return UnknownTopicError(f"topic {record.topic} does not exist")
        return refusal_of(record, topic)

    @property
    def known(self) -> bool:
        """Whether the cluster has said once what there is."""
        return self._surveys > 0

    # --- following

    def start(self) -> None:
        """Look now, and then again and again."""
        self._timer.every(self._options.topics_poll_ms / 1000, self.look)
        self.look()

    def look_at_all(self) -> None:
        """Something is not as it was known: look at every topic soon."""
        self._look_at_all = True
        self.look()

    def look(self, then: Callable[[str], object] | None = None) -> None:
        """Ask the cluster what there is. `then(reason)` follows a survey that begins after this call, with
        why it brought nothing."""
        if then is not None:
            self._asking.append(then)
        if self._surveying or self._closed:
            return
        self._surveying = True
        asking, self._asking = self._asking, []
        everything = self._surveys % LOOK_AT_ALL == 0 or self._look_at_all
        self._look_at_all = False
        before = {each.kafka_name: each.partitions for each in self._found.values()}
        known = None if everything else dict(before)
        for name, times in list(self._doubted.items()):
            found = self._found.get(name)
            if known is not None and found is not None:
                known.pop(found.kafka_name, None)
            if times > 1:
                self._doubted[name] = times - 1
            else:
                del self._doubted[name]
        let_in = self._names.lets_in
        job = partial(work.survey, let_in=let_in, known=known, before=before, grown=self._touch)
        lines = set(self._lines)

        def answered(found: Survey | None, error: Exception | None) -> None:
            self._surveyed(found, error, lines)
            for told in asking:
                told(self.reason)
            if self._asking:
                self.look()

        self._cluster.ask(job, answered)

    def _surveyed(self, found: Survey | None, error: Exception | None, busy: set[str]) -> None:
        """`busy`: something was done to these names meanwhile; the next survey is right about them."""
        self._surveying = False
        if self._closed:
            return
        heard = self._cluster.heard
        if found is None:
            why = heard.why(error or RemoteError("silent"))
            self._tell(f"Kafka at {self._options.bootstrap}: {why}")
            return
        heard.clear()
        if self.cluster_id not in ("", found.cluster_id):
            self._refuse(found.cluster_id)
            return
        self._surveys += 1
        self._tell("")
        self.cluster_id = found.cluster_id
        busy |= set(self._lines)
        for each in found.looked_at:
            name = self._names.from_kafka(each.kafka_name)
            if name is not None and name not in busy and each.topic_id not in self._over:
                self._take(name, each)
                if not work.keeps(name, each):
                    self._upkeep.keep(name, each)
        for name, known in list(self._found.items()):
            if known.kafka_name not in found.names and name not in busy:
                self._drop(name)

    def _tell(self, reason: str) -> None:
        """Why it is not ready, or nothing; one line when it begins, and one when it is over."""
        if reason and not self._lost:
            log.warning("the cluster does not answer: %s; asked again and again", reason)
        elif not reason and self._lost:
            log.warning("the cluster answers again")
        self.reason, self._lost = reason, bool(reason)

    def _refuse(self, cluster_id: str) -> None:
        """Another cluster answers there than at the start: nothing that it says is taken."""
        reason = (
            f"Kafka at {self._options.bootstrap} is cluster {cluster_id} now, and this process belongs to"
            f" cluster {self.cluster_id}: set bootstrap to that cluster's brokers and start it again"
        )
        if reason != self.reason:
            log.error("%s", reason)
        self.reason, self._lost = reason, True

    def trim(self, queue: QueueRef, before: int) -> None:
        """As Backend.trim."""
        topic = self.living(queue)
        if topic is not None:
            self._upkeep.trim(topic, queue, before)

    def info_changed(self, name: str) -> None:
        """What is kept of a topic has changed; Kafka's settings of it, too, perhaps."""
        found = self._found.get(name)
        if name not in self._lines:
            if found is not None:
                self._take(name, found)
                self._doubted[name] = CHANGED_LOOKS
            self.look()

    def _take(self, name: str, found: FoundTopic) -> None:
        topic = topic_of(name, found, self._stored().get(name))
        known = self._found.get(name)
        if known is not None and known.topic_id != found.topic_id:
            self._made_anew(name, known)
        self._found[name] = found
        before = self.topics.get(name)
        if before != topic:
            self.topics[name] = topic
            self._changed(name, before)

    def _made_anew(self, name: str, gone: FoundTopic) -> None:
        """Somebody deleted it in Kafka, and made another one. A broker may have said so that is behind."""
        self._upkeep.gone(name)
        HubTimer(ref=False).once(SURE_S, lambda: self._forget_gone(name, gone))

    def _forget_gone(self, name: str, gone: FoundTopic) -> None:
        """Nobody reads where groups stood in it."""
        now = self._found.get(name)
        if not self._closed and now is not None and now.topic_id != gone.topic_id:
            self._forget(name, incarnation(gone.topic_id), self._clock.monotonic() + SURE_S)

    def _drop(self, name: str) -> None:
        self._upkeep.gone(name)
        del self._found[name]
        before = self.topics.pop(name, None)
        if before is not None:
            self._changed(name, before)

    # --- changing

    def put(self, info: TopicInfo, deadline: float, done: TopicAnswer, topics_max: int | None) -> None:
        """Create or change a topic whose `info` was checked, as Backend.put_topic does."""
        self._in_line(info.name, done, deadline, lambda: self._put(info, deadline, done, topics_max))

    def _put(self, info: TopicInfo, deadline: float, done: TopicAnswer, topics_max: int | None) -> None:
        known = self.topics.get(info.name)
        if info.incarnation == 0 and known is not None:
            self._end(info.name, done, known.info)
            return
        if info.incarnation == 0:
            others = {*self.topics, *self._lines} - {info.name}  # there, or being made here
            check_topics_max(len(others), topics_max)
            job = partial(self._create, self._names.to_kafka(info.name), info)
        else:
            check_change(info, None if known is None else known.info)
            job = partial(self._change, self._found[info.name], info)
        self._cluster.ask(job, lambda found, error: self._made(info, deadline, done, found, error))

    def _create(self, kafka_name: str, info: TopicInfo, admin: Any) -> tuple[FoundTopic, bool]:
        found = work.create(admin, self._options, kafka_name, info)
        self._touch(kafka_name)
        return found, False

    def _change(self, before: FoundTopic, info: TopicInfo, admin: Any) -> tuple[FoundTopic, bool]:
        found, changed = work.change(admin, before, info)
        if found.partitions > before.partitions:
            self._touch(found.kafka_name)
        return found, changed

    def _made(
        self,
        info: TopicInfo,
        deadline: float,
        done: Completion[TopicInfo],
        made: tuple[FoundTopic, bool] | None,
        error: Exception | None,
    ) -> None:
        if made is None:
            self._failed(info.name, done, error)
            return
        found, changed = made
        number = incarnation(found.topic_id)
        known = kept_info(self._stored().get(info.name))
        if info.incarnation == 0 and known is not None and known.incarnation == number:
            self._put_done(info.name, done, found)  # another process has made it
            return
        wanted = replace(info, incarnation=number, queues=found.partitions)
        changes = changed + (0 if known is None or known.incarnation != number else known.changes)
        put = self._put_info(info.name, stored_bytes(wanted, changes), deadline)
        put.then(lambda put: self._put_done(info.name, done, found, put.error))

    def _put_done(
        self, name: str, done: Completion[TopicInfo], found: FoundTopic, error: Exception | None = None
    ) -> None:
        self._take(name, found)
        if error is not None:
            self._failed(name, done, error)
        else:
            self._end(name, done, self.topics[name].info)

    def delete(self, name: str, deadline: float, done: Completion[None]) -> None:
        """As Backend.delete_topic."""
        self._in_line(name, done, deadline, lambda: self._delete(name, deadline, done))

    def _delete(self, name: str, deadline: float, done: Completion[None]) -> None:
        found = self._found.get(name)
        if found is None:
            raise UnknownTopicError(f"topic {name} does not exist")

        def gone(_: None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, UnknownTopicError):
                self._failed(name, done, error)
                return
            self._over[found.topic_id] = None
            if len(self._over) > OVER_MAX:
                del self._over[next(iter(self._over))]
            if name in self._found:
                self._drop(name)
            self._forget(name, incarnation(found.topic_id), deadline)
            self._put_info(name, None, deadline).then(lambda put: self._forgotten(name, done, put.error))

        self._cluster.ask(partial(work.delete, name=found.kafka_name), gone)

    def _forgotten(self, name: str, done: Completion[None], error: Exception | None) -> None:
        if error is not None:
            self._failed(name, done, error)
        else:
            self._end(name, done, None)

    # --- one after the other

    def _in_line(self, name: str, done: Completion[Any], deadline: float, act: Callable[[], None]) -> None:
        def begin() -> None:
            if done.done or self._closed:
                self._next(name)
                return
            try:
                act()
            except Exception as error:
                self._failed(name, done, error)

        self._pending = {each for each in self._pending if not each.done}
        self._pending.add(done)
        late = HubTimer(ref=False)
        late.once(deadline - self._clock.monotonic(), partial(_late, name, done))
        done.then(lambda _: late.stop())
        line = self._lines.get(name)
        if line is not None:
            line.append(begin)
        else:
            self._lines[name] = deque()
            begin()

    def _end(self, name: str, done: Completion[Any], value: Any) -> None:
        try:
            if not done.done:
                done.succeed(value)
        finally:
            self._next(name)

    def _failed(self, name: str, done: Completion[Any], error: Exception | None) -> None:
        try:
            if not done.done:
                done.fail(error or RemoteError(f"topic {name}: no answer"))
        finally:
            self._next(name)

    def _next(self, name: str) -> None:
        line = self._lines.get(name)
        if not line:
            self._lines.pop(name, None)
        else:
            line.popleft()()

    def close(self) -> None:
        """Follow no more; who waits is refused."""
        self._closed = True
        self._timer.stop()
        self._lines.clear()
        self._cluster.close()
        for done in self._pending:
            if not done.done:
                done.fail(DrainingError("the Kafka engine was closed"))


def _late(name: str, done: Completion[Any]) -> None:
    if not done.done:
        done.fail(RemoteError(f"topic {name}: no answer of Kafka by the deadline"))


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


ABSENT_LOOKS = 4
PAUSE_S = 0.3
Then = Callable[[DdmqError | None], object]


class _Doubt:
    """`names`: topics that are in doubt; `then`: who waits, called once."""

    def __init__(self, names: frozenset[str], then: Then) -> None:
        self.names, self.then = names, then
        self.looks = 0


class TopicDoubts:
    """`kept`: what is kept of topics, by name; `caught_up`: the barrier of what is followed."""

    def __init__(
        self,
        topics: KafkaTopics,
        kept: Callable[[], Mapping[str, bytes]],
        caught_up: Callable[[], Completion[None]],
    ) -> None:
        self._topics = topics
        self._kept = kept
        self._caught_up = caught_up
        self._absent: dict[
            str, bytes
        ] = {}  # what is kept of topics that Kafka does not have, looked for in vain
        self._open: dict[_Doubt, None] = {}

    def of(self, records: Iterable[NewRecord]) -> frozenset[str]:
        """The topics of these records that are not known to be there with such a queue."""
        known = self._topics.topics
        return frozenset(
            record.topic
            for record in records
            if (topic := known.get(record.topic)) is None or record.queue_id >= topic.info.queues
        )

    def caught_up(self) -> Completion[None]:
        """As Backend.caught_up: topics that others were told of are known."""
        done: Completion[None] = Completion()

        def settled(error: Exception | None) -> None:
            if error is None:
                done.succeed(None)
            else:
                done.fail(error)

        def followed(barrier: Completion[None]) -> None:
            made = self._made()
            if barrier.error is not None or not made:
                settled(barrier.error)
            else:
                self.settle(made, settled)

        self._caught_up().then(followed)
        return done

    def _made(self) -> frozenset[str]:
        """Topics of which something is kept, and which are not known to be there."""
        kept, topics = self._kept(), self._topics
        self._absent = {name: value for name, value in self._absent.items() if kept.get(name) == value}
        return frozenset(name for name in kept if name not in self._absent and topics.find(name) is None)

    def settle(self, names: frozenset[str], then: Then) -> None:
        """Call `then(None)` when what this process knows of them is true; with an error when it cannot be
        found out."""
        doubt = _Doubt(names, then)
        self._open[doubt] = None
        self._caught_up().then(lambda barrier: self._followed(doubt, barrier.error))

    def _followed(self, doubt: _Doubt, error: Exception | None) -> None:
        if error is not None:
            self._end(doubt, TryLaterError(f"not known whether {_named(doubt)} is there: {error}"))
        else:
            self._topics.look(lambda reason: self._looked(doubt, reason))

    def _looked(self, doubt: _Doubt, reason: str) -> None:
        doubt.looks += 1
        missing = self._made() & doubt.names
        if reason:
            self._end(doubt, TryLaterError(f"not known whether {_named(doubt)} is there: {reason}"))
        elif missing and doubt.looks < ABSENT_LOOKS:
            HubTimer(ref=False).once(PAUSE_S, lambda: self._followed(doubt, None))
        else:
            kept = self._kept()
            self._absent.update((name, kept[name]) for name in missing)
            self._end(doubt, None)

    def _end(self, doubt: _Doubt, error: DdmqError | None) -> None:
        if doubt in self._open:
            del self._open[doubt]
            doubt.then(error)

    def close(self) -> None:
        """Who waits is refused."""
        for doubt in list(self._open):
            self._end(doubt, DrainingError("the Kafka engine was closed"))


def _named(doubt: _Doubt) -> str:
    return f"topic {', '.join(sorted(doubt.names))}"
