"""Messages that are read again: retries, and those let out of their chains.

They are seldom neighbours. What is wanted is read in short windows and gathered by offset until there is
an answer's worth, then handed out together. The filter judges them anew: it may have changed, and a
message that failed at it fails there again.
"""

from __future__ import annotations

from bisect import bisect_left

from backend.records import ReadBatch, ReadStatus
from proxy_consumer.core.gathered import gather
from proxy_consumer.core.message_filter import Filter
from proxy_consumer.core.queue_feed import Slice
from proxy_consumer.core.ranges import ascending_ranges
from proxy_consumer.core.steps import Purpose, QueueState, ReadRequest
from proxy_consumer.core.tally import Tally

WINDOW = 4  # offsets read per message wanted
KEPT_MAX = 1_024  # messages read and not wanted any more, per queue


class Redelivery:
    """The redeliveries of one subscription; what was read lies in QueueState.again."""

    def __init__(self, answer_bytes_max: int, tally: Tally) -> None:
        self._bytes_max = answer_bytes_max
        self._tally = tally

    def next(self, state: QueueState, room: int) -> Slice | ReadRequest | None:
        """Up to `room` messages that are due, or the read that is needed; call `move_due` first."""
        again = state.again
        wanted = state.jobs.table.due(room)
        chosen: list[int] = []
        size = 0
        for offset in wanted:
            read = again.get(offset)
            if read is None:
                break
            size += len(read[0].deliveries[read[1]])
            if chosen and size > self._bytes_max:
                break
            chosen.append(offset)
        full = len(chosen) == len(wanted) or size >= self._bytes_max
        if chosen and full:
            return gather(chosen, [again.pop(offset) for offset in chosen])
        return self._ask(state, wanted[len(chosen) :], room) if wanted else None

    def _ask(self, state: QueueState, missing: list[int], room: int) -> ReadRequest:
        first = missing[0]
        last = max(offset for offset in missing if offset < first + room * WINDOW)
        state.rereading = True
        if len(state.again) > KEPT_MAX:
            state.again = {
                offset: read for offset, read in state.again.items() if state.jobs.table.is_due(offset)
            }
        return ReadRequest(state, first, last - first + 1, self._bytes_max, Purpose.AGAIN)

    def loaded(
        self, request: ReadRequest, batch: ReadBatch, message_filter: Filter | None, now: float
    ) -> None:
        """What was asked for came back."""
        state, jobs = request.state, request.state.jobs
        state.rereading = False
        data = batch.status is ReadStatus.DATA
        end = batch.next_offset if data else request.offset
        if batch.status is ReadStatus.OUT_OF_RANGE and batch.bounds is not None:
            end = max(end, batch.bounds.min)
        there = set(batch.offsets) if data else set()
        ready = jobs.table.ready
        within = ready[bisect_left(ready, request.offset) : bisect_left(ready, end)]
        lost = {offset for offset in within if offset not in there and jobs.table.is_due(offset)}
        jobs.expire_ranges(ascending_ranges(sorted(lost)))
        if data:
            self._keep(state, batch, message_filter, now)

    def _keep(self, state: QueueState, batch: ReadBatch, message_filter: Filter | None, now: float) -> None:
        jobs = state.jobs
        for index, offset in enumerate(batch.offsets):
            if not jobs.table.is_due(offset):
                continue
            refusal = None if message_filter is None else message_filter.judge(batch.deliveries[index])
            if refusal is None:
                state.again[offset] = (batch, index)
            elif refusal.fault and not (jobs.stream is None or jobs.stream.leads(offset)):
                jobs.step_back(offset)  # it fails when its turn comes; those behind it must not go before
            elif refusal.fault:
                jobs.refuse(offset, now, refusal.fault)
            else:
                self._tally.filtered.value += 1
                jobs.skip([(offset, offset + 1)])
