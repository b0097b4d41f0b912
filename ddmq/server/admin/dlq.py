"""Dead letters as the admin API shows them: which groups have some, and their contents.

A dead letter is open until it was sent again or purged; that is kept as the progress of an internal group
on the dead-letter topic, so that it lives exactly as long as the letters do. Nothing here changes anything
(dlq_changes.py does; search/ searches), and nobody who consumes `%DLQ%group` like a topic is disturbed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from backend.internal_topics import PREFIX, REASON, DeadLetter, read_dead_letter
from backend.port import Backend
from backend.progress.ack_map import AckMap
from backend.records import Bounds, ProgressView, QueueRef, ReadBatch, ReadStatus
from ddmq.server.admin.messages import READ_BYTES_MAX
from ddmq.server.admin.search.error_classes import classify_error
from ddmq.server.admin.topics import WAIT_S
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import ALL_ITEMS, NoSuchGroupError, Page
from ddmq_common.names import DLQ_PREFIX, DONE_GROUP, TRANSACTION_DEAD_TOPIC, dead_letter_topic
from proxy_consumer.groups.group import group_key

BATCH = 100
SCANNED_MAX = 10_000  # offsets
PREVIEW_CHARS = 200


class DeadLetterRange(NamedTuple):
    """A range of offsets `[at, end)` of one dead-letter queue that is still to be read."""

    queue: QueueRef
    at: int
    end: int


class DeadLetterFilter(NamedTuple):
    """The filter by which a request chooses dead letters. None (or no offsets) matches all.

    `since_ms`, `until_ms`: the range of the times of death, epoch ms, its end exclusive. `error`: an error
    class. `text`: a substring of the key, the error or the body; case matters.
    """

    offsets: frozenset[int] = frozenset()
    reason: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    error: str | None = None
    text: str | None = None

    def matches(self, dead_letter: DeadLetter) -> bool:
        """Return whether `dead_letter` matches the filter."""
        return (
            (not self.offsets or dead_letter.record.offset in self.offsets)
            and self.reason in (None, dead_letter.reason)
            and self.topic in (None, dead_letter.topic)
            and (self.since_ms is None or dead_letter.time_ms >= self.since_ms)
            and (self.until_ms is None or dead_letter.time_ms < self.until_ms)
            and self.error in (None, classify_error(dead_letter.error))
            and (self.text is None or _contains_text(dead_letter, self.text))
        )


ALL_LETTERS = DeadLetterFilter()


def _list_patterns(choice: DeadLetterFilter) -> list[bytes]:
    """Return byte strings that are in the delivery of each dead letter that matches. A "#" may stand for a
    number, and U+FFFD for bytes that are no text."""
    error = "" if choice.error is None or "#" in choice.error else choice.error
    texts = (choice.reason, choice.topic, error, choice.text)
    return [text.encode("utf-8", "surrogatepass") for text in texts if text and "\ufffd" not in text]


def _contains_text(dead_letter: DeadLetter, text: str) -> bool:
    """Return whether the key, the error or the body contains `text`; of a message that cannot be parsed,
    whether its bytes do."""
    if text in dead_letter.error:
        return True
    pattern, content = text.encode("utf-8", "surrogatepass"), dead_letter.content
    if content is None:
        return pattern in bytes(dead_letter.record.delivery)
    return pattern in content.key or pattern in content.value


class OpenDeadLetters:
    """A snapshot of the open dead letters of one queue: those that were neither resent nor purged."""

    def __init__(self, view: ProgressView, bounds: Bounds, gaps: Iterable[tuple[int, int]] = ()) -> None:
        self._done = AckMap(view.committed or 0)
        self._done.finish(view.finished)
        self._gaps = list(gaps)
        self._done.finish(self._gaps)
        self._bounds = bounds

    def __contains__(self, offset: int) -> bool:
        return not self._done.is_finished(offset)

    def count(self, start: int, end: int) -> int:
        """Count the open dead letters of `[start, end)` that retention has not deleted."""
        low, high = max(start, self._bounds.min), min(end, self._bounds.next)
        return sum(max(0, min(last, high) - first) for first, last in self.runs(low, high))

    @property
    def stored(self) -> int:
        """The number of dead letters that retention has not deleted, open or not."""
        low, high = self._bounds
        return high - low - sum(max(0, min(end, high) - max(start, low)) for start, end in self._gaps)

    def runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the open ranges within `[start, end)`."""
        at = max(start, self._done.committed)
        for first, last in self._done.finished(at):
            if first >= end:
                break
            if first > at:
                yield at, first
            at = last
        if at < end:
            yield at, end

    @property
    def first(self) -> int:
        """The offset of the oldest open dead letter; `next` when there is none."""
        low, high = self._bounds
        return next((start for start, _ in self.runs(low, high)), high)


def list_dead_letters(backend: Backend, page: Page = ALL_ITEMS) -> list[dict[str, Any]]:
    """Return one row for each group with a dead-letter topic, and one for transactions. Rows with the most
    open letters come first; a page is sorted by name."""
    group_rows = [describe_group(backend, name) for name in paced(page.of(list_groups(backend), str))]
    return sorted(group_rows, key=lambda row: -row["letters"]) if page[:2] == ALL_ITEMS[:2] else group_rows


def list_groups(backend: Backend) -> list[str]:
    """Return the names of the groups with a dead-letter topic, and that of the topic for transactions."""
    groups = [name.removeprefix(DLQ_PREFIX) for name in backend.topics() if name.startswith(DLQ_PREFIX)]
    return groups if backend.topic(TRANSACTION_DEAD_TOPIC) is None else [*groups, TRANSACTION_DEAD_TOPIC]


def count_open(backend: Backend, groups: Iterable[str]) -> dict[str, int]:
    """Count the open dead letters of each group; 0 without a dead-letter topic."""
    counts = dict.fromkeys(groups, 0)
    infos = {group: backend.topic(dead_letter_topic(group)) for group in counts}
    queues = [(group, queue) for group, info in infos.items() if info is not None for queue in info.refs()]
    bounds, opened = read_open_dead_letters(backend, [queue for _, queue in queues])
    for (group, _), each, limits in zip(queues, opened, bounds, strict=True):
        counts[group] += each.count(*limits)
    return counts


def describe_group(backend: Backend, group: str) -> dict[str, Any]:
    """Return a group with the numbers of its dead letters. Raises NoSuchGroupError."""
    queues = list_dead_letter_queues(backend, group)
    bounds, opened = read_open_dead_letters(backend, queues)
    oldest = [
        _stored_ms(backend, queue, each.first)
        for queue, each, limits in zip(queues, opened, bounds, strict=True)
        if each.first < limits.next
    ]
    return {
        "group": group,
        "topic": dead_letter_topic(group),
        "letters": sum(each.count(*limits) for each, limits in zip(opened, bounds, strict=True)),
        "stored": sum(each.stored for each in opened),
        "oldest_ms": min((ms for ms in oldest if ms is not None), default=None),
    }


def _stored_ms(backend: Backend, queue: QueueRef, offset: int) -> int | None:
    batch = backend.read(queue, offset, 1, 0).wait(WAIT_S)
    return batch.record(0).stored_ms if batch.status is ReadStatus.DATA and batch.offsets else None


def list_dead_letter_queues(backend: Backend, group: str) -> list[QueueRef]:
    """Return the queues of a group's dead-letter topic; none if the group exists and never had a dead letter.
    Raises NoSuchGroupError if neither the topic nor the group exists."""
    info = backend.topic(dead_letter_topic(group))
    if info is None and backend.setting(group_key(group)) is not None:
        return []
    if info is None:
        raise NoSuchGroupError(f"group {group!r} has no dead letters; `ddmq dlq list` shows those that have")
    return info.refs()


def read_open_dead_letters(
    backend: Backend, queues: Sequence[QueueRef]
) -> tuple[list[Bounds], list[OpenDeadLetters]]:
    """Read the bounds and the open dead letters of each queue."""
    views = backend.progress(DONE_GROUP, queues).wait(WAIT_S)
    bounds = [limits or Bounds(0, 0) for limits in backend.bounds(queues).wait(WAIT_S)]
    gaps = [gaps_of(backend, queue, limits) for queue, limits in zip(queues, bounds, strict=True)]
    return bounds, [OpenDeadLetters(*each) for each in zip(views, bounds, gaps, strict=True)]


class _Gaps:
    """The offsets below `end` of one queue that hold no record."""

    def __init__(self, start: int) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.end = start


_cached_gaps: WeakKeyDictionary[Backend, dict[QueueRef, _Gaps]] = WeakKeyDictionary()


def gaps_of(backend: Backend, queue: QueueRef, limits: Bounds) -> list[tuple[int, int]]:
    """Return the offsets within `limits` that never held a dead letter: on Kafka each transaction uses an
    offset for its marker. Earlier scans are cached; one call scans at most SCANNED_MAX further offsets."""
    if backend.gapless:
        return []
    gaps = _cached_gaps.setdefault(backend, {}).setdefault(queue, _Gaps(limits.min))
    gaps.ranges = [gap for gap in gaps.ranges if gap[1] > limits.min]
    gaps.end = max(gaps.end, limits.min)
    end = min(limits.next, gaps.end + SCANNED_MAX)
    while gaps.end < end:
        batch = backend.read(queue, gaps.end, BATCH, READ_BYTES_MAX).wait(WAIT_S)
        if batch.next_offset <= gaps.end:  # nothing to be had now
            break
        at = gaps.end
        for offset in (*batch.offsets, batch.next_offset):
            if offset > at:
                gaps.ranges.append((at, offset))
            at = offset + 1
        gaps.end = batch.next_offset
    return gaps.ranges


def read_dead_letters(
    backend: Backend,
    offset_range: DeadLetterRange,
    opened: OpenDeadLetters,
    count: int | None = None,
    choice: DeadLetterFilter = ALL_LETTERS,
) -> tuple[list[DeadLetter], int]:
    """Read up to `count` (None: BATCH) open dead letters of `offset_range`; return those that may match
    `choice`, and the offset after all of them."""
    start = next((first for first, _ in opened.runs(offset_range.at, offset_range.end)), offset_range.end)
    if start >= offset_range.end:
        return [], offset_range.end
    batch = backend.read(
        offset_range.queue, start, min(count or BATCH, offset_range.end - start), READ_BYTES_MAX
    ).wait(WAIT_S)
    if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None and batch.bounds.min > start:
        return [], min(batch.bounds.min, offset_range.end)
    if batch.status is not ReadStatus.DATA:
        return [], offset_range.end
    candidates = _list_candidates(batch, choice)
    return [
        read_dead_letter(batch.record(index))
        for index, offset in enumerate(batch.offsets)
        if offset < offset_range.end and offset in opened and (candidates is None or offset in candidates)
    ], batch.next_offset


def _list_candidates(batch: ReadBatch, choice: DeadLetterFilter) -> set[int] | None:
    """Return the offsets of the records whose bytes have the texts of a filter, which takes a tenth of the
    time that parsing them takes; None if all may match. Records with the facts outside of their bytes are
    among them."""
    patterns = _list_patterns(choice)
    if not patterns:
        return None
    return {
        record.offset
        for record in batch.carried(REASON)
        if record.value or all(pattern in record.delivery for pattern in patterns)
    }


def dead_letter_row(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as a row for people and programs, with the beginning of its body."""
    record, content = dead_letter.record, dead_letter.content
    value = b"" if content is None else content.value
    properties = {} if content is None else content.properties
    return {
        "queue": record.queue_id,
        "offset": record.offset,
        "id": record.message_id.hex(),
        "key": "" if content is None else content.key.decode("utf-8", "replace"),
        "tags": "" if content is None else content.tag.decode("utf-8", "replace"),
        "reason": dead_letter.reason,
        "error": dead_letter.error,
        "topic": dead_letter.topic,
        "topic_queue": dead_letter.queue_id,
        "topic_offset": dead_letter.offset,
        "attempts": dead_letter.attempts,
        "resent": dead_letter.resent,
        "transaction": dead_letter.transaction,
        "delay": dead_letter.delay,
        "time_ms": dead_letter.time_ms,
        "born_ms": record.born_ms,
        "properties": {
            name.decode("utf-8", "replace"): text.decode("utf-8", "replace")
            for name, text in properties.items()
            if not name.startswith(PREFIX.encode())
        },
        "body_bytes": len(value),
        "preview": preview_body(value),
    }


def preview_body(value: bytes) -> str:
    """Return the beginning of a body as text; a binary body in hexadecimal."""
    head = value[: 4 * PREVIEW_CHARS]
    try:
        return head.decode("utf-8", "strict" if len(head) == len(value) else "ignore")[:PREVIEW_CHARS]
    except UnicodeDecodeError:
        return f"binary: {value[:24].hex(' ')}"
