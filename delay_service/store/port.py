"""The delay store: what is pending, which ids are known, what is put aside. One store is one shard.

Rules every implementation keeps (one contract suite runs against the memory twin and RocksDB):
* `write` applies a whole batch or none of it; readers see it at once; it survives kill -9 of the machine
  only after `flush`. Both may block: `write` a little (RocksDB holds the interpreter while it copies),
  `flush` for a sync, so it belongs into a native thread; `flush` is safe there while the hub goes on.
* Everything is ordered by (due_ms, offset); offsets are those of the inner topic, so they are unique.
* Who begins something asks `has_capacity` first and waits with a timer: a `write` without room holds its
  thread.
* A batch of a thousand messages is the unit to aim at; nothing here is called once per message in a storm.
* Space of what was removed is given back (whole ranges are deleted behind what is due); `tidy` does it.
* `added` names keys that are not there, `removed`, `deferred` and `undeferred` keys that are there: counts
  rely on it.
* After a StorageError from `write` or `flush` the store refuses everything: close it and open it again. What
  the failed call was to write is then there whole or not at all. A DamagedError from any call says that
  stored bytes are damaged: close and open again, which leaves out what cannot be read and lists it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from backend.progress.ack_map import OFFSET_END
from backend.records import QueueRef
from ddmq_common.delays.command import EXPONENTIAL, LOOP, DelayCommand, decode_command
from ddmq_common.delays.cron import Cron, CronError
from ddmq_common.errors import DamagedError

UNBOUNDED = 1 << 62
RECORD_BYTES = 256  # what a message takes beside its content: command, id, keys
_DAY_MS = 86_400_000
_REPEATS = (
    '"kind":'  # a text of JSON has no such piece unless the command says a kind: it is left out for once
)


class DueKey(NamedTuple):
    """The position of a waiting message in the due order."""

    due_ms: int
    offset: int

    def before(self) -> DueKey | None:
        """Return the greatest key below this one; None if this is the lowest."""
        if self.offset > 0:
            return DueKey(self.due_ms, self.offset - 1)
        return DueKey(self.due_ms - 1, OFFSET_END) if self.due_ms > 0 else None


class Pending(NamedTuple):
    """A delayed message that waits in the store. `occurrence`: how many times it has fired.

    `command`: the DelayCommand as text. `topic`: the target. The other fields make up the record to append.
    """

    due_ms: int
    offset: int
    occurrence: int
    topic: str
    uuid: bytes  # 16 bytes
    command: str
    message_id: bytes
    born_ms: int
    flags: int
    tags: bytes
    delivery: bytes

    @property
    def key(self) -> DueKey:
        return DueKey(self.due_ms, self.offset)


class Scan(NamedTuple):
    """A query for waiting messages: those of `topic` (None: all) with `from_ms` ≤ due_ms < `to_ms`, after
    `after`.

    It returns at most `limit` messages, and ends with the one that reaches `bytes_max`.
    """

    topic: str | None
    from_ms: int
    to_ms: int
    limit: int
    after: DueKey | None = None
    bytes_max: int = UNBOUNDED


class DueTimeCounts(NamedTuple):
    """The number of waiting messages by due time, in steps that begin at multiples of their length.

    `counts`: by the first minute of each step in the range that has messages. `before`, `after`: due before
    and after the range. `first`, `end`: the hours with messages begin and end at these minutes; None: there
    are none. `complete` False: messages of an earlier release are still being counted, the earliest first.
    """

    counts: dict[int, int]
    before: int
    after: int
    first: int | None
    end: int | None
    complete: bool


class IdKind(IntEnum):
    """The kinds of states of a delay id, from the stored message to its end."""

    PENDING = 1
    FIRED = 2
    CANCELLED = 3
    TOMBSTONE = 4  # cancelled before it was known: an add of it stores nothing
    DEAD = 5  # it could never be delivered and is a dead letter


class IdState(NamedTuple):
    """The state of an id, retained until `forget_ms`.

    `at_ms`: the due time while PENDING; else when it fired, was cancelled or became a dead letter.
    """

    kind: IdKind
    at_ms: int
    offset: int = 0
    forget_ms: int = 0


@dataclass(slots=True)
class StoreChanges:
    """The changes of one atomic write to a shard's store.

    A key in `removed` may be in `added` again with another due time.

    `ids`: uuid (16 bytes) → new state, or None to forget the id. `deferred`: messages moved out of the due
    order because their topic accepts none now; `undeferred`: moved back; `removed_deferred`: deleted. `meta`:
    small named values.
    """

    added: list[Pending] = field(default_factory=list)
    removed: list[Pending] = field(default_factory=list)
    ids: dict[bytes, IdState | None] = field(default_factory=dict)
    deferred: list[Pending] = field(default_factory=list)
    undeferred: list[Pending] = field(default_factory=list)
    removed_deferred: list[Pending] = field(default_factory=list)
    meta: dict[str, bytes | None] = field(default_factory=dict)


@mypyc_attr(allow_interpreted_subclasses=True)
class DelayStore(ABC):
    """The store of a delay shard's messages and delay ids, opened by the shard's owner."""

    @abstractmethod
    def write(self, changes: StoreChanges) -> None:
        """Apply a batch of changes. Raises StorageError; then nothing of it is applied."""

    def has_capacity(self, growing: bool) -> bool:
        """Return whether new work may start, that is, whether a `write` would not wait for the disk.

        `growing`: work that makes the store larger, which must wait earlier. Raises StorageError.
        """
        return True

    @abstractmethod
    def flush(self) -> None:
        """Make all earlier writes durable. Raises StorageError."""

    @abstractmethod
    def due(self, until_ms: int, limit: int, bytes_max: int, after: DueKey | None = None) -> list[Pending]:
        """Return the earliest messages with due_ms ≤ `until_ms`, after the key `after`; at least one if there
        is any.
        """

    @abstractmethod
    def next_due(self, after: DueKey | None = None) -> DueKey | None:
        """Return the key of the earliest waiting message (after `after`), or None."""

    @abstractmethod
    def get(self, key: DueKey) -> Pending | None:
        """Return one waiting message, whether deferred or not, or None."""

    @abstractmethod
    def ids(self, uuids: Sequence[bytes]) -> list[IdState | None]:
        """Return the state of each id; None for unknown ids."""

    @abstractmethod
    def forgettable(self, now_ms: int, limit: int) -> list[bytes]:
        """Return ids whose `forget_ms` has passed, the oldest first."""

    @abstractmethod
    def list_id_states(self, after: bytes, limit: int) -> list[tuple[bytes, IdState]]:
        """Return ids and their states in order of ids, starting after `after` (b"": from the first).

        An empty list means that there are no more.
        """

    @abstractmethod
    def read_deferred(self, topic: str, limit: int, bytes_max: int = UNBOUNDED) -> list[Pending]:
        """Return the earliest deferred messages of `topic`, within `bytes_max` (but at least one)."""

    @abstractmethod
    def deferred_topics(self) -> list[str]:
        """Return the topics that have deferred messages."""

    @abstractmethod
    def scan(self, scan: Scan) -> list[Pending]:
        """Return the waiting messages that match the query, in due order, deferred ones included."""

    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Return the number of waiting messages per topic, deferred ones included. Answered from memory."""

    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of waiting messages per topic, as `weigh_message` counts them.

        Answered from memory.
        """

    @abstractmethod
    def sender_counts(self) -> Mapping[str, int]:
        """Return the number of waiting messages per identity that sent them. Answered from memory."""

    @abstractmethod
    def count_due(self, topic: str | None, from_minute: int, to_minute: int, step: int) -> DueTimeCounts:
        """Return the number of waiting messages of `topic` (None: of all), by due time, from counters.

        Minutes are those since the epoch. The range must begin and end at a multiple of `step`, and `step`
        must divide 60, be 60 times a divisor of 24, or be a multiple of 1,440.
        """

    def count_older(self, limit: int) -> bool:
        """Count up to `limit` messages that an earlier release stored; return whether there may be more.

        Raises StorageError.
        """
        return False

    @abstractmethod
    def meta(self, name: str) -> bytes | None:
        """Return a small named value, or None."""

    def tidy(self) -> None:  # noqa: B027
        """Reclaim the disk space of deleted data if that is worth it. Raises StorageError.

        Blocks, perhaps for seconds: call it in a native thread, every minute or so.
        """

    @abstractmethod
    def checkpoint(self, folder: Path) -> None:
        """Write a consistent, durable copy into a new folder while the store is in use.

        Blocks: native thread. Raises StorageError; then the folder is not a copy.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files and release the lock. May be called twice."""


StoreOpener = Callable[[QueueRef, int], DelayStore]
"""Opens the store of a shard for the owner with this epoch; blocks. Raises StorageError."""


def weigh_message(message: Pending) -> int:
    """Return how many bytes a waiting message counts towards its topic's bound.

    A repeating message counts once for each delivery of a day, because it is written again and again. Equal
    records always have equal weights.
    """
    size = len(message.delivery) + RECORD_BYTES
    if _REPEATS not in message.command:
        return size
    try:
        return size * deliveries_a_day(decode_command(message.command))
    except (DamagedError, CronError):
        return size


def deliveries_a_day(command: DelayCommand) -> int:
    """Return an upper bound of a message's deliveries per day, at least 1; for a cron from its shortest
    interval.
    """
    schedule = command.schedule
    if command.kind == LOOP:
        return _capped(86_400 // max(command.interval_s, 1) + 1, command.times)
    if command.kind == EXPONENTIAL:
        return _capped(_DAY_MS.bit_length(), command.times)
    if schedule is None:
        return 1
    series = 1
    if schedule.repeat:
        most = schedule.repeat + 1 if schedule.repeat > 0 else 0
        series = _capped(_DAY_MS // max(schedule.period_ms, 1) + 1, most)
    if schedule.cron:
        series *= _DAY_MS // Cron.from_expression(schedule.cron, schedule.zone).gap_ms_min + 1
    return _capped(series, schedule.occurrences_max)


def _capped(count: int, most: int) -> int:
    """Return `count` limited to the range from 1 to `most`; `most` 0: without an upper limit."""
    return max(min(count, most) if most else count, 1)
