"""The context of the shards of one producer proxy: the backend, bounds, counts, the topics that they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from backend.completion import Completion
from backend.internal_topics import ready_topic
from backend.port import Backend
from backend.records import TopicInfo
from ddmq_client.idl.codes import TransactionOutcome
from ddmq_common.clock import Clock
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import HALF_TOPIC, OP_TOPIC
from proxy_producer.config import ProducerConfig
from proxy_producer.core.rejections import SendRejection, to_rejection
from proxy_producer.delay.context import DelayLevels
from proxy_producer.topics import InternalTopic
from proxy_producer.transactions.combined_commits import CombinedCommits
from proxy_producer.transactions.core.clock import SteadyClock
from proxy_producer.transactions.core.rules import TransactionRules

OUTCOMES = {TransactionOutcome.COMMITTED: "committed", TransactionOutcome.ROLLED_BACK: "rolled back"}


class TransactionCounts:
    """All transaction metrics of one producer proxy."""

    def __init__(self, metrics: Registry) -> None:
        self._metrics = metrics
        metric = catalogue.TRANSACTIONS_ENDED
        self._decided = {kind: metrics.cell(metric, name) for kind, name in OUTCOMES.items()}
        self.open = metrics.cell(catalogue.TRANSACTIONS_OPEN)
        self.oldest_ms = metrics.cell(catalogue.TRANSACTIONS_AGE)
        self.checks = metrics.cell(catalogue.TRANSACTIONS_CHECKS)

    def count_decided(self, outcome: TransactionOutcome, reason: str) -> None:
        """Count an ended transaction. `reason`: why it became a dead letter."""
        cell = self._decided.get(outcome) or self._metrics.cell(catalogue.TRANSACTIONS_ENDED, reason)
        cell.value += 1

    def count_rejected(self, reason: str) -> None:
        """Count a rejected call, or a half message that belongs to no transaction."""
        self._metrics.cell(catalogue.TRANSACTIONS_REFUSED, reason).value += 1


class TransactionTopics:
    """The half topic and the op topic. They are created on first use, and their queue counts never change."""

    def __init__(self, backend: Backend, shards: int, clock: Clock, timeout_s: float) -> None:
        self._backend = backend
        self._shards = shards
        self._clock = clock
        self._timeout_s = timeout_s
        # Bounded like all calls in flight.
        self._waiting: list[Callable[[SendRejection | None], None]] | None = None

    @property
    def shards(self) -> int:
        """Return the number of queues of the half topic; 0 while the topics do not exist."""
        info = self._backend.topic(HALF_TOPIC)
        return 0 if info is None or self._backend.topic(OP_TOPIC) is None else info.queues

    def when_ready(self, call: Callable[[SendRejection | None], None]) -> None:
        """Create the topics if necessary, then call `call(None)`, or `call(rejection)` if that fails.

        May call at once.
        """
        if self.shards:
            call(None)
        elif self._waiting is not None:
            self._waiting.append(call)
        else:
            self._waiting = [call]
            self._create_topic(HALF_TOPIC, self._on_half_created)

    def _create_topic(self, name: str, then: Callable[[Completion[TopicInfo]], None]) -> None:
        half = self._backend.topic(HALF_TOPIC)
        queues = self._shards if half is None else half.queues
        ready_topic(self._backend, name, queues, self._clock.monotonic() + self._timeout_s).then(then)

    def _on_half_created(self, creation: Completion[TopicInfo]) -> None:
        if creation.error is None:
            self._create_topic(OP_TOPIC, self._on_created)
        else:
            self._on_created(creation)

    def _on_created(self, creation: Completion[TopicInfo]) -> None:
        rejection = None if creation.error is None else to_rejection(creation.error)
        waiting, self._waiting = self._waiting or [], None
        for call in waiting:
            call(rejection)


class TransactionContext(NamedTuple):
    """The objects that all shards of one proxy share.

    `on_claim_uncertain()`: called when a claim has ended or the outcome of a commit is unknown; all shards
    are claimed again. `shard_ready()`: called when a shard starts to accept requests. `commands`: the delay
    service's topic. `commits`: combines commits. `steady`: the clock for checks and ages.
    """

    backend: Backend
    config: ProducerConfig
    clock: Clock
    counts: TransactionCounts
    levels: DelayLevels
    commands: InternalTopic
    commits: CombinedCommits
    on_claim_uncertain: Callable[[], None]
    shard_ready: Callable[[], None]
    steady: SteadyClock

    def now_ms(self) -> int:
        """Return the current time of the shards' clock in milliseconds."""
        return self.steady.read(self.clock.monotonic())

    @property
    def rules(self) -> TransactionRules:
        limits = self.config.transactions
        return TransactionRules(
            limits.open_max, limits.outcomes_max, limits.checks_max, limits.check_after_ms,
            limits.check_interval_ms, limits.age_ms_max, limits.messages_max, limits.bytes_max,
        )  # fmt: skip

    def deadline(self) -> float:
        """Return the deadline of a backend request that starts now, in monotonic seconds."""
        return self.clock.monotonic() + self.config.timeout_ms_max / 1e3
