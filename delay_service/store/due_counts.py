"""Counts the waiting messages by due time: per topic and in total, by minute, hour and day.

The counters are in blocks: an hour block has the counts of its 60 minutes, a day block those of its 24 hours.
Rules:
* Each batch of changes also stores its changes of the counters: as one row, and after many of them as blocks.
  A row has the round in which it was written; once the blocks are written, a new round begins, and earlier
  rows are not valid any more. So the counters are right after every batch, and a small batch stays cheap.
* A message is counted if its key is at or below `counted_to`. A store of an earlier release has no counters;
  its messages are counted in due order, some at a time, and `counted_to` moves on with each batch.
* A message that is deferred keeps its due time and stays counted.
* At most `CACHED_BLOCKS_MAX` encoded blocks are cached; others are read when they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from ddmq_common.errors import DamagedError
from ddmq_common.rocks.database import Pair, WriteBatch
from delay_service.store import layout
from delay_service.store.layout import COUNTED_ALL, COUNTED_NONE
from delay_service.store.port import DueKey, DueTimeCounts, Pending, StoreChanges

MINUTE_MS = 60_000
HOUR = 60  # minutes, and counts of an hour block
DAY = 24  # hours, and counts of a day block
CACHED_BLOCKS_MAX = 4_096
ROWS_MAX = 256  # rows of changes until the blocks are written …
CHANGES_MAX = 4_000  # … or so many changed minutes in them
ALL_TOPICS = ""  # the name under which the totals are; no topic has it
_Changes = dict[int, dict[int, int]]  # hour (day) → minute (hour) in it → change
_Deltas = dict[tuple[str, int], dict[int, int]]  # the same by topic
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode
_decode_row = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, int, int]]]).decode
_VERSION = bytes((1,))


class DueCounters:
    """The counters of one store.

    `read_many` returns the values of keys, `read_range` the pairs of a range, both from the database.
    """

    def __init__(
        self,
        read_many: Callable[[Sequence[bytes]], list[bytes | None]],
        read_range: Callable[[bytes, bytes], Iterable[Pair]],
    ) -> None:
        self._read_many = read_many
        self._read_range = read_range
        self._cached_blocks: dict[bytes, bytes] = {}
        self._round = self._rows = self._change_count = 0
        self._changes: _Deltas = {}  # that the rows of this round have, and the blocks do not
        self.counted_to: DueKey = COUNTED_ALL

    @property
    def is_complete(self) -> bool:
        """Return whether every waiting message is counted."""
        return self.counted_to == COUNTED_ALL

    def load(self, batch: WriteBatch, position: bytes | None, pending: int) -> None:
        """Set the position from its stored value, and read the rows. If the counters cannot be right, begin
        again in `batch`.

        `pending`: the number of waiting messages, which the counters must add up to.
        """
        self.counted_to = COUNTED_NONE if position is None else layout.decode_position(position)
        self._load_rows()
        if self.counted_to == COUNTED_NONE or (self.is_complete and self._sum_all() != pending):
            self.counted_to = COUNTED_NONE if pending else COUNTED_ALL
            batch.delete_range(layout.DUE_COUNT, layout.DUE_COUNT_END)
            self._begin_round(batch)
        batch.put(layout.COUNTED_KEY, layout.encode_position(self.counted_to))

    def _load_rows(self) -> None:
        self._round = int(self._read_many([layout.COUNT_ROUND_KEY])[0] or b"0")
        for _, value in self._read_range(layout.count_row_key(0), layout.count_row_key(ROWS_MAX)):
            number, rows = _read_row(value)
            if number == self._round:
                self._rows += 1
                for topic, minute, step in rows:
                    _add_step(self._changes, topic, minute, step)
                self._change_count += len(rows)

    def _sum_all(self) -> int:
        changes = sum(sum(steps.values()) for steps in self._changes.values())
        return changes + sum(sum(counts) for _, counts in self._read_days(ALL_TOPICS))

    # --- writing

    def put_changes(self, batch: WriteBatch, changes: StoreChanges) -> None:
        """Add to `batch` the counters that these changes change."""
        deltas: _Deltas = {}
        counted_to = self.counted_to
        for messages, step in ((changes.added, 1), (changes.removed, -1), (changes.removed_deferred, -1)):
            if messages and counted_to != COUNTED_ALL:
                messages = [message for message in messages if message.key <= counted_to]
            _add_messages(deltas, messages, step)
        self._put_deltas(batch, deltas)

    def put_older(self, batch: WriteBatch, messages: list[Pending]) -> DueKey:
        """Add to `batch` the counts of the messages that follow `counted_to`; return the new position.

        Without messages, there are no more. Call `move_to` once the batch is written.
        """
        deltas: _Deltas = {}
        _add_messages(deltas, messages, 1)
        self._put_deltas(batch, deltas)
        position = messages[-1].key if messages else COUNTED_ALL
        batch.put(layout.COUNTED_KEY, layout.encode_position(position))
        return position

    def move_to(self, position: DueKey) -> None:
        """Set the position up to which messages are counted."""
        self.counted_to = position

    def _put_deltas(self, batch: WriteBatch, deltas: _Deltas) -> None:
        if not deltas:
            return
        row: list[tuple[str, int, int]] = []
        for (topic, hour), steps in deltas.items():
            for index, step in steps.items():
                if step:
                    row.append((topic, hour * HOUR + index, step))
                    _add_step(self._changes, topic, hour * HOUR + index, step)
        self._change_count += len(row)
        if self._rows >= ROWS_MAX or self._change_count > CHANGES_MAX:
            self._put_changed_blocks(batch)
        elif row:
            batch.put(layout.count_row_key(self._rows), _VERSION + _encode((self._round, row)))
            self._rows += 1

    def _begin_round(self, batch: WriteBatch) -> None:
        self._round += 1
        self._rows = self._change_count = 0
        self._changes = {}
        batch.put(layout.COUNT_ROUND_KEY, b"%d" % self._round)

    def _put_changed_blocks(self, batch: WriteBatch) -> None:
        deltas = self._changes | _sum_topics(self._changes)
        days: _Deltas = {}
        blocks: dict[bytes, dict[int, int]] = {}
        for (topic, hour), steps in deltas.items():
            blocks[layout.hour_count_key(topic, hour)] = steps
            hours = days.get((topic, hour // DAY))
            if hours is None:
                hours = days[topic, hour // DAY] = {}
            hours[hour % DAY] = sum(steps.values())
        for (topic, day), steps in days.items():
            blocks[layout.day_count_key(topic, day)] = steps
        self._put_blocks(batch, blocks)
        self._begin_round(batch)

    def _put_blocks(self, batch: WriteBatch, blocks: dict[bytes, dict[int, int]]) -> None:
        names = sorted(blocks)
        cached_blocks = self._cached_blocks
        for name, value in zip(names, self._read_blocks(names), strict=True):
            counts = _read_block(value) or [0] * (DAY if layout.is_day_count(name) else HOUR)
            for index, step in blocks[name].items():
                count = counts[index] + step
                counts[index] = count if count > 0 else 0
            if any(counts):
                cached_blocks[name] = encoded = _VERSION + _encode(counts)
                batch.put(name, encoded)
            else:
                cached_blocks[name] = b""
                batch.delete(name)
        while len(cached_blocks) > CACHED_BLOCKS_MAX:
            del cached_blocks[next(iter(cached_blocks))]

    def _read_blocks(self, names: list[bytes]) -> list[bytes]:
        """Return the values of these blocks, b"" for those without one; take them out of the cache."""
        cached_blocks = self._cached_blocks
        missing = [name for name in names if name not in cached_blocks]
        values = {name: value or b"" for name, value in zip(missing, self._read_many(missing), strict=True)}
        return [values[name] if name in values else cached_blocks.pop(name) for name in names]

    # --- reading

    def read(self, topic: str | None, from_minute: int, to_minute: int, step: int) -> DueTimeCounts:
        """Return the counts of `topic` (None: of all topics) in steps of so many minutes.

        The range must begin and end at a multiple of `step`, and `step` must divide an hour, be whole hours
        that divide a day, or be whole days.
        """
        name = ALL_TOPICS if topic is None else topic
        changes = self._changes_of(name)
        hours = {
            day * DAY + hour: count
            for day, counts in self._read_days(name)
            for hour, count in enumerate(counts)
        }
        for hour, steps in changes.items():
            hours[hour] = hours.get(hour, 0) + sum(steps.values())
        hours = {hour: count for hour, count in hours.items() if count > 0}
        counts: dict[int, int] = {}
        for minute, count in self._list_counts(name, hours, changes, range(from_minute, to_minute), step):
            if from_minute <= minute < to_minute:
                start = minute - minute % step
                counts[start] = counts.get(start, 0) + count
        before = self._count_before(name, hours, changes, from_minute)
        after = sum(hours.values()) - self._count_before(name, hours, changes, to_minute)
        first, end = (min(hours) * HOUR, (max(hours) + 1) * HOUR) if hours else (None, None)
        nonzero = {start: count for start, count in counts.items() if count > 0}
        return DueTimeCounts(nonzero, before, after, first, end, self.is_complete)

    def _changes_of(self, name: str) -> _Changes:
        """Return the changes of a topic that are not in its blocks yet."""
        deltas = _sum_topics(self._changes) if name == ALL_TOPICS else self._changes
        return {hour: steps for (topic, hour), steps in deltas.items() if topic == name}

    def _list_counts(
        self, name: str, hours: dict[int, int], changes: _Changes, minutes: range, step: int
    ) -> Iterable[tuple[int, int]]:
        """Yield at least the counts of `minutes`, with their first minutes: by hour if that is enough."""
        if step % HOUR == 0:
            for hour, count in hours.items():
                yield hour * HOUR, count
            return
        first, end = max(minutes.start // HOUR, 0), max(-(-minutes.stop // HOUR), 0)
        for key, value in self._read_range(
            layout.hour_count_key(name, first), layout.hour_count_key(name, end)
        ):
            start = layout.read_count_number(key) * HOUR
            yield from enumerate(_read_block(value), start)
        for hour, steps in changes.items():
            for index, change in steps.items():
                yield hour * HOUR + index, change

    def _count_before(self, name: str, hours: dict[int, int], changes: _Changes, minute: int) -> int:
        """Return the number of messages that are due before this minute."""
        last, index = divmod(minute, HOUR)
        count = sum(number for hour, number in hours.items() if hour < last)
        if index and last in hours:
            (value,) = self._read_many([layout.hour_count_key(name, last)])
            count += sum(_read_block(value or b"")[:index])
            count += sum(step for at, step in changes.get(last, {}).items() if at < index)
        return count

    def _read_days(self, name: str) -> Iterable[tuple[int, list[int]]]:
        for key, value in self._read_range(*layout.day_count_range(name)):
            yield layout.read_count_number(key), _read_block(value)


def _add_messages(deltas: _Deltas, messages: list[Pending], step: int) -> None:
    for message in messages:
        _add_step(deltas, message[3], message[0] // MINUTE_MS, step)


def _add_step(deltas: _Deltas, topic: str, minute: int, step: int) -> None:
    hour = minute // HOUR
    steps = deltas.get((topic, hour))
    if steps is None:
        steps = deltas[topic, hour] = {}
    index = minute - hour * HOUR
    steps[index] = steps.get(index, 0) + step


def _sum_topics(deltas: _Deltas) -> _Deltas:
    """Return the deltas of all topics together."""
    totals: _Deltas = {}
    for (_, hour), steps in deltas.items():
        sums = totals.get((ALL_TOPICS, hour))
        if sums is None:
            totals[ALL_TOPICS, hour] = steps.copy()
        else:
            for index, step in steps.items():
                sums[index] = sums.get(index, 0) + step
    return totals


def _read_block(value: bytes) -> list[int]:
    """Decode a block; b"" is one without counts. Raises DamagedError."""
    if not value:
        return []
    if value[:1] != _VERSION:
        raise layout.unreadable_value("block of counters", value)
    try:
        return _decode(value[1:])
    except msgspec.DecodeError as error:
        raise DamagedError(f"a block of counters, {value.hex()}, does not parse") from error


def _read_row(value: bytes) -> tuple[int, list[tuple[str, int, int]]]:
    """Decode a row of changes: its round, then topic, minute and change. Raises DamagedError."""
    if value[:1] != _VERSION:
        raise layout.unreadable_value("row of changed counters", value)
    try:
        return _decode_row(value[1:])
    except msgspec.DecodeError as error:
        raise DamagedError(f"a row of changed counters, {value.hex()}, does not parse") from error
