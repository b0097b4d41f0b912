"""MissingTopics: keeps a record from being rejected for an unknown topic before the cluster was queried.

Topics that other processes create become visible within `topics_poll_ms`. A call that writes to one before
that waits until every record that is answered by now was followed, and then for a survey. If a topic has
stored settings but the queried broker does not have it, the survey is repeated a few times: a broker may
learn of a topic later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backend.completion import Completion
from backend.kafka.engine.topics import KafkaTopics
from backend.kafka.state.followed import KafkaState
from backend.kafka.topic_info import TopicRegistry
from backend.records import NewRecord
from ddmq_common.errors import DdmqError, DrainingError, TryLaterError
from ddmq_common.hub_timer import HubTimer

MISSING_CHECKS = 4
MISSING_PAUSE_S = 0.3
OnConfirmed = Callable[[DdmqError | None], object]


class _Confirmation:
    """A call that waits for a survey of the cluster. `then` is called once."""

    def __init__(self, names: frozenset[str], then: OnConfirmed) -> None:
        self.names, self.then = names, then
        self.checks = 0


class MissingTopics:
    """Asks the cluster about topics that this process does not know, before a record for them is rejected."""

    def __init__(self, table: TopicRegistry, topics: KafkaTopics, state: KafkaState) -> None:
        self._table = table
        self._topics = topics
        self._state = state
        self._absent: dict[str, bytes] = {}  # stored settings of topics that Kafka does not have, confirmed
        self._open: dict[_Confirmation, None] = {}

    def find_unknown(self, records: Iterable[NewRecord]) -> frozenset[str]:
        """Return the topics of these records that are unknown here, or known with too few queues."""
        topics = self._table.topics
        return frozenset(
            record.topic
            for record in records
            if (topic := topics.get(record.topic)) is None or record.queue_id >= topic.info.queues
        )

    def catch_up(self) -> Completion[None]:
        """Settle when this process knows every topic that was confirmed to any process.

        See Backend.caught_up.
        """
        answer: Completion[None] = Completion()

        def settle_answer(error: Exception | None) -> None:
            if error is None:
                answer.succeed(None)
            else:
                answer.fail(error)

        def on_followed(barrier: Completion[None]) -> None:
            missing = self._find_missing()
            if barrier.error is not None or not missing:
                settle_answer(barrier.error)
            else:
                self.confirm_topics(missing, settle_answer)

        self._state.catch_up().then(on_followed)
        return answer

    def _find_missing(self) -> frozenset[str]:
        """Return the topics that have stored settings and are unknown here."""
        infos, topics = self._state.topic_infos, self._table.topics
        self._absent = {name: info for name, info in self._absent.items() if infos.get(name) == info}
        return frozenset(name for name in infos if name not in self._absent and name not in topics)

    def confirm_topics(self, names: frozenset[str], then: OnConfirmed) -> None:
        """Call `then(None)` after the cluster was asked for these topics, or `then(error)` if that failed."""
        confirmation = _Confirmation(names, then)
        self._open[confirmation] = None
        self._state.catch_up().then(lambda barrier: self._survey_missing(confirmation, barrier.error))

    def _survey_missing(self, confirmation: _Confirmation, error: Exception | None) -> None:
        if error is not None:
            self._end(confirmation, _uncertain_topic_error(confirmation, error))
        else:
            self._topics.survey(lambda reason: self._on_survey(confirmation, reason))

    def _on_survey(self, confirmation: _Confirmation, reason: str) -> None:
        confirmation.checks += 1
        missing = self._find_missing() & confirmation.names
        if reason:
            self._end(confirmation, _uncertain_topic_error(confirmation, reason))
        elif missing and confirmation.checks < MISSING_CHECKS:
            HubTimer(ref=False).once(MISSING_PAUSE_S, lambda: self._survey_missing(confirmation, None))
        else:
            infos = self._state.topic_infos
            self._absent.update((name, infos[name]) for name in missing)
            self._end(confirmation, None)

    def _end(self, confirmation: _Confirmation, error: DdmqError | None) -> None:
        if confirmation in self._open:
            del self._open[confirmation]
            confirmation.then(error)

    def close(self) -> None:
        """Fail every waiting call."""
        for confirmation in list(self._open):
            self._end(confirmation, DrainingError("the Kafka engine was closed"))


def _uncertain_topic_error(confirmation: _Confirmation, reason: object) -> TryLaterError:
    names = ", ".join(sorted(confirmation.names))
    return TryLaterError(f"not known whether topic {names} is there: {reason}")
