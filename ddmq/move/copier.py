"""Copies one queue of the source into one of the target, in order, each message once.

Each commit to the target contains a run of copies and the source offset that it reaches. So after a crash the
recorded offset says where to continue, and it covers everything that was copied. It is stored as progress of
the group `copied_group` on the target's queue, under the epoch of this run of the command, so that two runs
at the same time cannot both copy. If the outcome of a commit is unknown, the recorded offset is read again.

`pure` is recorded with it: below that offset of the target's queue, all records are copies, and none was sent
to the target itself. The last step begins there, where the two kinds may first be mixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import gevent

from backend.progress.ack_map import AckMap
from backend.records import (
    AppendResult,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    ProgressView,
    QueueRef,
    StoredRecord,
)
from ddmq.move.context import (
    PAUSE_S,
    TRIES,
    MoveContext,
    MoveError,
    read_run,
    request_until_answered,
    wait_for_answer,
)
from ddmq.move.core.copies import CopyOrigin, copy_of
from ddmq_common.errors import (
    CallerError,
    DamagedError,
    FencedError,
    RemoteError,
    StorageError,
    TryLaterError,
)
from ddmq_common.names import MOVED_PROPERTY


class QueueCopier:
    """Copies one queue of the source. `copied`, `pure`: the progress recorded on the target's queue (see
    MoveContext). `first`: the oldest offset of the source's queue."""

    def __init__(
        self,
        context: MoveContext,
        source: QueueRef,
        target: QueueRef,
        copied: ProgressView,
        pure: ProgressView,
        first: int,
    ) -> None:
        self._context = context
        self.source = source
        self.target = target
        self.origin = CopyOrigin(context.source_id, source.topic, source.queue_id)
        self.position = first if copied.committed is None else copied.committed
        self._generations = copied.generation, pure.generation
        self.pure = pure.committed or 0
        self._mixed = False
        self._marker_next = False  # the marker of our own transaction may be at `pure`
        self._skip: AckMap | None = None

    def skip(self, finished: AckMap) -> None:
        """Do not copy the offsets that `finished` contains."""
        self._skip = finished

    def is_already_finished(self, offset: int) -> bool:
        """Whether the offset is finished already, so that it is not copied."""
        return self._skip is not None and self._skip.is_finished(offset)

    # --- copying

    def copy(self, end: int) -> None:
        """Copy every record below offset `end` of the source."""
        context = self._context
        while self.position < end:
            run = read_run(context, context.source, self.source, self.position)
            if run.deleted:
                context.tally.passed["topic deleted at the source"] += 1
                return
            context.tally.passed["expired at the source"] += run.expired
            context.tally.passed["damaged at the source"] += run.damaged
            records = [record for record in run.records if self._belongs_to_move(record)]
            self._append_copies(records, run.next_offset)
            context.tally.remaining = max(context.tally.remaining - (run.next_offset - self.position), 0)
            self.position = run.next_offset
            if run.at_end:
                return

    def _belongs_to_move(self, record: StoredRecord) -> bool:
        if self.is_already_finished(record.offset):
            return False
        if self._context.scope.takes_record(record):
            return True
        self._context.tally.passed["of other topics"] += 1
        return False

    def _append_copies(self, records: Sequence[StoredRecord], after: int) -> None:
        """Append copies of the records, and record in the same commit that everything below `after` was
        copied."""
        if after == self.position:
            return
        copies = [copy_of(record, self.origin, self.target) for record in records]
        try:
            results = self._commit(copies, after)
        except FencedError:
            raise MoveError("another `ddmq move` of the same source has taken over; this one ends") from None
        except CallerError as error:
            if len(records) <= 1:
                raise MoveError(self._describe_rejection(records, error)) from error
            half = len(records) // 2  # one of them is rejected: halving finds it
            self._append_copies(records[:half], records[half].offset)
            self.position = records[half].offset
            self._append_copies(records[half:], after)
            return
        self._advance_pure(results)
        self._context.tally.copied += len(copies)
        self._context.tally.copied_bytes += sum(len(copy.delivery) for copy in copies)

    def _describe_rejection(self, records: Sequence[StoredRecord], error: Exception) -> str:
        which = f" offset {records[0].offset} ({len(records[0].delivery):,} bytes)" if records else ""
        return (
            f"the target does not take {self.source.topic} queue {self.source.queue_id}{which}: {error}; "
            "put that right there and run the command again, it goes on where it was"
        )

    def _commit(self, copies: Sequence[NewRecord], after: int) -> list[AppendResult]:
        """Commit the batch. Returns the results, or none if an earlier try turned out to be stored."""
        context = self._context
        batch = CommitBatch(records=copies, progress=self._progress_deltas(after))
        for tried in range(TRIES):
            try:
                return wait_for_answer(context.target.commit(batch, context.deadline()))
            except DamagedError:
                raise
            except RemoteError:
                if tried + 1 == TRIES:
                    raise
                if self._on_record() >= after:
                    return []
            except (TryLaterError, StorageError) as error:
                if tried + 1 == TRIES:
                    raise
                if tried % 50 == 5:
                    context.print_line(f"waiting for the target: {error}")
            gevent.sleep(PAUSE_S)
        raise AssertionError("not reached")

    def _on_record(self) -> int:
        context = self._context
        views = request_until_answered(
            context, lambda: context.target.progress(context.copied_group, [self.target])
        )
        if views[0].epoch > context.epoch:
            raise FencedError("a newer run of the command copies this queue")
        return views[0].committed or 0

    def _progress_deltas(self, after: int) -> list[ProgressDelta]:
        context, (copied, pure) = self._context, self._generations
        deltas = [ProgressDelta(context.copied_group, self.target, context.epoch, copied, ((0, after),))]
        if self.pure and not self._mixed:
            ranges = ((0, self.pure),)
            deltas.append(ProgressDelta(context.pure_group, self.target, context.epoch, pure, ranges))
        return deltas

    # --- where the target has copies alone

    def _advance_pure(self, results: Sequence[AppendResult]) -> None:
        """Advance `pure`, the offset below which the target has only our copies, past these stored copies.

        If another sender's records lie between them, the queue is read instead.
        """
        if self._mixed or not results:
            return
        first, last = results[0].offset, results[-1].offset
        follows = first == self.pure or (first == self.pure + 1 and self._marker_next)
        if follows and last - first + 1 == len(results):
            self.pure = last + 1
            self._marker_next = not self._context.target.gapless
        else:
            self.scan_pure()

    def scan_pure(self) -> int:
        """Set `pure` to the offset after the last copy before the first other record in the target's queue;
        return it.

        Reads the queue from the present value of `pure` on.
        """
        context, self._marker_next = self._context, False
        while not self._mixed:
            run = read_run(context, context.target, self.target, self.pure)
            for record in run.records:
                if self.origin.offset_of(record.system.get(MOVED_PROPERTY, "")) < 0:
                    self._mixed = True
                    break
                self.pure = record.offset + 1
            else:
                self.pure = max(self.pure, run.next_offset)
                if run.at_end or run.deleted:
                    break
        return self.pure
