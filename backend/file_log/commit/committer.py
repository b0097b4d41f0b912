"""The native thread that writes the log: it takes a job from the hub and returns the outcome to the hub.

Rules: the hub hands over one job at a time; `done(job)` runs on the hub, also for a job that failed (then
`job.error` is set). The thread does only system calls: each time it needs the interpreter, it may have to
wait until the hub releases it.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gevent

from backend.file_log.segments import Segment, SegmentSet
from backend.file_log.storage import is_full

AHEAD_FRAMES = 16  # zeros for this many frames of the same size are written after a small frame …
AHEAD_BYTES = 256 << 10  # … at most this many
AHEAD_FRAME_BYTES_MAX = 64 << 10  # a larger frame pays for its own extents
FREE_SHARE = 8  # at most 1 / FREE_SHARE of the free space is allocated ahead
PREPARED_BYTES = 64 << 10
_ZEROS = bytes(AHEAD_BYTES)


class NotStartedError(Exception):
    """The disk refused a write before anything was written; `os_error` is its error."""

    def __init__(self, os_error: OSError) -> None:
        super().__init__(str(os_error))
        self.os_error = os_error


class Job:
    """A unit of work for the thread that writes the log.

    `run` blocks; the exception that it raises becomes `error`.
    """

    __slots__ = ("error", "took_us")

    error: Exception | None
    took_us: float

    def run(self, log_end: LogEnd) -> None:
        """Do the work, in the thread."""
        raise RuntimeError("a job needs a run method")


class LogEnd:
    """The end of the log, where frames are written. Used by the thread, and while the log is opened.

    Space is allocated far ahead, and after small frames zeros are written a little ahead: a file system makes
    a write durable twice as fast if it does not have to record that a block is in use now.
    """

    def __init__(self, segments: SegmentSet, segment_bytes: int, allocate_bytes: int) -> None:
        self.segments = segments
        self.segment = segments.last
        self._segment_bytes = segment_bytes
        self._allocate_bytes = allocate_bytes
        self._allocated = self.segment.end  # log position up to which space is allocated
        self._zeroed = self.segment.end  # log position up to which the file has been written before
        self._unsynced = False
        self._rolling = -1  # a file of this name may exist: no other file may be written past it

    def write(self, data: bytes, position: int, *, sync: bool) -> None:
        """Write `data` at the end of the log; start a new segment if this one is full.

        With `sync`, the data is durable on return. Raises OSError, and NotStartedError if there is no space
        and nothing was written.
        """
        end = position + len(data)
        full = end > self.segment.start + self._segment_bytes and position > self.segment.start
        full = full or position == self._rolling
        if full and self._unsynced:
            self.sync()
        try:
            if full:
                self._start_segment(position, len(data))
            if end > self._allocated:
                self._allocate_ahead(position, end)
        except OSError as error:
            raise NotStartedError(error) from error
        file, at = self.segment.file, position - self.segment.start
        if sync and not self._unsynced:
            if end > self._zeroed and len(data) <= AHEAD_FRAME_BYTES_MAX:
                data += _ZEROS[: min(AHEAD_FRAMES * len(data), self._allocated - end)]
            file.write_through(data, at)
            self._zeroed = max(self._zeroed, position + len(data))
            return
        file.pwrite(data, at)
        self._unsynced = True
        if sync:
            self.sync()

    def sync(self) -> None:
        """Make everything written so far durable. Raises OSError."""
        self.segment.file.sync()
        self._unsynced = False

    def _start_segment(self, position: int, size: int) -> None:
        self._rolling = position
        segment = self.segments.create(position, max(self._segment_bytes, size))
        self._rolling = -1
        old, self.segment = self.segment, segment
        self._allocated = self._zeroed = position
        _release_space(old, position)

    def _allocate_ahead(self, position: int, end: int) -> None:
        limit = self.segment.start + max(self._segment_bytes, end - self.segment.start)
        start = max(position, self._allocated)
        ahead = min(self._allocate_bytes, self.segments.free_bytes() // FREE_SHARE)
        try:
            self._allocate_range(start, min(limit, max(end, start + ahead)))
        except OSError as error:
            if not is_full(error):
                raise
            self._allocate_range(start, end)

    def _allocate_range(self, start: int, upto: int) -> None:
        file = self.segment.file
        try:
            file.allocate(start - self.segment.start, upto - start)
        except OSError as error:
            if is_full(error):  # a file system may keep what it had allocated before it failed
                size = file.size()
                file.truncate(start - self.segment.start)
                file.truncate(size)
            raise
        self._allocated = upto

    def prepare_space(self) -> None:
        """Allocate space for a few small commits before other files use it.

        Raises OSError if there is none.
        """
        if self._rolling >= 0:
            self._start_segment(self._rolling, 0)
        end = self.segment.end + PREPARED_BYTES
        if end > max(self._allocated, self._zeroed):
            self._allocate_ahead(self.segment.end, end)

    def write_rescue(self, durable: int, data: bytes) -> Segment:
        """Write a new durable segment from `durable` on, ending with `data`, after a failed sync. Raises
        OSError.

        `data` is the frame that failed; the bytes between `durable` and it are read back from the page cache.
        The bytes at their old position do not count any more, but they stay: readers may read records of
        "written" topics there, and a process that touches a truncated page dies. The space allocated after
        them is released.
        """
        last = self.segments.last
        if last.start > durable:
            raise OSError(f"log position {durable} lies before the segment that was being written")
        between = last.pread(durable, last.end - durable)
        if len(between) < last.end - durable:
            raise OSError(f"{last.path} returns {len(between)} of {last.end - durable} bytes")
        self._leave_segment(last)
        self.segments.remove_after(durable)  # a new segment that was begun does not count either
        segment = self.segments.create_with(durable, between + data, self._segment_bytes)
        self._rolling = -1
        self.segment, self._unsynced = segment, False
        self._allocated = self._zeroed = segment.end
        return segment

    def _leave_segment(self, last: Segment) -> None:
        """Stop writing the segment `last`, and close the one that was begun after it."""
        if self.segment is not last:
            self.segment.close()
            self.segment = last
        _release_space(last, last.end)
        self._allocated = self._zeroed = last.end


def _release_space(segment: Segment, end: int) -> None:
    """Release the space allocated after `end`; if the disk fails, the next opening of the log releases it."""
    with suppress(OSError):
        segment.file.truncate(end - segment.start)


class Committer:
    """The thread, and the hand-over of its outcomes to the hub."""

    def __init__(self, log_end: LogEnd, done: Callable[[Any], None]) -> None:
        self.log_end = log_end
        self._done = done
        self._job: Job | None = None
        self._finished: Job | None = None
        self._stopping = False
        self._wake: Any = _thread.allocate_lock()
        self._wake.acquire()
        self._exited: Any = _thread.allocate_lock()
        self._exited.acquire()
        self._async: Any = gevent.get_hub().loop.async_()
        self._async.start(self._on_hub)
        _thread.start_new_thread(self._run_jobs, ())

    def hand_over(self, job: Job) -> None:
        """Start a job; the previous one must be done."""
        self._job = job
        self._wake.release()

    def _run_jobs(self) -> None:
        wait = self._wake.acquire
        while not self._stopping:
            wait()
            job, self._job = self._job, None
            if job is not None:
                self._run(job)
        self._exited.release()

    def _run(self, job: Job) -> None:
        started = time.perf_counter()
        job.error = None
        try:
            job.run(self.log_end)
        except Exception as error:  # the hub must receive every failure, or it waits for ever
            job.error = error
        job.took_us = (time.perf_counter() - started) * 1e6
        self._finished = job
        if not self._stopping:
            self._async.send()

    def _on_hub(self) -> None:
        job, self._finished = self._finished, None
        if job is not None:
            self._done(job)

    def stop(self, timeout_s: float) -> Job | None:
        """End the thread after its current job; return that job if the hub has not received it.

        Raises TimeoutError when the thread hangs in the job; its outcome is then lost.
        """
        if self._stopping:
            return None
        self._stopping = True
        try:
            self._wake.release()
        except RuntimeError:  # the thread has not started the job handed over last
            pass
        stopped = self._exited.acquire(timeout=timeout_s)
        self._async.stop()
        self._async.close()
        if not stopped:
            raise TimeoutError
        job, self._finished = self._finished, None
        return job
