"""The delay service as one producer proxy sees it: whether there is one, what it reads and answers, which
topics take no more, in whose words topics are asked for delays, and what old delay servers send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from random import Random

from backend.completion import Completion
from backend.port import Backend
from backend.records import NewRecord, QueueRef
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    COMMAND_PROPERTY,
    DelayCommand,
    decode_full,
    encode_command,
    parse_delay_id,
)
from ddmq_common.delays.schedules import ScheduleLimits
from ddmq_common.errors import DdmqError
from ddmq_common.names import DELAY_DIALECTS, DELAY_FULL_PREFIX, DELAY_GROUP, DELAY_TOPIC, OUTCOME_TOPIC
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import relay_command, uuid_of
from proxy_producer.core.dialects import Dialects, dialects
from proxy_producer.counts import SendCounts
from proxy_producer.delay.outcomes import OutcomeWaiters
from proxy_producer.topics import InternalTopic

ASK_S = 2.0  # between two questions while one is there
ANSWER_S = 0.5
WAITERS_MAX = 1_000


class Presence:
    """Is there a delay service that would fire what this proxy takes? Asked for code 21, from a cache.

    The backend is asked who holds the shards, when this proxy starts and now and then while delay requests
    come. As long as it has not answered, or cannot, the answer is yes: a command is durable all the same.
    Where a service has ever run, as its inner topic tells, none for `grace_s` is a takeover or a restart, not
    an absence; we may have started first. Before a request is refused the backend is asked again, so that a
    service that has just begun is noticed.
    """

    def __init__(self, backend: Backend, clock: Clock, grace_s: float) -> None:
        self._backend = backend
        self._monotonic = clock.monotonic
        self._grace_s = grace_s
        self._absent_since: float | None = None
        self._ran = False
        self._asking = False
        self._ask_at = 0.0
        self._telling = False
        self._waiting: list[Callable[[], object]] = []
        self._ask(clock.monotonic())

    def absent(self) -> bool:
        """No delay service is running, as far as is known."""
        now = self._monotonic()
        if now >= self._ask_at and not self._asking:
            self._ask(now)
        since = self._absent_since
        return since is not None and (not self._ran or now - since > self._grace_s)

    def look_again(self, call: Callable[[], object]) -> bool:
        """True: `call` follows, when the backend has been asked after this; False: it is such a call."""
        if self._telling or len(self._waiting) >= WAITERS_MAX:
            return False
        self._waiting.append(call)
        if not self._asking:
            self._ask(self._monotonic())
        return True

    def _ask(self, now: float) -> None:
        if self._backend.topic(DELAY_TOPIC) is None:
            self._heard({}, now)  # nobody can hold a shard of it
            return
        self._ran = self._asking = True
        try:
            self._backend.holders(DELAY_GROUP, DELAY_TOPIC, now + ANSWER_S).then(self._answered)
        except DdmqError:
            self._unknown(now)

    def _answered(self, answer: Completion[Mapping[QueueRef, str]]) -> None:
        now = self._monotonic()
        if answer.error is None:
            self._heard(answer.value, now)
        else:
            self._unknown(now)

    def _heard(self, holders: Mapping[QueueRef, str], now: float) -> None:
        if holders:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        self._tell(now)

    def _unknown(self, now: float) -> None:
        """Then a command is worth a try."""
        self._absent_since = None
        self._tell(now)

    def _tell(self, now: float) -> None:
        self._asking = False
        self._ask_at = now + ASK_S
        waiting, self._waiting = self._waiting, []
        self._telling = True
        try:
            for call in waiting:
                call()
        finally:
            self._telling = False


class FullTopics:
    """Topics that take no more delayed messages for now, as the delay services say (delay_service/quota.py).

    `names` is nearly always empty; the hot path looks there.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.names: frozenset[str] = frozenset()
        self._unwatch: Callable[[], None] = backend.watch_settings(self._changed, DELAY_FULL_PREFIX)
        self._changed(DELAY_FULL_PREFIX)

    def close(self) -> None:
        """Hear of no more changes."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        told = self._backend.settings(DELAY_FULL_PREFIX).values()
        self.names = frozenset(topic for value in told for topic in decode_full(value))


class TopicDialects:
    """Which topics speak which delay dialects: what a topic says of itself comes before what this proxy's
    configuration says of it. `spoken`: by topic, as on the wire; empty for nearly everyone."""

    def __init__(self, backend: Backend, configured: Mapping[str, tuple[str, ...]]) -> None:
        self._backend = backend
        self._configured = {name: dialects(names) for name, names in configured.items()}
        self.spoken: dict[bytes, Dialects] = {name.encode(): d for name, d in self._configured.items()}
        self._unwatch = backend.watch_settings(self._changed, "topic/")
        for name in backend.topics():
            self._learn(name)

    def close(self) -> None:
        """Topics are watched no more."""
        self._unwatch()

    def _changed(self, key: str) -> None:
        self._learn(key.removeprefix("topic/"))

    def _learn(self, name: str) -> None:
        """What the topic speaks by now; names of a newer program mean nothing here."""
        info = self._backend.topic(name)
        known = () if info is None else [one for one in info.delay_dialects if one in DELAY_DIALECTS]
        spoken = dialects(known) if known else self._configured.get(name)
        if spoken is not None:
            self.spoken[name.encode()] = spoken
        else:
            self.spoken.pop(name.encode(), None)


class Relays:
    """What an old delay server still sends, messages with from_chronos and an occurrence's id as their key,
    as commands.

    A cancel of that id may have reached us instead of it. Who knows is the delay service, so the message goes
    through it, due at once and only unless that uuid was cancelled: one decision, in one place, in the order
    in which both came. Each send is a message of its own: consumers send on what they got, key and all, and
    what was answered 0 is delivered. So what an old server resends comes twice, as it did there. While no
    delay service is seen the message is stored as it is: cancels find nobody either.
    """

    def __init__(self, commands: InternalTopic, presence: Presence, clock: Clock) -> None:
        self._commands = commands
        self._presence = presence
        self._wall_ms = clock.wall_ms

    def command(self, record: NewRecord, place: tuple[int, int]) -> DelayCommand | None:
        """For a message with from_chronos; None: it is stored as it is. `place`: (partitionId, hashId)."""
        key = parse_delay_id(record.key)
        if key is None or key.shard < 0 or self._presence.absent():
            return None
        uuid = uuid_of(blake2b(record.message_id + record.key, digest_size=16).digest())
        return relay_command(key, record.topic, uuid, self._wall_ms(), place)

    def relayed(self, record: NewRecord, place: tuple[int, int]) -> NewRecord:
        """For one in a batch: the record to append, often the same."""
        command = self.command(record, place) if self._commands.ready else None
        if command is None:
            return record
        return NewRecord(
            DELAY_TOPIC, command.shard % self._commands.queues, record.message_id, record.born_ms,
            record.delivery, flags=record.flags, system={COMMAND_PROPERTY: encode_command(command)},
        )  # fmt: skip


OUTCOME_QUEUES = 64


class DelayContext:
    """`presence`: is there a delay service? `commands`: the topic it reads. `outcomes`: what it answers.
    `relays`: for what old delay servers send. `full`: topics that take no more for now. `dialects`: in whose
    words topics are asked for delays."""

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
        self.relays = Relays(self.commands, self.presence, clock)
        self.full = FullTopics(backend)
        self.dialects = TopicDialects(backend, delay.dialects)
        self.limits = ScheduleLimits(delay.delay_s_max * 1_000, delay.occurrences_max, delay.period_ms_min)
        self._shards = delay.shards

    @property
    def shards(self) -> int:
        """How many there are; it may be more than the configuration knows of."""
        return max(self._shards, self.commands.queues)

    def close(self) -> None:
        """Hear nothing more."""
        self.commands.close()
        self.full.close()
        self.outcomes.close()
        self.dialects.close()
