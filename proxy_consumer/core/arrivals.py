"""Sorts the messages that reads return: which are delivered, and which are finished undelivered, and why.

New messages come in order. Finished messages, dead letters that were resent to another group, pressure
traffic that the subscription rejects, messages that the filter rejects, and gaps are not delivered. Messages
that are read again (retries, and jobs released from their chains) are seldom neighbours: they are read in
short windows and collected by offset until there are enough for one reply, then delivered together. The
filter is applied to them again: it may have changed, and a message on which it failed fails on it again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from backend.records import FLAG_PRESSURE, ReadBatch, ReadStatus, is_for_group
from proxy_consumer.core.jobs import JobState
from proxy_consumer.core.progress import Range, ascending_ranges, gaps_between
from proxy_consumer.core.queue_feed import FeedState, Filter, Slice, gather_slice
from proxy_consumer.core.steps import Loaded, Purpose, ReadRequest
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Tally

WINDOW = 4  # offsets read per message needed
REREAD_MAX = 1_024  # messages read again but no longer due, per queue


class Arrivals:
    """Sorts the messages read for one subscription of `group`, and counts each undelivered one by its
    reason."""

    def __init__(self, group: str, answer_bytes_max: int, tally: Tally) -> None:
        self._group = group
        self._bytes_max = answer_bytes_max
        self._tally = tally

    # --- new messages

    def take_new(
        self, queue: SubscribedQueue, batch: ReadBatch, message_filter: Filter | None, reject_pressure: bool
    ) -> Loaded:
        """Pass the deliverable messages of a read to the queue's feed, and finish the rest undelivered."""
        if batch.status is not ReadStatus.DATA:
            return self._take_no_data(queue, batch, message_filter)
        feed = queue.feed
        is_handled = _handled_offsets(queue) if feed.cursor < feed.finished_until else None
        picked = pick_messages(batch, feed.cursor, reject_pressure, is_handled, message_filter, self._group)
        if picked.skipped:
            rest = sum(end - start for start, end in picked.skipped) - picked.pressure - picked.others
            by_tag = message_filter is not None and message_filter.tags is not None
            filtered = rest if by_tag else picked.filtered
            self._tally.pressure.value += picked.pressure
            self._tally.others.value += picked.others
            self._tally.filtered.value += filtered
            self._tally.missing.value += rest - filtered
            queue.skip(picked.skipped)
        messages = self._take_faulty(queue, picked) if picked.faulty else picked.messages
        feed.put(messages, batch.next_offset)
        if batch.at_end and queue.stream is None:  # otherwise its scope records the state and when it began
            feed.state = FeedState.TAIL
        return Loaded.DATA

    def _take_faulty(self, queue: SubscribedQueue, picked: PickedMessages) -> Slice:
        """Return the messages without those on which the filter failed; those are read again later, and fail
        then."""
        messages, faulty = picked.messages, set(picked.faulty)
        if queue.stream is not None:
            queue.stream.faulty |= faulty  # handled when their chain reaches them
            return messages
        for offset in picked.faulty:
            queue.table.release(offset)
        queue.feed.finished_until = max(queue.feed.finished_until, picked.faulty[-1] + 1)
        return messages.pick_messages(
            [at for at, offset in enumerate(messages.offsets) if offset not in faulty]
        )

    def _take_no_data(
        self, queue: SubscribedQueue, batch: ReadBatch, message_filter: Filter | None
    ) -> Loaded:
        feed = queue.feed
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            feed.state = FeedState.TAIL
            if feed.cursor < batch.bounds.min:
                queue.expire_below(batch.bounds.min, feed.cursor)
                feed.cursor = batch.bounds.min
                feed.state = FeedState.READABLE
                return Loaded.DATA
            return Loaded.TAIL
        if batch.next_offset > feed.cursor:
            passed = batch.next_offset - feed.cursor
            by_tag = message_filter is not None and message_filter.tags is not None
            (self._tally.filtered if by_tag else self._tally.missing).value += passed
            queue.skip([(feed.cursor, batch.next_offset)])
            feed.cursor = batch.next_offset
        feed.state = FeedState.TAIL
        return Loaded.TAIL

    # --- messages read again, in SubscribedQueue.reread

    def gather_due(self, queue: SubscribedQueue, capacity: int) -> Slice | ReadRequest | None:
        """Return up to `capacity` due messages, the read needed to get them, or None if none is due.

        Call `move_due` first.
        """
        reread = queue.reread
        due_offsets = queue.table.due_offsets(capacity)
        offsets: list[int] = []
        size = 0
        for offset in due_offsets:
            read = reread.get(offset)
            if read is None:
                break
            size += len(read[0].deliveries[read[1]])
            if offsets and size > self._bytes_max:
                break
            offsets.append(offset)
        full = len(offsets) == len(due_offsets) or size >= self._bytes_max
        if offsets and full:
            return gather_slice(offsets, [reread.pop(offset) for offset in offsets])
        return self._request_reread(queue, due_offsets[len(offsets) :], capacity) if due_offsets else None

    def _request_reread(self, queue: SubscribedQueue, missing: list[int], capacity: int) -> ReadRequest:
        first = missing[0]
        last = max(offset for offset in missing if offset < first + capacity * WINDOW)
        queue.rereading = True
        if len(queue.reread) > REREAD_MAX:
            queue.reread = {
                offset: read for offset, read in queue.reread.items() if queue.table.is_due(offset)
            }
        return ReadRequest(queue, first, last - first + 1, self._bytes_max, Purpose.REDELIVERY)

    def take_reread(
        self, request: ReadRequest, batch: ReadBatch, message_filter: Filter | None, now: float
    ) -> None:
        """Keep the messages of a repeated read that are still due, and finish those that no longer exist."""
        queue = request.queue
        queue.rereading = False
        data = batch.status is ReadStatus.DATA
        end = batch.next_offset if data else request.offset
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            end = max(end, batch.bounds.min)
        there = set(batch.offsets) if data else set()
        ready = queue.table.ready
        within = ready[bisect_left(ready, request.offset) : bisect_left(ready, end)]
        lost = {offset for offset in within if offset not in there and queue.table.is_due(offset)}
        queue.expire_ranges(ascending_ranges(sorted(lost)))
        if data:
            self._keep_due(queue, batch, message_filter, now)

    def _keep_due(
        self, queue: SubscribedQueue, batch: ReadBatch, message_filter: Filter | None, now: float
    ) -> None:
        for index, offset in enumerate(batch.offsets):
            if not queue.table.is_due(offset):
                continue
            rejection = (
                None if message_filter is None else message_filter.find_rejection(batch.deliveries[index])
            )
            if rejection is None:
                queue.reread[offset] = (batch, index)
            elif rejection.error and not (queue.stream is None or queue.stream.is_first(offset)):
                queue.step_back(offset)  # it fails once it heads its chain; no message overtakes it
            elif rejection.error:
                queue.fail_undelivered(offset, now, rejection.error)
            else:
                self._tally.filtered.value += 1
                queue.skip([(offset, offset + 1)])


def _handled_offsets(queue: SubscribedQueue) -> Callable[[int], bool]:
    """Return a test whether an offset is finished or already handled as a job, and so is not to be delivered
    as new."""

    def is_handled(offset: int) -> bool:
        if offset in queue.out:
            return queue.stream is None  # in an ordered stream it enters its chain without being delivered
        job = queue.table.jobs.get(offset)
        if job is not None and job.state is not JobState.RECORDED:
            return True
        return queue.ack_map.is_finished(offset)

    return is_handled


class PickedMessages(NamedTuple):
    """The messages of one read, sorted by how they are handled. `faulty`: offsets in `messages` on which the
    filter failed."""

    messages: Slice
    skipped: list[Range]  # ranges to finish undelivered
    pressure: int
    filtered: int
    faulty: list[int]
    others: int = 0  # resent to another group


def pick_messages(
    batch: ReadBatch,
    cursor: int,
    reject_pressure: bool,
    is_handled: Callable[[int], bool] | None,
    message_filter: Filter | None = None,
    group: str = "",
) -> PickedMessages:
    """Sort the messages of `batch` into those to deliver to `group` and those to finish undelivered.

    `is_handled` returns whether an offset is finished or already handled as a job; None: no offset is.
    """
    offsets, flags = batch.offsets, batch.flags
    flagged = any(flags)
    if is_handled is None and message_filter is None and not flagged:
        messages = Slice(batch, offsets, batch.deliveries, range(len(offsets)))
        covered = ascending_ranges(offsets)
        if covered and covered[0] == (cursor, batch.next_offset):
            return PickedMessages(messages, [], 0, 0, [])
        return PickedMessages(messages, gaps_between(cursor, batch.next_offset, covered), 0, 0, [])
    fresh = [index for index, offset in enumerate(offsets) if is_handled is None or not is_handled(offset)]
    indexes = [index for index in fresh if is_for_group(batch, index, group)] if flagged else fresh
    others = len(fresh) - len(indexes)
    if flagged and reject_pressure:
        indexes = [index for index in indexes if not flags[index] & FLAG_PRESSURE]
    pressure = len(fresh) - others - len(indexes)
    indexes, faulty = _apply_filter(batch, indexes, message_filter)
    deliverable = [offsets[index] for index in indexes]
    handled = [offset for offset in offsets if is_handled is not None and is_handled(offset)]
    covered = ascending_ranges(sorted([*deliverable, *handled]))
    deliveries = [batch.deliveries[index] for index in indexes]
    skipped = gaps_between(cursor, batch.next_offset, covered)
    filtered = len(fresh) - others - pressure - len(indexes)
    messages = Slice(batch, deliverable, deliveries, indexes)
    return PickedMessages(messages, skipped, pressure, filtered, faulty, others)


def _apply_filter(
    batch: ReadBatch, indexes: list[int], message_filter: Filter | None
) -> tuple[list[int], list[int]]:
    """Return the indexes of the messages that pass the filter or on which it fails, and the offsets of the
    latter."""
    if message_filter is None:
        return indexes, []
    passing: list[int] = []
    faulty: list[int] = []
    for index in indexes:
        rejection = message_filter.find_rejection(batch.deliveries[index])
        if rejection is None:
            passing.append(index)
        elif rejection.error:
            passing.append(index)
            faulty.append(batch.offsets[index])
    return passing, faulty
