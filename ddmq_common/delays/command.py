"""Delay commands, the ids and the outcomes: what producer proxies and delay services say to each other.

A command is what a proxy asks, as a system property of a record in the inner topic. The record's delivery
bytes are the message to deliver, with its properties (`from_chronos` among them where it belongs) and its
own key; for kinds of sendDelaySync the key is absent, because each occurrence is delivered with its own id
as key. docs/decisions/0010 tells the way of a command.

The id of an occurrence is `timestamp-type-expire-times-timed-interval-shard-uuid`, all text. An add is
answered with the id of occurrence 0; occurrence k carries the same id with its own timestamp and timed = k.
Which message is meant is said by the uuid alone: the other groups make the id readable and let a cancel be
checked and routed without looking anything up. Rules:
* timestamp and expire have ten digits, the type one; times, timed and interval are whole numbers.
* The shard is a stable, non-negative hash of the uuid modulo the shards. Old servers let it go negative, so
  such an id parses (its minus sign stands after the separating one), and the caller refuses it by its range.
* A uuid is 36 characters 8-4-4-4-12 of [0-9a-z]. Not all of these are hexadecimal: `uuid_bytes` gives 16
  bytes for any of them, and the same bytes as the uuid's own value where it is hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, NamedTuple
from zlib import crc32

import msgspec

from ddmq_common.errors import DamagedError

COMMAND_PROPERTY = "delay-order"

ADD, CANCEL, RESCHEDULE, FIRE = "add", "cancel", "reschedule", "fire"
HOLD, RELEASE = "hold", "release"
ID_OUTCOMES = "known"  # outcomes from another installation, listed in the body (core/id_outcomes.py)
ONCE, LOOP, EXPONENTIAL, SCHEDULE = 2, 3, 4, 5  # the first three are the wire's dmsgtype


# What is kept of a time has 64 bits, also in milliseconds and with a few days more.
MOMENT_MAX = 1 << 53
Moment = Annotated[int, msgspec.Meta(ge=-MOMENT_MAX, le=MOMENT_MAX)]


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schedule of a delayed message, for ddmq's own kinds of delays and those of ActiveMQ.

    With a cron, the series of delay, period and repeat starts at each of its times; without, at the time of
    the send. `repeat` n = n + 1 deliveries; −1 = without end.
    """

    delay_ms: Moment = 0
    period_ms: Moment = 0
    repeat: int = 0
    cron: str = ""
    zone: str = "UTC"
    occurrences_max: int = 0  # 0 = no cap of its own
    catch_up: str = "fire_once"  # fire_once | all | skip


class DelayCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command to the delay service: an add, a cancel, a reschedule, a fire now, a hold or a release; or a
    copy of known ids, which has no uuid.

    `uuid`: 36 characters, lower case. Times are epoch milliseconds or seconds, by the ends of their names.
    `timestamp_s`, `expire_s`, `interval_s`, `times`: as the add sent them; they make up the ids of the
    occurrences of kinds 2, 3 and 4. `partition`, `hash_id`: queue choice as in a plain send (compat.md).
    `reply_queue` −1: no client waits for the outcome.

    `unless_cancelled`: the uuid of another message, on whose shard this command is stored; if that message
    was cancelled, this add stores nothing (compat.md: what an old delay server still sends). `occurrence`,
    `at_ms`: for an add that continues a message from a backup: the pending occurrence, and when it is due (0:
    at `due_ms`). `moved_at`: for a repeating message, only in the store and never in the log: the offset of
    the last command that rescheduled a delivery of it (0: none). `is_held`: for an add that continues a held
    message. `own_topic`: a change applies only to a message of `topic`, and an add is ended by an earlier
    cancel that stated `topic`. `sender`: the identity that sent an add, "" without rights.
    """

    op: str
    uuid: str
    topic: str = ""
    kind: int = ONCE
    due_ms: Moment = 0
    timestamp_s: Moment = 0
    expire_s: Moment = 0
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
    at_ms: Moment = 0
    moved_at: int = 0
    is_held: bool = False
    own_topic: bool = False
    sender: str = ""  # the last field (read_sender)


class CommandOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of a delay command, and the body of a record in the outcome topic.

    `code`: DelayResult field 100.
    """

    reply_id: int
    code: int
    fired_at_ms: int = 0
    due_ms: int = 0
    text: str = ""  # when it could not be done: why


ADDED, CANCELLED, ALREADY_FIRED, UNKNOWN, TOO_OLD, PENDING = 1, 2, 3, 4, 5, 6


_COMMANDS = msgspec.json.Decoder(DelayCommand)
_SENDER = '"sender":"'
SENDER_MARK = "@"  # before the name of an identity among those of topics


def read_sender(command: str) -> str:
    """Return the identity that sent an encoded add command, or "".

    Identities need no escapes in JSON, and quotes inside other values have one, so that this is their name.
    """
    _, marker, rest = command.rpartition(_SENDER)
    return rest.partition('"')[0] if marker else ""


def mark_sender(identity: str) -> str:
    """Return the entry of an identity in the list of topics that have reached their bound of delayed
    messages; no topic has such a name."""
    return SENDER_MARK + identity


def encode_command(command: DelayCommand) -> str:
    """Encode the system property of a delay command."""
    return msgspec.json.encode(command).decode()


def decode_command(text: str | bytes) -> DelayCommand:
    """Decode the system property of a delay command.

    Raises DamagedError for text `encode_command` did not write.
    """
    try:
        return _COMMANDS.decode(text)
    except msgspec.DecodeError as error:
        raise DamagedError(f"delay command {text[:80]!r} does not parse: {error}") from error


def encode_outcome(outcome: CommandOutcome) -> bytes:
    """Encode the body of a record in the outcome topic."""
    return msgspec.json.encode(outcome)


def decode_outcome(body: bytes) -> CommandOutcome:
    """Decode the body of an outcome record. Raises DamagedError for bytes `encode_outcome` did not write."""
    try:
        return msgspec.json.decode(body, type=CommandOutcome)
    except msgspec.DecodeError as error:
        raise DamagedError(f"delay outcome {body[:80]!r} does not parse: {error}") from error


_UUID = rb"[0-9a-z]{8}-[0-9a-z]{4}-[0-9a-z]{4}-[0-9a-z]{4}-[0-9a-z]{12}"
_UUID_ONLY = re.compile(_UUID + rb"\Z")
_ID = re.compile(
    rb"([0-9]{10})-([0-9])-([0-9]{10})-([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})-(-?[0-9]{1,9})-("
    + _UUID
    + rb")\Z"
)
ID_BYTES_MAX = 137
EXPIRE_AFTER_S = 172_800
"""What expire of a one-shot (type 2) is after its timestamp."""


class DelayId(NamedTuple):
    """The parsed fields of a delay id. Times are epoch seconds."""

    timestamp_s: int
    kind: int
    expire_s: int
    times: int
    timed: int
    interval_s: int
    shard: int
    uuid: str

    def text(self) -> str:
        """Return the id as text, as used on the wire and as the key of a delivery."""
        return (
            f"{self.timestamp_s:010d}-{self.kind}-{self.expire_s:010d}-{self.times}-{self.timed}"
            f"-{self.interval_s}-{self.shard}-{self.uuid}"
        )


def parse_delay_id(text: bytes) -> DelayId | None:
    """Parse a delay id; return None if it is malformed. The ranges of type and shard are not checked."""
    if len(text) > ID_BYTES_MAX:
        return None
    groups = _ID.match(text)
    if groups is None:
        return None
    timestamp, kind, expire, times, timed, interval, shard = map(int, groups.groups()[:7])
    return DelayId(timestamp, kind, expire, times, timed, interval, shard, groups[8].decode())


def is_uuid(text: bytes) -> bool:
    """Return whether `text` has the form of a uuid: 8-4-4-4-12 digits and lower-case letters."""
    return _UUID_ONLY.match(text) is not None


def shard_of(uuid: str, shards: int) -> int:
    """Return the shard in [0, shards) that stores this uuid; the same in every process and version."""
    return crc32(uuid.encode()) % shards


def uuid_bytes(uuid: str) -> bytes:
    """Return the 16 bytes that represent a uuid in stores; a uuid with letters beyond f is hashed."""
    digits = uuid.replace("-", "")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if value and value.hex() == digits and len(value) == 16:
        return value
    return blake2b(uuid.encode(), digest_size=16).digest()


def encode_full(topics: Sequence[str]) -> bytes:
    """Encode the list of topics that have reached their bound of delayed messages, as a shard reports it.

    The key is names.DELAY_FULL_PREFIX and the shard's number; an absent setting means none.
    """
    return msgspec.json.encode(topics)


def decode_full(value: bytes | None) -> list[str]:
    """Decode the list of topics that have reached their bound of delayed messages.

    `value`: a setting that `encode_full` wrote, or None for no topics. A value that cannot be parsed counts
    as empty, because the shard will replace it.
    """
    if value is None:
        return []
    try:
        return msgspec.json.decode(value, type=list[str])
    except msgspec.DecodeError:
        return []
