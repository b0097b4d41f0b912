"""The delay service and the delay levels as one producer proxy sees them.

The DelayContext knows whether a delay service runs, the topics that it reads and answers in, which topics
take no more delayed messages, which delay dialects topics speak, and how the messages of old delay servers
become commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from random import Random

from backend.completion import Completion
from backend.port import Backend
from backend.records import NewRecord, QueueRef
from ddmq_client.idl.codes import Code
from ddmq_common.clock import Clock
from ddmq_common.delays.command import (
    COMMAND_PROPERTY,
    DelayCommand,
    Schedule,
    decode_full,
    encode_command,
    parse_delay_id,
)
from ddmq_common.delays.levels import Levels
from ddmq_common.delays.schedules import ScheduleLimits
from ddmq_common.errors import DdmqError
from ddmq_common.names import (
    DELAY_DIALECTS,
    DELAY_FULL_PREFIX,
    DELAY_GROUP,
    DELAY_TOPIC,
    OUTCOME_TOPIC,
    SCHEDULE_TOPIC,
)
from proxy_producer.config import ProducerConfig
from proxy_producer.core.delay_requests import relay_command, schedule_command, uuid_of
from proxy_producer.core.dialects import Dialects, dialects
from proxy_producer.core.identity import delay_uuid
from proxy_producer.core.refusals import SendRefusal
from proxy_producer.counts import SendCounts
from proxy_producer.delay.outcomes import OutcomeWaiters
from proxy_producer.topics import InternalTopic
from proxy_producer.wire import SendRequest

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

    def retries(self, fault: SendRefusal, call: Callable[[], object]) -> bool:
        """Return whether `call` follows: for code 21, once the backend has been asked again.

        A delay service that has just begun is noticed so. Such a call itself is not made twice.
        """
        if fault.code is not Code.NO_SERVICE or self._telling or len(self._waiting) >= WAITERS_MAX:
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
    """Make commands of what old delay servers send: messages with from_chronos and an occurrence's id as key.

    A cancel of that id may have reached this system instead of the old one, and only the delay service knows.
    So the message goes through the service, due at once, unless that uuid was cancelled: one decision, in one
    place, in the order in which both came. Each send is a message of its own: consumers resend what they got,
    key and all, and a send that was answered 0 is delivered. A message that an old server sends again is
    therefore delivered twice, as it was there. While no delay service runs the message goes to its topic.
    """

    def __init__(self, commands: InternalTopic, presence: Presence, clock: Clock) -> None:
        self._commands = commands
        self._presence = presence
        self._wall_ms = clock.wall_ms

    def make_command(self, record: NewRecord, place: tuple[int, int]) -> DelayCommand | None:
        """Return the command for a message with from_chronos; None: store the message in its topic.

        `place`: (partitionId, hashId).
        """
        key = parse_delay_id(record.key)
        if key is None or key.shard < 0 or self._presence.absent() or not self._commands.ready:
            return None
        uuid = uuid_of(blake2b(record.message_id + record.key, digest_size=16).digest())
        return relay_command(key, record.topic, uuid, self._wall_ms(), place)


def command_record(record: NewRecord, command: DelayCommand, shards: int) -> NewRecord:
    """Return the record that hands a message to the delay service. `shards`: queues of its topic."""
    return NewRecord(
        DELAY_TOPIC, command.shard % max(shards, 1), record.message_id, record.born_ms, record.delivery,
        flags=record.flags, system={COMMAND_PROPERTY: encode_command(command)},
    )  # fmt: skip


class DelayLevels:
    """The waits that DELAY=n means to one producer proxy, and the topic that has a queue for each of them."""

    def __init__(self, backend: Backend, table: Levels, clock: Clock, timeout_s: float) -> None:
        self.table = table
        self.topic = InternalTopic(backend, SCHEDULE_TOPIC, len(table), clock, timeout_s)


OUTCOME_QUEUES = 64


class DelayContext:
    """What one producer proxy shares with the delay service.

    `presence`: whether a service runs. `commands`: the topic that it reads. `outcomes`: its answers.
    `relays`: for messages of old delay servers. `full`: topics that take no more for now. `dialects`: of each
    topic.
    """

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
        self._random = random
        self.presence = Presence(backend, clock, delay.absent_ms / 1_000)
        self.commands = InternalTopic(backend, DELAY_TOPIC, 1, clock, timeout_s)
        outcome_topic = InternalTopic(backend, OUTCOME_TOPIC, OUTCOME_QUEUES, clock, timeout_s)
        self.outcomes = OutcomeWaiters(
            backend, clock, random, counts, outcome_topic, delay.waiters_max, later
        )
        self.relays = Relays(self.commands, self.presence, clock)
        self.full = FullTopics(backend)
        self.dialects = TopicDialects(backend, delay.dialects)
        self.limits = ScheduleLimits(delay.delay_s_max * 1_000, delay.occurrences_max, delay.period_ms_min)
        self._shards = delay.shards

    @property
    def shards(self) -> int:
        """Return how many shards there are; there may be more than the configuration says."""
        return max(self._shards, self.commands.queues)

    def place_command(self, request: SendRequest) -> DelayCommand:
        """Complete the command of a request in a delay dialect: its topic, uuid and shard."""
        identity, command = request.identity, request.command
        if command is None:
            raise RuntimeError("a request without a delay was given to the delay service")
        drawn = delay_uuid(identity) if isinstance(identity, str) else self._random.randbytes(16)
        schedule, uuid = command.schedule or Schedule(), uuid_of(drawn)
        shards = self.commands.queues
        return schedule_command(schedule, command.due_ms, request.topic_name, uuid, shards, request.place)

    def close(self) -> None:
        """Hear nothing more."""
        self.commands.close()
        self.full.close()
        self.outcomes.close()
        self.dialects.close()
