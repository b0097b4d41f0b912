"""The one native thread that writes the log: a job in, its outcome back on the hub.

Rules: one job at a time, handed over by the hub; `done(job)` runs on the hub, also for a job that
failed (then `job.error` is set). Nothing but system calls happens in the thread: each time it needs the
interpreter it may have to wait for the hub to let go of it.
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

AHEAD_FRAMES = 16  # zeros for as many more of its size are written behind a small frame …
AHEAD_BYTES = 256 << 10  # … at most
AHEAD_FRAME_BYTES_MAX = 64 << 10  # a larger frame pays for its own extents
FREE_SHARE = 8  # of the free space at most this part is set aside ahead
PREPARED_BYTES = 64 << 10
_ZEROS = bytes(AHEAD_BYTES)


class NotStartedError(Exception):
    """The disk refused before anything was written; `refusal` is what it said."""

    def __init__(self, refusal: OSError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Job:
    """Work for the thread. `run` blocks; what it raises becomes `error`."""

    __slots__ = ("error", "took_us")

    error: Exception | None
    took_us: float

    def run(self, place: WritePlace) -> None:
        """The work itself, in the thread."""
        raise RuntimeError("a job needs a run method")


class WritePlace:
    """Where the log is written. Used by the thread, and by whoever opens the log before it starts.

    Space is allocated far ahead, and behind small frames zeros are written a little ahead: a file system
    makes a write durable twice as fast where it does not have to note that the place is in use now.
    """

    def __init__(self, segments: SegmentSet, segment_bytes: int, allocate_bytes: int) -> None:
        self.segments = segments
        self.segment = segments.last
        self._segment_bytes = segment_bytes
        self._allocate_bytes = allocate_bytes
        self._allocated = self.segment.end  # log position up to which there is space
        self._zeroed = self.segment.end  # and up to which it has been written before
        self._unsynced = False
        self._rolling = -1  # a file of this name may be there: nothing may be written past it elsewhere

    def write(self, data: bytes, position: int, *, sync: bool) -> None:
        """Write at the end of the log, durable on return with `sync`; a new segment when this one is full.

        Raises OSError, and NotStartedError when there is no space and nothing was written.
        """
        end = position + len(data)
        full = end > self.segment.start + self._segment_bytes and position > self.segment.start
        full = full or position == self._rolling
        if full and self._unsynced:
            self.sync()
        try:
            if full:
                self._roll(position, len(data))
            if end > self._allocated:
                self._allocate(position, end)
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
        """Make all that was written durable. Raises OSError."""
        self.segment.file.sync()
        self._unsynced = False

    def _roll(self, position: int, size: int) -> None:
        self._rolling = position
        segment = self.segments.create(position, max(self._segment_bytes, size))
        self._rolling = -1
        old, self.segment = self.segment, segment
        self._allocated = self._zeroed = position
        _trim(old, position)

    def _allocate(self, position: int, end: int) -> None:
        limit = self.segment.start + max(self._segment_bytes, end - self.segment.start)
        start = max(position, self._allocated)
        ahead = min(self._allocate_bytes, self.segments.free_bytes() // FREE_SHARE)
        try:
            self._set_aside(start, min(limit, max(end, start + ahead)))
        except OSError as error:
            if not is_full(error):
                raise
            self._set_aside(start, end)

    def _set_aside(self, start: int, upto: int) -> None:
        file = self.segment.file
        try:
            file.allocate(start - self.segment.start, upto - start)
        except OSError as error:
            if is_full(error):  # a file system may keep what it had found until then
                size = file.size()
                file.truncate(start - self.segment.start)
                file.truncate(size)
            raise
        self._allocated = upto

    def prepare(self) -> None:
        """Have space for a few small commits, before others take it. Raises OSError where there is none."""
        if self._rolling >= 0:
            self._roll(self._rolling, 0)
        end = self.segment.end + PREPARED_BYTES
        if end > max(self._allocated, self._zeroed):
            self._allocate(self.segment.end, end)

    def rescue(self, durable: int, data: bytes) -> Segment:
        """After a failed sync: a new durable segment from `durable` on that ends with `data`. Raises OSError.

        `data` is the frame that failed; what was written between `durable` and it is read back from the
        cache. The bytes at their old place are not believed any more, but they stay: readers may look at
        records of "written" topics there, and a process that touches a page that was cut off dies. The
        space set aside behind them is given back.
        """
        found = self.segments.last
        if found.start > durable:
            raise OSError(f"log position {durable} lies before the segment that was being written")
        between = found.pread(durable, found.end - durable)
        if len(between) < found.end - durable:
            raise OSError(f"{found.path} gives {len(between)} of {found.end - durable} bytes back")
        self._leave(found)
        self.segments.remove_after(durable)  # a new one that was begun is not believed either
        segment = self.segments.create_with(durable, between + data, self._segment_bytes)
        self._rolling = -1
        self.segment, self._unsynced = segment, False
        self._allocated = self._zeroed = segment.end
        return segment

    def _leave(self, found: Segment) -> None:
        """`found` is written no more, and what was begun behind it is nobody's."""
        if self.segment is not found:
            self.segment.close()
            self.segment = found
        _trim(found, found.end)
        self._allocated = self._zeroed = found.end


def _trim(segment: Segment, end: int) -> None:
    """Give back the space set aside from a log position on; what a bad disk keeps, the next opening frees."""
    with suppress(OSError):
        segment.file.truncate(end - segment.start)


class Committer:
    """The thread, and its way back to the hub."""

    def __init__(self, place: WritePlace, done: Callable[[Any], None]) -> None:
        self.place = place
        self._done = done
        self._job: Job | None = None
        self._finished: Job | None = None
        self._stopping = False
        self._wake: Any = _thread.allocate_lock()
        self._wake.acquire()
        self._gone: Any = _thread.allocate_lock()
        self._gone.acquire()
        self._async: Any = gevent.get_hub().loop.async_()
        self._async.start(self._on_hub)
        _thread.start_new_thread(self._loop, ())

    def hand_over(self, job: Job) -> None:
        """Start a job; the one before must be done."""
        self._job = job
        self._wake.release()

    def _loop(self) -> None:
        wait = self._wake.acquire
        while not self._stopping:
            wait()
            job, self._job = self._job, None
            if job is not None:
                self._run(job)
        self._gone.release()

    def _run(self, job: Job) -> None:
        started = time.perf_counter()
        job.error = None
        try:
            job.run(self.place)
        except Exception as error:  # whatever it is: the hub must hear of it, or it waits for ever
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
        """End the thread, after the job it has; gives that job if the hub has not heard of it.

        Raises TimeoutError when the thread hangs in it: nobody hears of that job any more.
        """
        if self._stopping:
            return None
        self._stopping = True
        try:
            self._wake.release()
        except RuntimeError:  # a job was handed over that the thread has not taken yet
            pass
        ended = self._gone.acquire(timeout=timeout_s)
        self._async.stop()
        self._async.close()
        if not ended:
            raise TimeoutError
        job, self._finished = self._finished, None
        return job
