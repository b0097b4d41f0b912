"""TopicDoubts: nothing is refused for a topic that seems not to be there before the cluster was asked.

Topics that other processes make are seen within `topics_poll_ms`; who writes to one before that waits here
until what was answered by now is followed, and a survey that began after it. A topic of which something is
kept, and which the asked broker does not have, is looked for a few times more: a broker may hear of it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from backend.completion import Completion
from backend.kafka.topics.known import KafkaTopics
from backend.records import NewRecord
from ddmq_common.errors import DdmqError, DrainingError, TryLaterError
from ddmq_common.hub_timer import HubTimer

LOOKS = 4
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
        elif missing and doubt.looks < LOOKS:
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
