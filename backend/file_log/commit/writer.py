"""The log's writer on the hub: it gathers requests while a frame is written, packs the next one, and answers.

Rules:
* The thread has one frame at a time; the requests that arrive meanwhile share the next frame and its sync.
* Readers see a frame's records, and its other records are applied, when it is durable, before any caller is
  answered. A frame with only records of "written" topics counts when it is written.
* After a failed write or sync the log refuses requests and writes everything that is not proven durable once
  more, to a new segment. Only when that is durable does the frame count and the log resume. A failed sync is
  never repeated. If the disk refuses before anything was written (no space), the frame is taken back.

The jobs and the filling of a frame are here, too: only the writer uses them, on the path of every message.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import gevent

from backend.engine import StoreClock
from backend.file_log.commit.committer import Committer, Job, LogEnd, NotStartedError
from backend.file_log.commit.packing import FramePacker, PackedFrame
from backend.file_log.commit.requests import LATE, UNKNOWN, AppendRequest, Request
from backend.file_log.options import FileLogOptions
from backend.file_log.segments import Segment
from backend.file_log.state import LogState
from backend.file_log.storage import is_full
from backend.records import AppendStatus
from ddmq_common.clock import Clock
from ddmq_common.errors import (
    BoundReachedError,
    DdmqError,
    DiskFullError,
    DrainingError,
    RefusedUntilRecoveredError,
    RemoteError,
    StorageError,
    TryLaterError,
)
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry

log = logging.getLogger(__name__)
NEVER = float("inf")
ENOUGH_BYTES = 128 << 10  # with so many bytes waiting a frame begins at once: more would not make it cheaper
ROUNDS_MAX = 4  # rounds of polling on a loop that is never idle
Later = Callable[..., object]  # runs a callback with its arguments from the hub


class Gathering:
    """Begins a group commit when the event loop has nothing else that is ready.

    Every request that has already arrived at a socket then shares the commit and its sync, which costs the
    same for one record and for a hundred. On a loop that is never idle the commit begins after ROUNDS_MAX
    rounds of polling, so that other traffic cannot hold it up. After `begin`, `then` runs once from the hub,
    unless `stop` comes first.
    """

    __slots__ = ("_idle", "_prepare", "_rounds", "_then", "active")

    def __init__(self, loop: Any, then: Callable[[], None]) -> None:
        self._idle = loop.idle()
        self._prepare = loop.prepare()
        self._then = then
        self._rounds = 0
        self.active = False

    def begin(self) -> None:
        """Wait until the event loop is idle, then call `then`; does nothing if already waiting."""
        if not self.active:
            self.active = True
            self._rounds = 0
            self._idle.start(self._end_wait)
            self._prepare.start(self._count_round)

    def _count_round(self) -> None:
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._end_wait()

    def _end_wait(self) -> None:
        self.stop()
        self._then()

    def stop(self) -> None:
        """Cancel the pending call of `then`. Does nothing if none is pending."""
        if self.active:
            self.active = False
            self._idle.stop()
            self._prepare.stop()

    def close(self) -> None:
        """Stop, and close the watchers of the loop."""
        self.stop()
        self._idle.close()
        self._prepare.close()


class CommitJob(Job):
    """Writes one frame to the log."""

    __slots__ = ("frame",)

    def __init__(self, frame: PackedFrame) -> None:
        self.frame = frame

    def run(self, log_end: LogEnd) -> None:
        log_end.write(self.frame.data, self.frame.position, sync=self.frame.sync)


class SyncJob(Job):
    """Syncs frames that were only written."""

    __slots__ = ()

    def run(self, log_end: LogEnd) -> None:
        log_end.sync()


class GrowJob(Job):
    """Checks whether a disk that was full has space again."""

    __slots__ = ()

    def run(self, log_end: LogEnd) -> None:
        log_end.prepare_space()


class RescueJob(Job):
    """Writes everything that is not proven durable to a new segment, after a failure."""

    __slots__ = ("durable", "frame", "segment")

    segment: Segment

    def __init__(self, durable: int, frame: PackedFrame | None) -> None:
        self.durable = durable
        self.frame = frame

    def run(self, log_end: LogEnd) -> None:
        self.segment = log_end.write_rescue(self.durable, b"" if self.frame is None else self.frame.data)


class Writer:
    """Writes the frames of one log: collects requests, commits them together and answers them.

    For each frame that counts, `published` runs before the next frame is packed and before its callers are
    answered; `answered` runs after both.
    """

    def __init__(
        self,
        state: LogState,
        log_end: LogEnd,
        position: int,
        options: FileLogOptions,
        clock: Clock,
        metrics: Registry,
        published: Callable[[PackedFrame], None],
        answered: Callable[[PackedFrame], None],
    ) -> None:
        self.state = state
        self.durable = self.written = position  # log positions
        self.failure: DdmqError | None = None
        self.growth_error: DdmqError | None = None  # why the log could not grow the last time; it is retried
        self._options = options
        self._clock = clock
        self.store_clock = StoreClock(clock, state.last_ms)
        state.sends.start(self.store_clock.now_ms(), clock.monotonic())
        self._published = published
        self._answered = answered
        self._segments = log_end.segments
        self._packer = FramePacker(state, options, log_end.segments.salting.salt)
        self._committer = Committer(log_end, self._on_job_done)
        self._job: Job | None = None
        self._pending: deque[Request] = deque()
        self._pending_bytes = 0
        self._closed = self._sync_requested = False
        self._at_rest: list[Callable[[], None]] = []
        self._loop: Any = gevent.get_hub().loop
        self._gathering = Gathering(self._loop, self._begin_next)
        self._handle_error: Any = gevent.get_hub().handle_error
        self._sync_timer, self._retry_timer, self._rest_timer = HubTimer(), HubTimer(), HubTimer()
        self._rescue: RescueJob | None = None
        self._rescues = [metrics.cell(catalogue.LOG_RESCUES, outcome) for outcome in ("refused", "moved")]
        self._late = [metrics.cell(catalogue.LOG_LATE, outcome) for outcome in ("not_stored", "unknown")]
        self._commits = metrics.cell(catalogue.LOG_COMMITS)
        self._records = metrics.cell(catalogue.LOG_RECORDS)
        self._sync_us = metrics.histogram(catalogue.LOG_SYNC)
        self._sizes = metrics.histogram(catalogue.LOG_COMMIT_RECORDS)
        self._bytes = metrics.histogram(catalogue.LOG_COMMIT_BYTES)
        self.deadline = NEVER  # a time at or before the earliest deadline

    # --- taking requests

    def submit(self, request: Request) -> None:
        """Queue a request, or fail it later from the hub."""
        error = self._check_bounds(request)
        if error is not None:
            self._loop.run_callback(request.fail, error)
            return
        self._pending.append(request)
        self._pending_bytes += request.size
        if request.deadline < self.deadline:
            self.deadline = request.deadline
        if self._job is None and (self._pending_bytes >= ENOUGH_BYTES or not self._gathering.active):
            self._schedule()

    def _check_bounds(self, request: Request) -> DdmqError | None:
        options = self._options
        if self.failure is not None:
            return self.failure
        if request.size > options.request_bytes_max:
            return BoundReachedError(
                f"a request of {request.size} bytes; allowed: at most {options.request_bytes_max}"
            )
        if self._pending_bytes + request.size > options.pending_bytes_max:
            return BoundReachedError(
                f"{self._pending_bytes} bytes wait for the disk; the bound is {options.pending_bytes_max}"
            )
        if len(self._pending) >= options.pending_max:
            return BoundReachedError(f"{len(self._pending)} requests wait for the disk; that is the bound")
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no request waits and nothing is being written."""
        return self._job is None and not self._pending

    def when_at_rest(self, callback: Callable[[], None]) -> None:
        """Run `callback` once, between two frames, when everything written is durable and applied."""
        self._at_rest.append(callback)
        self._schedule()

    def _schedule(self) -> None:
        """Begin a job soon, unless one is under way, whose completion begins the next."""
        if self._job is not None or self._closed:
            return
        if self._pending_bytes < ENOUGH_BYTES:
            self._gathering.begin()
        else:
            self._gathering.stop()
            self._loop.run_callback(self._begin_next)

    # --- starting frames

    def _begin_next(self) -> None:
        self._answer_requests(*self._start_next())

    def _start_next(self) -> tuple[list[Request], list[Request]]:
        """Hand the next job over; return the late requests, and those that are done without a write."""
        if self._job is not None or self._closed or self.failure is not None:
            return [], []
        if (self._at_rest or (self._sync_requested and not self._pending)) and self.written > self.durable:
            self._hand_over(SyncJob())
            return [], []
        at_rest, self._at_rest = self._at_rest, []
        for callback in at_rest:
            self.run_guarded(callback)
        return self._pack() if self._pending else ([], [])

    def _pack(self) -> tuple[list[Request], list[Request]]:
        now, packer = self._clock.monotonic(), self._packer
        frame = packer.begin(self.written, self.durable, self.store_clock.stamp(now), now)
        later = self._loop.run_callback
        filled = fill_frame(packer, self._pending, now, self._options.frame_bytes_max, later)
        self._pending_bytes -= filled.bytes
        if not frame.columns[0] and not frame.applies:
            if self._pending or self._sync_requested:
                self._schedule()
            return filled.late, frame.requests
        frame.sync = frame.sync or self._sync_requested
        self._hand_over(CommitJob(packer.finish_frame()))
        return filled.late, []

    def _hand_over(self, job: Job) -> None:
        self._job = job
        self._committer.hand_over(job)

    def _answer_requests(self, late: list[Request], answered: list[Request]) -> None:
        self._late[0].value += len(late)
        for request in late:
            self.run_guarded(request.fail, TryLaterError(LATE), AppendStatus.NOT_STORED)
        for request in answered:
            self.run_guarded(request.stored)

    def run_guarded(self, call: Callable[..., None], *args: object) -> None:
        """Run a caller's callback and print any exception, so that the other callers are still answered."""
        try:
            call(*args)
        except Exception as error:
            self._handle_error(call, type(error), error, error.__traceback__)

    # --- outcomes

    def _on_job_done(self, job: Job) -> None:
        self._job = None
        if isinstance(job, CommitJob):
            self._commit_done(job)
        elif isinstance(job, RescueJob):
            self._rescue_done(job)
        elif isinstance(job, GrowJob):
            self._on_growth_result(job.error)
            self._answer_requests(*self._start_next())
        elif job.error is None:
            self._on_synced()
            self._answer_requests(*self._start_next())
        else:
            self._fail(job.error, None)

    def _commit_done(self, job: CommitJob) -> None:
        frame, error = job.frame, job.error
        if error is None:
            self._sync_us.observe(job.took_us)
            self._complete_frame(frame)
        elif isinstance(error, NotStartedError):
            self._take_back(frame, error)
        else:
            self._fail(error, frame)

    def _complete_frame(self, frame: PackedFrame) -> None:
        """Make a frame that counts visible, start the next one, and answer the callers."""
        self._commits.value += 1
        if self.growth_error is not None:
            self._on_growth_result(None)
        self._records.value += frame.count
        self._sizes.observe(frame.count)
        self._bytes.observe(frame.end - frame.position)
        self._adopt_segment(frame)
        self.written = frame.end
        if frame.touched:  # only messages have store times that may not go back
            self.state.last_ms = frame.stored_ms
            self.store_clock.confirm_stamp()
        for queue, _ in frame.touched:
            queue.show_pending()
        if self.state.sends.pending:
            self.state.sends.confirm_pending()
        for apply in frame.applies:
            self.run_guarded(apply)
        if frame.sync:
            self._on_synced()
        elif not self._sync_timer.active:
            self._sync_timer.once(self._options.written_sync_ms / 1000, self._request_sync)
        self.run_guarded(self._published, frame)
        late, answered = self._start_next() if self._pending_bytes >= ENOUGH_BYTES else ([], [])
        for request in frame.requests:
            try:
                request.stored()
            except Exception as error:
                self._handle_error(request.stored, type(error), error, error.__traceback__)
        self._answer_requests(late, answered)
        self.run_guarded(self._answered, frame)
        if self._pending or self._at_rest or self._sync_requested:
            self._schedule()

    def _adopt_segment(self, frame: PackedFrame) -> None:
        segment = self._committer.log_end.segment
        if segment is not self._segments.last:
            self._segments.add(segment)
            self.durable = frame.position  # the previous segment was synced before the new one began
        segment.end = frame.end
        segment.last_ms = max(segment.last_ms, frame.stored_ms)

    def _on_synced(self) -> None:
        self.durable = self.written
        self._sync_requested = False
        self._sync_timer.stop()

    def _request_sync(self) -> None:
        self._sync_requested = True
        self._schedule()

    def _take_back(self, frame: PackedFrame, error: NotStartedError) -> None:
        frame.release_offsets()
        self.state.sends.back_to(0)
        self.state.batch_id = frame.batch_id
        text = f"the log cannot grow: {error}; nothing was stored"
        growth_error: DdmqError = DiskFullError(text) if is_full(error.os_error) else StorageError(text)
        if self.growth_error is None:
            log.error("%s; it is tried again every %d ms", text, self._options.recover_retry_ms)
        self.growth_error = growth_error
        self._retry_timer.once(self._options.recover_retry_ms / 1000, self._retry_growth)
        late, answered = self._start_next()
        for request in frame.requests:
            self.run_guarded(request.fail, growth_error)
        self._answer_requests(late, answered)

    def _retry_growth(self) -> None:
        if self.growth_error is not None and self._job is None and not self._closed:
            self._hand_over(GrowJob())

    def _on_growth_result(self, error: Exception | None) -> None:
        if error is not None:
            self._retry_timer.once(self._options.recover_retry_ms / 1000, self._retry_growth)
        else:
            self.growth_error = None
            log.warning("the log can grow again")

    # --- after a failed write or sync

    def _fail(self, error: Exception, frame: PackedFrame | None) -> None:
        if self.failure is not None:  # `give_up` was called meanwhile
            self._fail_all(frame)
            return
        self.failure = RefusedUntilRecoveredError(
            f"writing the log failed ({error}); it refuses writes until all of it is proven durable again"
        )
        log.error("%s", self.failure)
        self._rescue = RescueJob(self.durable, frame)
        if not self._rest_timer.active:  # else soon: each rescue leaves a segment and its descriptor
            self._hand_over(self._rescue)

    def _rescue_done(self, job: RescueJob) -> None:
        self._rescues[job.error is None].value += 1
        if self._rescue is None:  # `give_up` was called meanwhile
            return
        if job.error is not None:
            log.error("the log stays refused: a new segment could not be written: %s", job.error)
            self._fail_all(job.frame)
            self._retry_timer.once(self._options.recover_retry_ms / 1000, self._retry_rescue)
            return
        log.warning("the log continues in a new segment from position %d", job.durable)
        self._rescue = self.failure = None
        self._rest_timer.once(self._options.recover_retry_ms / 1000, self._retry_rescue)
        self._segments.add(job.segment)
        if job.frame is not None:
            job.frame.sync = True
            self._complete_frame(job.frame)
        else:
            self._on_synced()
            self._answer_requests(*self._start_next())

    def _retry_rescue(self) -> None:
        if self._rescue is not None and not self._closed:
            self._hand_over(self._rescue)

    def give_up(self, error: DdmqError) -> None:
        """Stop writing: fail all waiting and later requests with `error`."""
        self.failure = error
        rescue, self._rescue = self._rescue, None
        self._fail_all(None if rescue is None else rescue.frame)

    def _fail_all(self, frame: PackedFrame | None) -> None:
        pending, self._pending, self._pending_bytes = list(self._pending), deque(), 0
        for request in [] if frame is None else frame.requests:
            self.run_guarded(request.fail, RemoteError(UNKNOWN), AppendStatus.UNKNOWN)
        for request in pending:
            self.run_guarded(request.fail, self.failure)

    # --- deadlines and the end

    def sweep(self, now: float) -> None:
        """Answer the requests past their deadline (monotonic seconds)."""
        if now < self.deadline:
            return
        late = [request for request in self._pending if request.deadline <= now]
        in_flight = self._list_requests_in_flight()
        unknown = [request for request in in_flight if request.deadline <= now]
        waiting = [*self._pending, *in_flight]
        self.deadline = min((other.deadline for other in waiting if other.deadline > now), default=NEVER)
        self._answer_requests(late, [])
        self._late[1].value += len(unknown)
        for request in unknown:
            self.run_guarded(request.fail, RemoteError(UNKNOWN), AppendStatus.UNKNOWN)

    def _list_requests_in_flight(self) -> list[Request]:
        frame = getattr(self._job or self._rescue, "frame", None)
        return [] if frame is None else frame.requests

    def close(self, timeout_s: float) -> bool:
        """Stop the thread after its current job, and fail the requests that are not answered.

        Returns False if the thread hangs in the job: its write may still reach the disk.
        """
        if self._closed:
            return True
        self._closed = True
        self._gathering.close()
        for timer in (self._sync_timer, self._retry_timer, self._rest_timer):
            timer.stop()
        in_flight, job, stopped = self._list_requests_in_flight(), None, True
        try:
            job = self._committer.stop(timeout_s)
        except TimeoutError:
            stopped = False
        if isinstance(job, CommitJob) and job.error is None:
            self._sync_us.observe(job.took_us)
            self._complete_frame(job.frame)
        for request in in_flight:
            self.run_guarded(request.fail, RemoteError(UNKNOWN), AppendStatus.UNKNOWN)
        pending, self._pending = list(self._pending), deque()
        for request in pending:
            self.run_guarded(request.fail, DrainingError("the log was closed before this was stored"))
        return stopped


# --- requests into frames


class FrameRequests(NamedTuple):
    """The requests that were removed from the queue for one frame."""

    late: list[Request]  # past their deadline, not answered yet
    bytes: int  # the size of all removed requests


def fill_frame(
    packer: FramePacker, pending: deque[Request], now: float, bytes_max: int, later: Later
) -> FrameRequests:
    """Pack waiting requests into the next frame, in their order, until `bytes_max` is passed.

    A request that cannot be packed, whatever it raises, is refused alone and leaves no trace in the frame.
    `now`: monotonic seconds.
    """
    late: list[Request] = []
    plain: list[AppendRequest] = []
    remaining_bytes = bytes_max
    while pending and remaining_bytes > 0:
        request = pending.popleft()
        remaining_bytes -= request.size
        if request.completion.done:
            continue
        if request.deadline <= now:
            late.append(request)
        elif type(request) is AppendRequest:
            plain.append(request)
        else:
            _pack_plain(packer, plain, later)
            plain = []
            _pack_one(packer, request, later)
    _pack_plain(packer, plain, later)
    return FrameRequests(late, bytes_max - remaining_bytes)


def _pack_plain(packer: FramePacker, requests: list[AppendRequest], later: Later) -> None:
    """Pack appends with nothing between them, in one loop over all their records."""
    mark = packer.mark_extent()
    try:
        results = packer.add_lists([request.records for request in requests])
    except Exception:  # caused by one request: packing each alone shows which one
        packer.back_to(mark)
        for request in requests:
            _pack_one(packer, request, later)
        return
    for request, own in zip(requests, results, strict=True):
        request.results = own
    packer.frame.requests += requests


def _pack_one(packer: FramePacker, request: Request, later: Later) -> None:
    mark = packer.mark_extent()
    try:
        packed = request.pack(packer)
    except Exception as error:
        packer.back_to(mark)
        log.exception("a request of %d bytes could not be packed; it is refused", request.size)
        what = f"the request could not be packed ({type(error).__name__}: {error}); nothing of it was stored"
        later(request.fail, StorageError(what))
        return
    if packed:
        packer.frame.requests.append(request)
