"""Delay commands: what a producer proxy asks, as a system property of a record in the inner topic.

The record's delivery bytes are the message to deliver, with its properties (`from_chronos` among them
where it belongs) and its own key; for kinds of sendDelaySync the key is absent, because each occurrence is
delivered with its own id as key. docs/decisions/0010 tells the way of a command.
"""

from __future__ import annotations

import msgspec

from ddmq_common.errors import DamagedError

COMMAND_PROPERTY = "delay-order"

ADD, CANCEL, RESCHEDULE, FIRE = "add", "cancel", "reschedule", "fire"
ONCE, LOOP, EXPONENTIAL, SCHEDULE = 2, 3, 4, 5  # the first three are the wire's dmsgtype


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """Our own kinds, and ActiveMQ's: with a cron, the series of delay, period and repeat starts at each of
    its times; without, at the moment of the send. `repeat` n = n + 1 deliveries; −1 = without end."""

    delay_ms: int = 0
    period_ms: int = 0
    repeat: int = 0
    cron: str = ""
    zone: str = "UTC"
    occurrences_max: int = 0  # 0 = no cap of its own
    catch_up: str = "fire_once"  # fire_once | all | skip


class DelayCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """An add, a cancel, a reschedule or a fire now.

    `uuid`: 36 characters, lower case. Times: epoch milliseconds or seconds, as they say.
    `timestamp_s`, `expire_s`, `interval_s`, `times`: as the add sent them; they make up the ids of the
    occurrences of kinds 2, 3 and 4. `partition`, `hash_id`: queue choice as in a plain send (compat.md).
    `reply_queue` −1: nobody waits for the outcome. `unless_cancelled`: the 36 characters of another uuid, on
    whose shard this command goes; if that one was cancelled, this add stores nothing (compat.md: what an old
    delay server still sends). `occurrence`, `at_ms`: of an add that goes on with what a backup held: the
    occurrence that is pending, and when it is due (0: as `due_ms` says). `moved_at`: of a message
    that repeats, in the store alone and never in the log: the offset of the last order that moved a delivery
    of it (0: none).
    """

    op: str
    uuid: str
    topic: str = ""
    kind: int = ONCE
    due_ms: int = 0
    timestamp_s: int = 0
    expire_s: int = 0
    interval_s: int = 0
    times: int = 0
    shard: int = 0
    partition: int = -2
    hash_id: int = 0
    schedule: Schedule | None = None
    reply_queue: int = -1
    reply_id: int = 0
    unless_cancelled: str = ""
    occurrence: int = 0
    at_ms: int = 0
    moved_at: int = 0


class CommandOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a command; the body of a record in the outcome topic. `code`: DelayResult field 100."""

    reply_id: int
    code: int
    fired_at_ms: int = 0
    due_ms: int = 0
    text: str = ""  # when it could not be done: why


ADDED, CANCELLED, ALREADY_FIRED, UNKNOWN, TOO_OLD, PENDING = 1, 2, 3, 4, 5, 6


_COMMANDS = msgspec.json.Decoder(DelayCommand)


def encode_command(command: DelayCommand) -> str:
    """The value of the system property."""
    return msgspec.json.encode(command).decode()


def decode_command(text: str | bytes) -> DelayCommand:
    """Raises DamagedError for anything `encode_command` does not write."""
    try:
        return _COMMANDS.decode(text)
    except msgspec.DecodeError as error:
        raise DamagedError(f"delay command {text[:80]!r} does not parse: {error}") from error


def encode_outcome(outcome: CommandOutcome) -> bytes:
    """The body of a record in the outcome topic."""
    return msgspec.json.encode(outcome)


def decode_outcome(body: bytes) -> CommandOutcome:
    """Raises DamagedError for anything `encode_outcome` does not write."""
    try:
        return msgspec.json.decode(body, type=CommandOutcome)
    except msgspec.DecodeError as error:
        raise DamagedError(f"delay outcome {body[:80]!r} does not parse: {error}") from error
