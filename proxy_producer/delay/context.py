"""The delay service and the delay levels as one producer proxy sees them.

The DelayContext knows whether a delay service runs, the topics that it reads and answers in, which topics
take no more delayed messages, which delay dialects topics speak, and how the messages of old delay servers
become commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from random import Random

import msgspec

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
from proxy_producer.core.dialects import Dialects, select_dialects
from proxy_producer.core.identity import delay_uuid
from proxy_producer.core.rejections import SendRejection
from proxy_producer.counts import SendCounts
from proxy_producer.delay.outcomes import OutcomeWaiters
from proxy_producer.topics import InternalTopic
from proxy_producer.wire import SendRequest

REQUEST_INTERVAL_S = 2.0  # between two questions while one is there
ANSWER_S = 0.5
WAITERS_MAX = 1_000


class Presence:
    """Knows whether a delay service is running. Its cached answer decides about code 21.

    The backend is asked for the owners of the shards when this proxy starts, and every ASK_S while delay
    requests arrive. Until it answers, and if it cannot, a service is assumed, because commands are durable
    anyway. If a service has ever run (its inner topic exists), a gap of up to `grace_s` counts as a take-over
    or restart, not as an absence. Before a request is rejected the backend is asked again, so that a service
    that has just started is noticed.
    """

    def __init__(self, backend: Backend, clock: Clock, grace_s: float) -> None:
        self._backend = backend
        self._monotonic = clock.monotonic
        self._grace_s = grace_s
        self._absent_since: float | None = None
        self._has_run = False
        self._is_request_pending = False
        self._next_request_at = 0.0
        self._is_calling = False
        self._waiting: list[Callable[[], object]] = []
        self._request_owners(clock.monotonic())

    def is_absent(self) -> bool:
        """Return whether, according to the cached answer, no delay service is running."""
        now = self._monotonic()
        if now >= self._next_request_at and not self._is_request_pending:
            self._request_owners(now)
        since = self._absent_since
        return since is not None and (not self._has_run or now - since > self._grace_s)

    def will_retry(self, rejection: SendRejection, call: Callable[[], object]) -> bool:
        """If `rejection` has code 21, ask the backend again, then call `call` and return True; else return
        False.

        So a delay service that has just started is noticed before the request is rejected. A retried call is
        not retried again.
        """
        if rejection.code is not Code.NO_SERVICE or self._is_calling or len(self._waiting) >= WAITERS_MAX:
            return False
        self._waiting.append(call)
        if not self._is_request_pending:
            self._request_owners(self._monotonic())
        return True

    def _request_owners(self, now: float) -> None:
        if self._backend.topic(DELAY_TOPIC) is None:
            self._set_owners({}, now)  # a shard of it cannot have an owner
            return
        self._has_run = self._is_request_pending = True
        try:
            self._backend.holders(DELAY_GROUP, DELAY_TOPIC, now + ANSWER_S).then(self._on_owners)
        except DdmqError:
            self._assume_running(now)

    def _on_owners(self, answer: Completion[Mapping[QueueRef, str]]) -> None:
        now = self._monotonic()
        if answer.error is None:
            self._set_owners(answer.value, now)
        else:
            self._assume_running(now)

    def _set_owners(self, owners: Mapping[QueueRef, str], now: float) -> None:
        if owners:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        self._call_waiting(now)

    def _assume_running(self, now: float) -> None:
        """Assume that a delay service runs, because the backend could not say."""
        self._absent_since = None
        self._call_waiting(now)

    def _call_waiting(self, now: float) -> None:
        self._is_request_pending = False
        self._next_request_at = now + REQUEST_INTERVAL_S
        waiting, self._waiting = self._waiting, []
        self._is_calling = True
        try:
            for call in waiting:
                call()
        finally:
            self._is_calling = False


class FullTopics:
    """The topics and identities (`mark_sender`) that have reached their bound of delayed messages, as the
    delay services report.

    `names` is nearly always empty; the hot path reads it.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.names: frozenset[str] = frozenset()
        self._unwatch: Callable[[], None] = backend.watch_settings(self._on_setting, DELAY_FULL_PREFIX)
        self._on_setting(DELAY_FULL_PREFIX)

    def close(self) -> None:
        """Stop watching the setting."""
        self._unwatch()

    def _on_setting(self, key: str) -> None:
        values = self._backend.settings(DELAY_FULL_PREFIX).values()
        self.names = frozenset(topic for value in values for topic in decode_full(value))


class TopicDialects:
    """The delay dialects that each topic accepts: the topic's own setting, else this proxy's configuration.

    A dialect is the set of message properties with which the clients of one message system ask for a delay.
    `spoken`: the topics with a setting, by wire name; nearly always empty.
    """

    def __init__(self, backend: Backend, configured: Mapping[str, tuple[str, ...]]) -> None:
        self._backend = backend
        self._configured = {name: select_dialects(names) for name, names in configured.items()}
        self.spoken: dict[bytes, Dialects] = {name.encode(): d for name, d in self._configured.items()}
        self._unwatch = backend.watch_settings(self._on_setting, "topic/")
        for name in backend.topics():
            self._update_topic(name)

    def close(self) -> None:
        """Stop watching the settings of topics."""
        self._unwatch()

    def _on_setting(self, key: str) -> None:
        self._update_topic(key.removeprefix("topic/"))

    def _update_topic(self, name: str) -> None:
        """Update the cached dialects of a topic from its setting. Unknown dialect names are ignored."""
        info = self._backend.topic(name)
        stated = () if info is None else info.delay_dialects
        names = [dialect for dialect in stated if dialect in DELAY_DIALECTS]
        spoken = select_dialects(names) if names else self._configured.get(name)
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

    def make_command(self, record: NewRecord, queue_choice: tuple[int, int]) -> DelayCommand | None:
        """Return the command for a message of an old delay server; None to store the message in its topic
        directly.

        `queue_choice`: (partitionId, hashId).
        """
        key = parse_delay_id(record.key)
        if key is None or key.shard < 0 or self._presence.is_absent() or not self._commands.ready:
            return None
        uuid = uuid_of(blake2b(record.message_id + record.key, digest_size=16).digest())
        return relay_command(key, record.topic, uuid, self._wall_ms(), queue_choice)


def command_record(record: NewRecord, command: DelayCommand, shards: int) -> NewRecord:
    """Build the record that passes a message to the delay service.

    `shards`: the number of queues of its topic.
    """
    return NewRecord(
        DELAY_TOPIC, command.shard % max(shards, 1), record.message_id, record.born_ms, record.delivery,
        flags=record.flags, system={COMMAND_PROPERTY: encode_command(command)},
    )  # fmt: skip


class DelayLevels:
    """The waiting times of the delay levels (DELAY=n), and the topic that has one queue for each level."""

    def __init__(self, backend: Backend, table: Levels, clock: Clock, timeout_s: float) -> None:
        self.table = table
        self.topic = InternalTopic(backend, SCHEDULE_TOPIC, len(table), clock, timeout_s)


OUTCOME_QUEUES = 64


class DelayContext:
    """The state for delayed messages of one producer proxy.

    `presence`: whether a delay service runs. `commands`: the topic that the service reads. `outcomes`: waits
    for the service's answers. `relays`: for messages of old delay servers. `full`: topics at their bound.
    `dialects`: by topic.
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
        """Return the number of delay shards. It may be higher than configured."""
        return max(self._shards, self.commands.queues)

    def complete_command(self, request: SendRequest) -> DelayCommand:
        """Fill in topic, uuid and shard of a command that comes from delay properties."""
        identity, command = request.identity, request.command
        if command is None:
            raise RuntimeError("a request without a delay was given to the delay service")
        drawn = delay_uuid(identity) if isinstance(identity, str) else self._random.randbytes(16)
        schedule, uuid = command.schedule or Schedule(), uuid_of(drawn)
        shards = self.commands.queues
        complete = schedule_command(
            schedule, command.due_ms, request.topic_name, uuid, shards, request.queue_choice
        )
        sender = request.sender_name
        return msgspec.structs.replace(complete, sender=sender) if sender else complete

    def close(self) -> None:
        """Stop watching settings and reading outcomes."""
        self.commands.close()
        self.full.close()
        self.outcomes.close()
        self.dialects.close()
