"""KafkaTopics: follows and changes the topics of the cluster; it fills the TopicRegistry. Belongs to the hub.

Kafka knows a topic's partitions, its id (from which the incarnation comes) and its settings. What it has no
word for (who may read and write, delays, the requested durability) is stored under the topic's name in the
settings topic, with the incarnation that it belongs to. A topic without stored settings gets the defaults.
All changes of one name run one after the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from backend.completion import Completion
from backend.engine import TopicAnswer, check_change, check_topics_max
from backend.kafka.admission import TopicAdmission, may_be_system_topic
from backend.kafka.clients import admin as topic_admin
from backend.kafka.clients.admin import Cluster, Survey
from backend.kafka.commits.commit_queue import CommitQueue
from backend.kafka.engine.topic_upkeep import TopicUpkeep
from backend.kafka.options import KafkaOptions, incarnation_of
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import (
    ClusterTopic,
    KafkaTopic,
    TopicRegistry,
    decode_info,
    encode_info,
    to_kafka_topic,
)
from backend.records import QueueRef, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import (
    CallerError,
    DrainingError,
    RemoteError,
    UnknownTopicError,
)
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
REPLACED_S = 60.0  # after this, a topic with a new id is no mistake of a broker that is behind
CHANGED_CHECKS = 2  # of a topic that another process created or changed
DELETED_MAX = 1_000  # ids of deleted topics that no broker that is behind brings back
# A survey reads the names of all topics. So the time between two of them grows with their number.
INTERVAL_S_PER_TOPIC = 0.003
FULL_SURVEY_EVERY = 10  # surveys; a full one describes every topic, not only those that seem changed
NOT_CREATED = 0  # the incarnation of a recorded topic that may not exist in Kafka yet


class KafkaTopics:
    """Surveys the cluster's topics, and creates, changes and deletes topics.

    `add_to_producer` makes the producer of appends know a topic, in the cluster's thread; it may wait.
    `on_changed(name, before)` is called for each change, with the topic as it was.
    `on_other_cluster(reason)`: the brokers belong to another cluster than at first; with "", to the first one
    again.
    """

    def __init__(
        self,
        options: KafkaOptions,
        cluster: Cluster,
        clock: Clock,
        table: TopicRegistry,
        state: KafkaState,
        commits: CommitQueue,
        add_to_producer: Callable[[str], object],
        on_changed: Callable[[str, KafkaTopic | None], None],
        on_other_cluster: Callable[[str], object],
    ) -> None:
        self._options = options
        self._names = options.names
        self._admission = TopicAdmission(options.names)
        self._reported_roots: list[str] = []
        self._cluster = cluster
        self._upkeep = TopicUpkeep(cluster)
        self._clock = clock
        self._table = table
        self._state = state
        self._commits = commits
        self._add_to_producer = add_to_producer
        self._on_changed = on_changed
        self._on_other_cluster = on_other_cluster
        self._described: dict[str, ClusterTopic] = {}  # by our names
        self._deleted_ids: dict[str, None] = {}  # of topics that were deleted here
        self._changes: dict[str, deque[Callable[[], None]]] = {}  # those that wait, by names in change
        self._pending: set[Completion[Any]] = set()
        self._remaining_checks: dict[str, int] = {}  # of topics that another process changed
        self._survey_count = 0
        self._survey_waiters: list[Callable[[str], object]] = []  # for a survey that has not begun
        self._is_surveying = self._closed = self._is_unreachable = self._needs_full_survey = False
        self._is_outdated = False  # a topic has changed since the present survey began
        self._must_probe = False  # a connection to a broker was lost since the last survey began
        self._probed_at = float("-inf")  # when a survey was last started because of that
        self.reason = "the topics of the cluster are not known yet"
        self.cluster_id = ""
        self._timer = HubTimer(ref=False)
        self._interval_s = self._poll_s = options.topics_poll_ms / 1000

    @property
    def has_surveyed(self) -> bool:
        """Whether at least one survey has succeeded."""
        return self._survey_count > 0

    # --- surveys

    def start(self) -> None:
        """Survey the topics now, and then periodically; often after another process has changed a topic."""
        self._timer.once(self._poll_s if self._remaining_checks else self._interval_s, self.start)
        self.survey()

    def survey_all(self) -> None:
        """Start a survey that describes every topic, because a topic differs from its cached description."""
        self._needs_full_survey = True
        self._request_survey()

    def on_connection_lost(self) -> None:
        """Let the next survey try to connect to leaders, and start it now unless that was done lately."""
        self._must_probe = True
        now = self._clock.monotonic()
        if now - self._probed_at >= self._interval_s:
            self._probed_at = now
            self._request_survey()

    def _request_survey(self) -> None:
        """Start a survey, after the present one if there is one: that may have missed what changed."""
        self._is_outdated = self._is_surveying
        self.survey()

    def survey(self, then: Callable[[str], object] | None = None) -> None:
        """Start a survey of the cluster's topics.

        `then(reason)` follows a survey that begins after this call; `reason` says why it failed, or is empty.
        """
        if then is not None:
            self._survey_waiters.append(then)
        if self._is_surveying or self._closed:
            return
        self._is_surveying, self._is_outdated = True, False
        waiters, self._survey_waiters = self._survey_waiters, []
        is_full = self._survey_count % FULL_SURVEY_EVERY == 0 or self._needs_full_survey
        self._needs_full_survey = False
        before = {topic.kafka_name: topic.partitions for topic in self._described.values()}
        unchanged = None if is_full else dict(before)
        for name, checks in list(self._remaining_checks.items()):
            described = self._described.get(name)
            if unchanged is not None and described is not None:
                unchanged.pop(described.kafka_name, None)
            if checks > 1:
                self._remaining_checks[name] = checks - 1
            else:
                del self._remaining_checks[name]
        job = partial(
            topic_admin.survey_topics,
            select=partial(self._admission.select_topics, recorded=frozenset(self._state.topic_infos)),
            unchanged=unchanged,
            before=before,
            on_grown=self._add_to_producer,
            min_insync=self._table.min_insync,
            must_probe=self._must_probe or self._table.unavailable.needs_probe,
        )
        self._must_probe = False
        in_change = set(self._changes)

        def on_answer(survey: Survey | None, error: Exception | None) -> None:
            self._on_survey(survey, error, in_change)
            for waiter in waiters:
                waiter(self.reason)
            if self._survey_waiters or self._is_outdated:
                self.survey()

        self._cluster.run_job(job, on_answer)

    def _on_survey(self, survey: Survey | None, error: Exception | None, in_change: set[str]) -> None:
        """Apply a survey's result; topics in `in_change` were changed meanwhile and are skipped."""
        self._is_surveying = False
        if self._closed:
            return
        last_error = self._cluster.last_error
        if survey is None:
            why = last_error.reason_for(error or RemoteError("silent"))
            self._set_reason(f"Kafka at {self._options.bootstrap}: {why}")
            return
        last_error.clear()
        if self.cluster_id not in ("", survey.cluster_id):
            self._reject_cluster(survey.cluster_id)
            return
        if self._state.other_cluster:
            self._on_other_cluster("")
        self._survey_count += 1
        self._set_reason("")
        self.cluster_id = survey.cluster_id
        self._interval_s = max(self._poll_s, survey.topics * INTERVAL_S_PER_TOPIC)
        in_change |= set(self._changes)
        self._report_same_prefix_roots()
        for described in survey.described:
            name = survey.names[described.kafka_name]
            if name not in in_change and described.topic_id not in self._deleted_ids:
                self._set_topic(name, described)
                if not topic_admin.has_required_settings(name, described):
                    self._upkeep.set_unlimited_retention(name, described)
        for name, described in list(self._described.items()):
            if described.kafka_name not in survey.names and name not in in_change:
                self._remove_topic(name)
        self._table.leaderless = survey.leaderless
        self._table.unavailable.on_survey(
            {survey.names[kafka_name]: reason for kafka_name, reason in survey.blocked.items()},
            survey.has_probed,
        )

    def _report_same_prefix_roots(self) -> None:
        """Log installations that have the same topic names as this one, when their number changes."""
        same_prefix_roots = self._admission.find_same_prefix_roots()
        if same_prefix_roots and same_prefix_roots != self._reported_roots:
            log.error(
                "other installations on this cluster have the same topic_prefix as this one (%r): %s. Each"
                " of them also fires the delay levels of the others; give each its own topic_prefix",
                self._names.prefix, ", ".join(same_prefix_roots),
            )  # fmt: skip
        self._reported_roots = same_prefix_roots

    def _set_reason(self, reason: str) -> None:
        """Set why the engine is not ready, or ""; log one line when that begins and one when it ends."""
        if reason and not self._is_unreachable:
            log.warning("the cluster does not answer, retrying: %s", reason)
        elif not reason and self._is_unreachable:
            log.warning("the cluster answers again")
        self.reason, self._is_unreachable = reason, bool(reason)

    def _reject_cluster(self, cluster_id: str) -> None:
        """Ignore a survey's result, because it is from another cluster than the first one."""
        reason = (
            f"Kafka at {self._options.bootstrap} is cluster {cluster_id} now, and this process belongs to"
            f" cluster {self.cluster_id}, in whose place it does nothing: bring that cluster back, or set"
            " bootstrap to its brokers and start this process again"
        )
        self.reason, self._is_unreachable = reason, True
        if reason != self._state.other_cluster:
            log.error("%s", reason)
            self._on_other_cluster(reason)

    def trim(self, queue: QueueRef, before: int) -> None:
        """Delete the records of a queue below an offset; see Backend.trim."""
        topic = self._table.find_queue_topic(queue)
        if topic is not None and not self._state.other_cluster:
            self._upkeep.trim_queue(topic, queue, before)

    def on_info_changed(self, name: str) -> None:
        """Apply changed stored settings of a topic, and describe it again if Kafka's settings changed too.

        Some more surveys follow soon: a broker may learn of the change, or of a new topic, a little later.
        """
        described = self._described.get(name)
        if name not in self._changes:
            if described is not None:
                self._set_topic(name, described)
            if described is not None or self.has_surveyed:
                if not self._remaining_checks and self._interval_s > self._poll_s:
                    self._timer.once(self._poll_s, self.start)
                self._remaining_checks[name] = CHANGED_CHECKS
            self._request_survey()

    def _set_topic(self, name: str, described: ClusterTopic) -> None:
        topic = to_kafka_topic(name, described, self._state.topic_infos.get(name))
        former = self._described.get(name)
        if former is not None and former.topic_id != described.topic_id:
            self._on_replaced(name, former)
        self._described[name] = described
        before = self._table.find_topic(name)
        if before != topic:
            self._table.topics[name] = topic
            self._on_changed(name, before)

    def _on_replaced(self, name: str, former: ClusterTopic) -> None:
        """Schedule the deletion of a replaced topic's progress.

        It is delayed, because the description may have come from a broker that is not up to date.
        """
        self._upkeep.forget_topic(name)
        HubTimer(ref=False).once(REPLACED_S, lambda: self._drop_former_progress(name, former))

    def _drop_former_progress(self, name: str, former: ClusterTopic) -> None:
        described = self._described.get(name)
        if not self._closed and described is not None and described.topic_id != former.topic_id:
            deadline = self._clock.monotonic() + REPLACED_S
            self._commits.drop_progress(name, incarnation_of(former.topic_id), deadline)

    def _remove_topic(self, name: str) -> None:
        self._upkeep.forget_topic(name)
        del self._described[name]
        before = self._table.topics.pop(name, None)
        if before is not None:
            self._on_changed(name, before)

    # --- changes

    def put(self, info: TopicInfo, deadline: float, answer: TopicAnswer, topics_max: int | None) -> None:
        """Create or change a topic whose `info` was checked; see Backend.put_topic."""
        self._enqueue_change(
            info.name, answer, deadline, lambda: self._put(info, deadline, answer, topics_max)
        )

    def _put(self, info: TopicInfo, deadline: float, answer: TopicAnswer, topics_max: int | None) -> None:
        topic = self._table.find_topic(info.name)
        if info.incarnation == 0 and topic is not None:
            self._succeed(info.name, answer, topic.info)
            return
        if info.incarnation == 0:
            others = {*self._table.topics, *self._changes} - {info.name}  # existing, or being made here
            check_topics_max(len(others), topics_max)
            self._create(info, deadline, answer)
            return
        check_change(info, None if topic is None else topic.info)
        job = partial(self._change_topic, self._described[info.name], info)
        self._cluster.run_job(
            job, lambda result, error: self._store_info(info, deadline, answer, result, error)
        )

    def _create(self, info: TopicInfo, deadline: float, answer: TopicAnswer) -> None:
        """Create a topic in Kafka, then store its settings.

        A topic that the patterns do not admit is recorded in the settings topic first. So it is visible even
        if this process is killed before it has stored the settings.
        """
        kafka_name = self._names.to_kafka(info.name)
        is_admitted = self._names.from_kafka(kafka_name, self._state.topic_infos) is not None

        def create() -> None:
            self._cluster.run_job(partial(self._run_creation, kafka_name, info), on_created)

        def on_created(result: tuple[ClusterTopic, bool] | None, error: Exception | None) -> None:
            self._store_info(info, deadline, answer, result, error)
            if isinstance(error, CallerError) and self._names.from_kafka(kafka_name) is None:
                self._drop_intent(info.name, deadline)

        def on_recorded(put: Completion[None]) -> None:
            if put.error is not None:
                self._fail(info.name, answer, put.error)
            else:
                create()

        def on_checked(done: bool | None, error: Exception | None) -> None:
            if done is None:
                self._fail(info.name, answer, error)
            elif is_admitted:
                create()
            else:
                intent = encode_info(replace(info, incarnation=NOT_CREATED))
                self._commits.put_topic_info(info.name, intent, deadline).then(on_recorded)

        if is_admitted and not may_be_system_topic(kafka_name):
            create()
        else:
            self._cluster.run_job(partial(self._check_name, info.name, kafka_name, is_admitted), on_checked)

    def _check_name(self, name: str, kafka_name: str, is_admitted: bool, admin: Any) -> bool:
        """Raise CallerError if a new topic with this name would not be visible, or is another program's.

        The cluster's present topics count: an installation may have started after the last survey. Runs in
        the cluster's thread.
        """
        if may_be_system_topic(kafka_name):
            owner = self._admission.owner_of_new(kafka_name, topic_admin.list_names(admin))
            if owner:
                raise CallerError(
                    f"topic {name} would be {kafka_name} in Kafka, a system topic of the installation"
                    f" {owner}; allowed: any other name"
                )
        if not is_admitted and topic_admin.describe_topics(admin, [kafka_name]):
            raise CallerError(
                f"topic {name} exists in Kafka ({kafka_name}), created by another program, and `topics` in"
                " backend.yaml does not admit it; allowed: a pattern that does, or another name"
            )
        return True

    def _drop_intent(self, name: str, deadline: float) -> None:
        """Remove the record of a topic that Kafka has refused to create.

        Otherwise a topic that another program creates later under this name would be visible. The record of
        a topic that another process has created meanwhile stays.
        """

        def on_followed(_: Completion[None]) -> None:
            stored = decode_info(self._state.topic_infos.get(name))
            if stored is not None and stored.incarnation == NOT_CREATED and name not in self._changes:
                self._commits.put_topic_info(name, None, deadline)

        self._state.catch_up().then(on_followed)

    def _run_creation(self, kafka_name: str, info: TopicInfo, admin: Any) -> tuple[ClusterTopic, bool]:
        described = topic_admin.create_topic(admin, self._options, kafka_name, info)
        self._add_to_producer(kafka_name)
        return described, False

    def _change_topic(self, before: ClusterTopic, info: TopicInfo, admin: Any) -> tuple[ClusterTopic, bool]:
        described, is_changed = topic_admin.change_topic(admin, before, info)
        if described.partitions > before.partitions:
            self._add_to_producer(described.kafka_name)
        return described, is_changed

    def _store_info(
        self,
        info: TopicInfo,
        deadline: float,
        answer: Completion[TopicInfo],
        result: tuple[ClusterTopic, bool] | None,
        error: Exception | None,
    ) -> None:
        if result is None:
            self._fail(info.name, answer, error)
            return
        described, is_changed = result
        incarnation = incarnation_of(described.topic_id)
        stored = decode_info(self._state.topic_infos.get(info.name))
        if info.incarnation == 0 and stored is not None and stored.incarnation == incarnation:
            self._on_put_done(info.name, answer, described)  # another process has made it
            return
        new_info = replace(info, incarnation=incarnation, queues=described.partitions)
        earlier = 0 if stored is None or stored.incarnation != incarnation else stored.changes
        data = encode_info(new_info, is_changed + earlier)
        put = self._commits.put_topic_info(info.name, data, deadline)
        put.then(lambda put: self._on_put_done(info.name, answer, described, put.error))

    def _on_put_done(
        self,
        name: str,
        answer: Completion[TopicInfo],
        described: ClusterTopic,
        error: Exception | None = None,
    ) -> None:
        self._set_topic(name, described)
        if error is not None:
            self._fail(name, answer, error)
        else:
            self._succeed(name, answer, self._table.topics[name].info)

    def delete(self, name: str, deadline: float, answer: Completion[None]) -> None:
        """Delete a topic; see Backend.delete_topic."""
        self._enqueue_change(name, answer, deadline, lambda: self._delete(name, deadline, answer))

    def _delete(self, name: str, deadline: float, answer: Completion[None]) -> None:
        described = self._described.get(name)
        if described is None:
            raise UnknownTopicError(f"topic {name} does not exist")

        def on_deleted(_: None, error: Exception | None) -> None:
            if error is not None and not isinstance(error, UnknownTopicError):
                self._fail(name, answer, error)
                return
            self._deleted_ids[described.topic_id] = None
            if len(self._deleted_ids) > DELETED_MAX:
                del self._deleted_ids[next(iter(self._deleted_ids))]
            if name in self._described:
                self._remove_topic(name)
            self._commits.drop_progress(name, incarnation_of(described.topic_id), deadline)
            put = self._commits.put_topic_info(name, None, deadline)
            put.then(lambda put: self._on_info_deleted(name, answer, put.error))

        self._cluster.run_job(partial(topic_admin.delete_topic, name=described.kafka_name), on_deleted)

    def _on_info_deleted(self, name: str, answer: Completion[None], error: Exception | None) -> None:
        if error is not None:
            self._fail(name, answer, error)
        else:
            self._succeed(name, answer, None)

    # --- one change after the other

    def _enqueue_change(
        self, name: str, answer: Completion[Any], deadline: float, change: Callable[[], None]
    ) -> None:
        """Call `change` after the earlier changes of the topic `name` are done."""

        def begin() -> None:
            if answer.done or self._closed:
                self._begin_next(name)
                return
            try:
                change()
            except Exception as error:
                self._fail(name, answer, error)

        self._pending = {completion for completion in self._pending if not completion.done}
        self._pending.add(answer)
        timeout = HubTimer(ref=False)
        timeout.once(deadline - self._clock.monotonic(), partial(_time_out, name, answer))
        answer.then(lambda _: timeout.stop())
        waiting = self._changes.get(name)
        if waiting is not None:
            waiting.append(begin)
        else:
            self._changes[name] = deque()
            begin()

    def _succeed(self, name: str, answer: Completion[Any], value: Any) -> None:
        try:
            if not answer.done:
                answer.succeed(value)
        finally:
            self._begin_next(name)

    def _fail(self, name: str, answer: Completion[Any], error: Exception | None) -> None:
        try:
            if not answer.done:
                answer.fail(error or RemoteError(f"topic {name}: no answer"))
        finally:
            self._begin_next(name)

    def _begin_next(self, name: str) -> None:
        waiting = self._changes.get(name)
        if not waiting:
            self._changes.pop(name, None)
        else:
            waiting.popleft()()

    def close(self) -> None:
        """Stop surveying; pending changes fail."""
        self._closed = True
        self._timer.stop()
        self._changes.clear()
        self._cluster.close()
        for answer in self._pending:
            if not answer.done:
                answer.fail(DrainingError("the Kafka engine was closed"))


def _time_out(name: str, answer: Completion[Any]) -> None:
    if not answer.done:
        answer.fail(RemoteError(f"topic {name}: no answer of Kafka by the deadline"))
