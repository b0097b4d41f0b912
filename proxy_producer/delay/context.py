"""What delayed sends of one proxy share: the delay service as far as it is seen from here."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from backend.port import Backend
from ddmq_common.clock import Clock
from ddmq_common.delays.schedules import ScheduleLimits
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_checks import DelayRules
from proxy_producer.counts import SendCounts
from proxy_producer.delay.full import FullTopics
from proxy_producer.delay.outcomes import OutcomeWaiters
from proxy_producer.delay.presence import Presence
from proxy_producer.delay.topic_dialects import TopicDialects
from proxy_producer.internal_topic import InternalTopic

OUTCOME_QUEUES = 64


class DelayContext:
    """`presence`: is there a delay service? `commands`: the topic it reads. `outcomes`: what it answers.
    `full`: topics that take no more for now. `dialects`: in whose words topics are asked for delays."""

    def __init__(
        self,
        backend: Backend,
        config: ProducerConfig,
        clock: Clock,
        counts: SendCounts,
        random: Random,
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        timeout_s, delay = config.timeout_ms_max / 1_000, config.delay
        self.presence = Presence(backend, clock, delay.absent_ms / 1_000)
        self.commands = InternalTopic(backend, DELAY_TOPIC, 1, clock, timeout_s)
        heard = InternalTopic(backend, OUTCOME_TOPIC, OUTCOME_QUEUES, clock, timeout_s)
        self.outcomes = OutcomeWaiters(backend, clock, random, counts, heard, delay.waiters_max, later)
        self.full = FullTopics(backend)
        self.dialects = TopicDialects(backend, delay.dialects)
        self.delay_s_max = delay.delay_s_max
        self.schedule_limits = ScheduleLimits(
            delay.delay_s_max * 1_000, delay.occurrences_max, delay.period_ms_min
        )
        self._rules = DelayRules(delay.delay_s_max, delay.occurrences_max, delay.shards, delay.period_ms_min)

    def rules(self) -> DelayRules:
        """What is allowed now: there may be more shards than the configuration knows of."""
        return self._rules._replace(shards=max(self._rules.shards, self.commands.queues))

    def close(self) -> None:
        """Hear nothing more."""
        self.commands.close()
        self.full.close()
        self.outcomes.close()
        self.dialects.close()
