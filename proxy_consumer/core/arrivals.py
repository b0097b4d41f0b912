"""New messages of a queue as a read brought them: what goes on, what is finished undelivered, and why."""

from __future__ import annotations

from collections.abc import Callable

from backend.records import ReadBatch, ReadStatus
from proxy_consumer.core.jobs.job_states import JobState
from proxy_consumer.core.jobs.queue_jobs import QueueJobs
from proxy_consumer.core.message_filter import Filter
from proxy_consumer.core.queue_feed import FeedState, PickedMessages, Slice, pick
from proxy_consumer.core.steps import Loaded, QueueState
from proxy_consumer.core.tally import Tally


class Arrivals:
    """Takes reads in for one subscription; everything left out is counted by its reason."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def loaded(
        self, state: QueueState, batch: ReadBatch, message_filter: Filter | None, refuse_pressure: bool
    ) -> Loaded:
        """A read of new messages."""
        if batch.status is not ReadStatus.DATA:
            return self._nothing(state, batch, message_filter)
        feed, jobs = state.feed, state.jobs
        known = _known(jobs) if feed.cursor < feed.finished_until else None
        picked = pick(batch, feed.cursor, refuse_pressure, known, message_filter)
        if picked.skipped:
            rest = sum(end - start for start, end in picked.skipped) - picked.pressure
            by_tag = message_filter is not None and message_filter.tags is not None
            filtered = rest if by_tag else picked.filtered
            self._tally.pressure.value += picked.pressure
            self._tally.filtered.value += filtered
            self._tally.missing.value += rest - filtered
            jobs.skip(picked.skipped)
        messages = self._take_faulty(state, picked) if picked.faulty else picked.messages
        feed.put(messages, batch.next_offset)
        return Loaded.DATA

    def _take_faulty(self, state: QueueState, picked: PickedMessages) -> Slice:
        """Messages that failed at the filter go the way of those that are read again; the others."""
        messages, faulty = picked.messages, set(picked.faulty)
        if state.stream is not None:
            state.stream.faulty |= faulty  # in their chain's turn
            return messages
        for offset in picked.faulty:
            state.jobs.table.release(offset)
        state.feed.finished_until = max(state.feed.finished_until, picked.faulty[-1] + 1)
        return messages.chosen([at for at, offset in enumerate(messages.offsets) if offset not in faulty])

    def _nothing(self, state: QueueState, batch: ReadBatch, message_filter: Filter | None) -> Loaded:
        feed = state.feed
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            feed.state = FeedState.TAIL
            if feed.cursor < batch.bounds.min:
                self.skip_expired(state, batch.bounds.min)
                feed.state = FeedState.READABLE
                return Loaded.DATA
            return Loaded.TAIL
        if batch.next_offset > feed.cursor:
            passed = batch.next_offset - feed.cursor
            by_tag = message_filter is not None and message_filter.tags is not None
            (self._tally.filtered if by_tag else self._tally.missing).value += passed
            state.jobs.skip([(feed.cursor, batch.next_offset)])
            feed.cursor = batch.next_offset
        feed.state = FeedState.TAIL
        return Loaded.TAIL

    def skip_expired(self, state: QueueState, first: int) -> None:
        """Retention removed what is below `first`."""
        feed, jobs = state.feed, state.jobs
        gone = []
        for start, end in jobs.ack_map.unfinished_from(feed.cursor, 1_000_000):
            if start >= first:
                break
            gone.append((start, min(end, first)))
        jobs.expire_ranges(gone)
        feed.cursor = max(feed.cursor, first)


def _known(jobs: QueueJobs) -> Callable[[int], bool]:
    """Tells finished offsets, and those that go their own way as jobs, from fresh ones."""

    def known(offset: int) -> bool:
        if offset in jobs.out:
            return jobs.stream is None  # in an ordered stream it takes its place, without being delivered
        job = jobs.table.jobs.get(offset)
        if job is not None and job.state is not JobState.RECORDED:
            return True
        return jobs.ack_map.is_finished(offset)

    return known
