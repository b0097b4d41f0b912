"""Dead letters sent again, or purged: marked done in the commit that does it, so never done twice.

A letter is resent to the queue it came from, where it has its place in the order of its key, and reaches its
own group alone: the record names the group, and every other group passes it over. With `to_topic` it reaches
every group of the topic. A letter that no group ever had (of a transaction, of a delay) always does.

Each commit holds up to a batch of messages, their marks, and an optimistic lock:
whoever does the same at the same moment is refused, reads again, and finds them done. A request works for a
few seconds at most and answers with a cursor to go on with; what dies again meanwhile is beyond its end.
On an engine that is not atomic a crash in between sends again what was sent and not marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from backend.internal_topics import DeadLetter, resent_record
from backend.port import Backend
from backend.records import (
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    TopicInfo,
)
from ddmq.server.admin.contract.bodies import DeadLetterPurgeBody, DeadLetterResendBody
from ddmq.server.admin.dlq import (
    BATCH,
    DeadLetterFilter,
    DeadLetterRange,
    OpenDeadLetters,
    list_dead_letter_queues,
    read_dead_letters,
    read_open_dead_letters,
)
from ddmq.server.admin.messages import READ_BYTES_MAX
from ddmq.server.admin.topics import WAIT_S
from ddmq_common.clock import Clock
from ddmq_common.errors import BoundReachedError, CallerError, FencedError, RemoteError
from ddmq_common.names import CHANGE_LOCK_GROUP, DONE_GROUP, find_group_name_error
from proxy_consumer.core.progress import ascending_ranges
from proxy_consumer.groups.group import SUBSCRIPTION_PREFIX, subscription_key
from proxy_consumer.retries.retry_queues import next_generation

WORK_S = 3.0
TRIES_MAX = 8
READ_COUNT, READ_COUNT_MAX = 25, 200  # letters in one read, which lets no one else run
EXAMINED_MAX = 2_000  # letters for one batch
MakeSettings = Callable[[int, Counter[str], Counter[str]], Mapping[str, bytes]]
_Ahead = tuple[DeadLetter | None, int]  # a letter that may be chosen, and the offset after it
SAMPLE_MAX = 5  # letters that a dry run retains
GROUPS_SHOWN = 100  # names of groups that one topic's resent letters reach


def _retry_when_fenced(queue: QueueRef, change: Callable[[], int]) -> int:
    """Call `change`, and call it again after each FencedError; return its result."""
    for _ in range(TRIES_MAX):
        try:
            return change()
        except FencedError:
            continue
    raise BoundReachedError(f"dead letters of {queue.topic} are being changed by others; try again")


def _store_no_settings(at: int, sent: Counter[str], not_sent: Counter[str]) -> Mapping[str, bytes]:
    """Return no settings: the request does not record its progress."""
    return {}


class Resend:
    """A request to resend dead letters, with its counts so far. `group`: the only group that gets the
    letters; "" means every group of their topics.

    `discard`: mark the letters as done without sending them. `make_settings` returns settings that the commit
    of a batch includes, from the offset after the batch and the batch's counts. `batch`: letters in a commit.
    `pace` may let other greenlets run between letters. `topics`: those whose letters are sent; None: all.
    """

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        choice: DeadLetterFilter,
        group: str,
        *,
        dry_run: bool,
        discard: bool = False,
        make_settings: MakeSettings = _store_no_settings,
        batch: int = BATCH,
        pace: Callable[[Iterable[_Ahead]], Iterable[_Ahead]] = iter,
        topics: Container[str] | None = None,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._choice = choice
        self._group = group
        self._dry_run = dry_run
        self._discard = discard
        self._make_settings = make_settings
        self._batch = batch
        self._pace = pace
        self._topics = topics
        can = backend.capabilities
        self._bytes_max = can.body_bytes_max + 2 * can.properties_bytes_max
        self.sent: Counter[str] = Counter()  # by topic
        self.not_sent: Counter[str] = Counter()  # by why they were not sent
        self.sample: list[DeadLetter] = []  # the first ones that were chosen
        self.match_bounds: dict[int, tuple[int, int]] = {}  # by queue: from the first match to after the last

    def run(self, offset_ranges: Sequence[DeadLetterRange], stop_at: float) -> list[DeadLetterRange]:
        """Resend letters, at least one batch, until `stop_at` (monotonic seconds); return the ranges that
        remain."""
        remaining = list(offset_ranges)
        while remaining:
            offset_range = remaining.pop(0)
            at = self.resend_batch(offset_range)
            if at < offset_range.end:
                remaining.insert(0, offset_range._replace(at=at))
            if self._clock.monotonic() >= stop_at:
                break
        return remaining

    def resend_batch(self, offset_range: DeadLetterRange) -> int:
        """Resend the first batch of a range; return the offset after it."""
        return _retry_when_fenced(offset_range.queue, partial(self._try_batch, offset_range))

    def _try_batch(self, offset_range: DeadLetterRange) -> int:
        """Resend one batch; return the offset after it. The generation is read before the marks, so that a
        later change of the marks makes the commit fail."""
        backend, queue = self._backend, offset_range.queue
        changes = backend.progress(CHANGE_LOCK_GROUP, (queue,)).wait(WAIT_S)[0]
        done_marks = backend.progress(DONE_GROUP, (queue,)).wait(WAIT_S)[0]
        _, (opened,) = read_open_dead_letters(backend, (queue,))
        sent: Counter[str] = Counter()
        not_sent: Counter[str] = Counter()
        offsets: list[int] = []
        records: list[NewRecord] = []
        size, at = 0, offset_range.at
        for dead_letter, following in self._pace(self._read_ahead(offset_range, opened)):
            if len(offsets) == self._batch or size >= READ_BYTES_MAX:
                break
            at = following
            if dead_letter is not None and self._choose_dead_letter(dead_letter, records, sent, not_sent):
                offsets.append(dead_letter.record.offset)
                size += len(dead_letter.record.delivery)
        if offsets and not self._dry_run:
            settings = self._make_settings(at, sent, not_sent)
            self._store_records(queue, offsets, records, (done_marks, changes), settings)
        self.sent += sent
        self.not_sent += not_sent
        return at

    def _read_ahead(self, offset_range: DeadLetterRange, opened: OpenDeadLetters) -> Iterator[_Ahead]:
        """Yield the open letters that may match, each with the offset after it, and None with the offset up
        to which there are no others. Reads about EXAMINED_MAX letters."""
        at, count = offset_range.at, READ_COUNT
        while at < min(offset_range.end, offset_range.at + EXAMINED_MAX):
            rest = offset_range._replace(at=at)
            dead_letters, at = read_dead_letters(self._backend, rest, opened, count, self._choice)
            count = (
                READ_COUNT if dead_letters else min(2 * count, READ_COUNT_MAX)
            )  # what matches takes longer
            for dead_letter in dead_letters:
                yield dead_letter, dead_letter.record.offset + 1
            yield None, at

    def _choose_dead_letter(
        self, dead_letter: DeadLetter, records: list[NewRecord], sent: Counter[str], not_sent: Counter[str]
    ) -> bool:
        """Count a letter, and append its record to `records` if it is to be sent; return whether it is to be
        marked as done."""
        if not self._choice.matches(dead_letter):
            return False
        queue_id, offset = dead_letter.record.queue_id, dead_letter.record.offset
        self.match_bounds[queue_id] = self.match_bounds.get(queue_id, (offset,))[0], offset + 1
        if not self._discard:
            info = self._backend.topic(dead_letter.topic) if dead_letter.topic else None
            reason = self._explain_rejection(dead_letter, info)
            if info is None or reason:
                not_sent[reason] += 1
                return False
            copy = resent_record(dead_letter, info.queues, self._group)
            if len(copy.delivery) > self._bytes_max:
                not_sent[f"larger than topic {dead_letter.topic} takes (body_bytes_max of the log)"] += 1
                return False
            records.append(copy)
        sent[dead_letter.topic] += 1
        if self._dry_run and len(self.sample) < SAMPLE_MAX:
            self.sample.append(dead_letter)
        return True

    def _explain_rejection(self, dead_letter: DeadLetter, info: TopicInfo | None) -> str:
        """Return why a letter must not be sent; "" if it may be sent."""
        topic, group = dead_letter.topic, self._group
        if not topic:
            return "it does not say which topic it comes from"
        if info is None:
            return f"topic {topic} does not exist any more"
        if not info.writable:
            return f"topic {topic} takes no messages"
        if dead_letter.delay:  # nobody is to have it now
            return "it was to be delivered later (dead-letter-delay); send it anew, with its delay"
        if group and self._backend.setting(subscription_key(group, topic)) is None:
            return (
                f"group {group} does not consume topic {topic} any more; subscribe it again, or resend to "
                "the topic (--to-topic), which reaches every group there"
            )
        if self._topics is not None and topic not in self._topics:
            return f"topic {topic} took none of them when the plan was made"
        return ""

    def _store_records(
        self,
        queue: QueueRef,
        chosen: Sequence[int],
        records: Sequence[NewRecord],
        views: tuple[ProgressView, ProgressView],
        settings: Mapping[str, bytes],
    ) -> None:
        backend, deadline = self._backend, self._clock.monotonic() + WAIT_S
        if not backend.capabilities.atomic:
            results = backend.append(records, deadline).wait(WAIT_S)
            for result in results:
                if result.status is not AppendStatus.STORED:
                    raise result.error or RemoteError("a resent message may or may not be stored")
            records = ()
        ranges = ascending_ranges(chosen)
        marks = (_done_delta(queue, views[0], ranges), next_generation(queue, views[1]))
        batch = CommitBatch(records=records, progress=marks, settings=settings)
        backend.commit(batch, deadline).wait(WAIT_S)


def _done_delta(queue: QueueRef, done: ProgressView, ranges: Sequence[tuple[int, int]]) -> ProgressDelta:
    return ProgressDelta(DONE_GROUP, queue, done.epoch, done.generation, finished=ranges)


def resend(backend: Backend, clock: Clock, group: str, body: DeadLetterResendBody) -> dict[str, Any]:
    """Send chosen letters to their own group again, for a few seconds at most.

    They reach every group of their topics if `to_topic` says so, or if no group ever had them. Answers
    `resent` (by topic), `reached` (by topic, the groups that get those), `to_topic`, `kept` (by why) and
    `cursor`, None when all is done. Raises CallerError if nothing is chosen.
    """
    choice = DeadLetterFilter(frozenset(body.offsets), body.reason, body.topic, body.since_ms)
    if not body.all and choice == DeadLetterFilter():
        raise CallerError("nothing is chosen; give all, offsets, reason, topic or since_ms")
    to_topic = body.to_topic or find_group_name_error(group) is not None
    work = Resend(backend, clock, choice, "" if to_topic else group, dry_run=body.dry_run)
    ranges = ranges_to_resend(backend, group, choice, body.cursor)
    remaining = work.run(ranges, clock.monotonic() + WORK_S)
    return {
        "group": group,
        "dry_run": body.dry_run,
        "to_topic": to_topic,
        "resent": dict(work.sent),
        "reached": {
            topic: list_groups_reached(backend, topic, "" if to_topic else group) for topic in work.sent
        },
        "kept": dict(work.not_sent),
        "cursor": [[each.queue.queue_id, each.at, each.end] for each in remaining] or None,
    }


def list_groups_reached(backend: Backend, topic: str, group: str) -> dict[str, Any]:
    """Return the groups that letters resent to `topic` reach: their `count`, and up to GROUPS_SHOWN names."""
    if group:
        return {"count": 1, "groups": [group]}
    keys = (key.removeprefix(SUBSCRIPTION_PREFIX) for key in backend.settings(SUBSCRIPTION_PREFIX))
    groups = sorted(name for name, _, read in (key.partition("/") for key in keys) if read == topic)
    return {"count": len(groups), "groups": groups[:GROUPS_SHOWN]}


def ranges_to_resend(
    backend: Backend,
    group: str,
    choice: DeadLetterFilter,
    cursor: Sequence[tuple[int, int, int]] | None = None,
) -> list[DeadLetterRange]:
    """Return the ranges of offsets that contain the chosen letters: those of the cursor, or those that exist
    now. Raises CallerError."""
    queues = list_dead_letter_queues(backend, group)
    if cursor is not None:
        return _parse_cursor(queues, cursor)
    bounds, _ = read_open_dead_letters(backend, queues)
    ranges = [
        DeadLetterRange(queue, limits.min, limits.next) for queue, limits in zip(queues, bounds, strict=True)
    ]
    if choice.offsets:
        low, high = min(choice.offsets), max(choice.offsets) + 1
        ranges = [each._replace(at=max(low, each.at), end=min(high, each.end)) for each in ranges]
    return [each for each in ranges if each.at < each.end]


def _parse_cursor(
    queues: Sequence[QueueRef], cursor: Sequence[tuple[int, int, int]]
) -> list[DeadLetterRange]:
    if any(number >= len(queues) for number, _, _ in cursor):
        raise CallerError(f"cursor is {cursor!r}; allowed: the cursor of an earlier answer, or null")
    return [DeadLetterRange(queues[number], at, end) for number, at, end in cursor if at < end]


def purge(backend: Backend, clock: Clock, group: str, body: DeadLetterPurgeBody) -> dict[str, Any]:
    """Mark letters as done without sending them: `all`, or those stored before `before_ms`.

    They stay readable in the dead-letter topic until retention takes them. Answers `purged`, their number;
    with `dry_run` the number that would be purged. Raises CallerError unless exactly one choice is given.
    """
    if body.all == (body.before_ms is not None):
        raise CallerError(
            f"before_ms is {body.before_ms!r}; give either all, or before_ms in epoch milliseconds"
        )
    purged = sum(
        _retry_when_fenced(
            queue, partial(_purge_queue, backend, clock, queue, body.before_ms, dry_run=body.dry_run)
        )
        for queue in list_dead_letter_queues(backend, group)
    )
    return {"group": group, "dry_run": body.dry_run, "purged": purged}


def _purge_queue(
    backend: Backend, clock: Clock, queue: QueueRef, before_ms: int | None, *, dry_run: bool
) -> int:
    changes = backend.progress(CHANGE_LOCK_GROUP, (queue,)).wait(WAIT_S)[0]
    done_marks = backend.progress(DONE_GROUP, (queue,)).wait(WAIT_S)[0]
    (limits,), (opened,) = read_open_dead_letters(backend, (queue,))
    end = limits.next
    if before_ms is not None:
        end = min(end, backend.offset_for_time(queue, before_ms).wait(WAIT_S))
    count = opened.count(0, end)
    if count and not dry_run:
        marks = (_done_delta(queue, done_marks, [(0, end)]), next_generation(queue, changes))
        backend.commit(CommitBatch(progress=marks), clock.monotonic() + WAIT_S).wait(WAIT_S)
    return count
