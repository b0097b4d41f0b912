"""Retention at work: looks every few seconds, deletes off the hub, says whether the disk takes sends.

The decision is core/retention.py's. Rules:
* The log takes a segment out of its own view on the hub first (readers then continue at the oldest),
  and only then are the files removed, in a native thread, with a pause after each.
* Space freed may show late (a reader process still holds the file): until half of it has shown, or
  SETTLE_S have passed, low disk space is no reason to delete more.
* What holds young dead letters is kept for them alone when something behind it goes: durably first, and
  then the log begins behind it.
* Every deletion is logged with its reason and counted; so is every failure, and what a hold keeps.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict

import gevent
from gevent.lock import Semaphore

from backend.engine import StoreClock
from backend.file_log.core import names
from backend.file_log.core.retention import (
    Deletion,
    DiskAdmission,
    HeldSegment,
    Hold,
    Letters,
    LogDisk,
    OldSegment,
    Reason,
    RetentionMoment,
    RetentionOptions,
    admission,
    deletions,
    refusal_text,
    show_bytes,
)
from backend.file_log.storage import Storage
from ddmq_common.clock import Clock
from ddmq_common.errors import DdmqError, DiskFullError
from ddmq_common.metrics.catalogue import (
    LOG_BYTES,
    LOG_CLOCK_AHEAD,
    LOG_DISK,
    LOG_DISK_FREE,
    LOG_RETENTION_FAILURES,
    LOG_SEGMENTS_DELETED,
    LOG_SEGMENTS_HELD,
)
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import in_thread

log = logging.getLogger(__name__)

INTERVAL_S = 2.0
PAUSE_S = 0.05
SETTLE_S = 30.0

Release = Callable[[OldSegment], Callable[[], None]]
"""On the hub: take the segment out of the log's view; gives the blocking call that removes its files."""
Keep = Callable[[OldSegment], Callable[[], Callable[[], None]]]
"""Gives the blocking call that keeps a segment for dead letters alone; and that what notes it, on the hub."""


def local_hour(wall_ms: int) -> int:
    """The hour of the day here, 0 to 23."""
    return time.localtime(wall_ms / 1000).tm_hour


class Retention:
    """One log's retention.

    `segments()`: ascending, the last one live. `holds()`: what may not go (the progress snapshot, delay
    records not stored, …), nor anything behind it; `letters()`: what dead letters under 3 days hold, asked
    once a round. `deleted(segment, reason)` follows each deletion.
    `unfreed()`: bytes deleted that the disk does not show yet because others have the files open. Blocking.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        options: RetentionOptions,
        segments: Callable[[], Sequence[OldSegment]],
        release: Release,
        keep: Keep,
        holds: Callable[[], Iterable[Hold]],
        letters: Callable[[], Letters],
        clock: Clock,
        store_clock: StoreClock,
        registry: Registry,
        *,
        deleted: Callable[[OldSegment, Reason], None] | None = None,
        unfreed: Callable[[], int] = int,
        hour: Callable[[int], int] = local_hour,
    ) -> None:
        self.options = options
        self.admission = DiskAdmission.OPEN
        self.client_refusal: DiskFullError | None = None  # raise or answer this for a client's send
        self.refusal: DiskFullError | None = None  # and this for everything else
        self.held: HeldSegment | None = None
        self._storage = storage
        self._folder = folder
        self._segments = segments
        self._release = release
        self._keep = keep
        self._holds = holds
        self._letters = letters
        self._clock = clock
        self._store_clock = store_clock
        self._registry = registry
        self._deleted = deleted
        self._unfreed = unfreed
        self._hour = hour
        self._settle: tuple[float, int] = (0.0, 0)  # until when, and the free bytes that end it before
        self._greenlet: gevent.Greenlet | None = None
        self._round = Semaphore()  # what an older round measured must not come after a newer one's

    def start(self, interval_s: float = INTERVAL_S) -> None:
        """Look now, then every `interval_s`."""
        self._greenlet = gevent.spawn(self._run, interval_s)

    def stop(self) -> None:
        """A removal under way finishes in its thread. Blocks the calling greenlet."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _run(self, interval_s: float) -> None:
        while True:
            try:
                self.run_once(PAUSE_S)
            except Exception:  # a bug, but with no retention at all the disk would fill up
                self._registry.cell(LOG_RETENTION_FAILURES).value += 1
                log.exception("a round of retention failed")
            gevent.sleep(interval_s)

    def run_once(self, pause_s: float = 0.0) -> list[Deletion]:
        """Measure, decide, delete; what was deleted. One round at a time. Blocks the greenlet only."""
        with self._round:
            return self._run_round(pause_s)

    def _run_round(self, pause_s: float) -> list[Deletion]:
        try:
            disk = LogDisk(*in_thread(self._storage.space, self._folder))
            freed = disk._replace(free=disk.free + in_thread(self._unfreed))
            holds, letters = list(self._holds()), self._letters()
            segments = self._segments()
            wanted, held = deletions(segments, self._moment(freed), self.options, holds, letters)
        except (OSError, DdmqError) as error:
            self._failed("nothing is deleted from %s this time: %s", self._folder, error)
            return []
        self._store_clock.watch(self._registry.cell(LOG_CLOCK_AHEAD))
        self._registry.cell(LOG_BYTES).value = sum(segment.bytes_on_disk for segment in segments)
        self._note_held(held)
        self._admit(disk)
        done: list[Deletion] = []
        for deletion in wanted:
            if not self._delete(deletion):
                break
            done.append(deletion)
            gevent.sleep(pause_s)
        self._begin_settling(disk, done)
        return done

    def _moment(self, disk: LogDisk) -> RetentionMoment:
        now_ms = self._clock.wall_ms()
        until, enough = self._settle
        settling = self._clock.monotonic() < until and disk.free < enough
        return RetentionMoment(now_ms, self._hour(now_ms), disk, settling, self._store_clock.now_ms())

    def _begin_settling(self, disk: LogDisk, done: list[Deletion]) -> None:
        freed = sum(deletion.segment.bytes_on_disk for deletion in done if not deletion.keep)
        if freed:
            self._settle = (self._clock.monotonic() + SETTLE_S, disk.free + freed // 2)

    def _delete(self, deletion: Deletion) -> bool:
        segment, reason, keep = deletion
        try:
            if keep:
                in_thread(self._keep(segment))()
                log.info("segment %d is kept for dead letters alone: %s", segment.start, reason.name.lower())
                return True
            in_thread(self._release(segment))
        except (OSError, DdmqError) as error:
            self._failed("segment %d cannot go: %s", segment.start, error)
            return False
        self._registry.cell(LOG_SEGMENTS_DELETED, reason.name.lower()).value += 1
        log.info(
            "deleted segment %d (%s, newest record %s ms old): %s",
            segment.start,
            show_bytes(segment.bytes_on_disk),
            self._clock.wall_ms() - segment.newest_ms,
            reason.name.lower(),
        )
        if self._deleted is not None:
            self._deleted(segment, reason)
        return True

    def _note_held(self, held: HeldSegment | None) -> None:
        if held is not None and (self.held is None or held.hold.reason != self.held.hold.reason):
            log.warning(
                "segment %d would go (%s) but is held from log position %d on: %s",
                held.segment.start,
                held.reason.name.lower(),
                held.hold.position,
                held.hold.reason,
            )
        self.held = held
        self._registry.cell(LOG_SEGMENTS_HELD).value = int(held is not None)

    def _admit(self, disk: LogDisk) -> None:
        before, self.admission = self.admission, admission(disk, self.options, self.admission)
        self._registry.cell(LOG_DISK_FREE).value = disk.free
        self._registry.cell(LOG_DISK).value = self.admission
        error = None
        if self.admission is not DiskAdmission.OPEN:
            error = DiskFullError(refusal_text(self.admission, disk, self.options, self._folder, self.held))
        self.client_refusal = error
        self.refusal = error if self.admission is DiskAdmission.ALL_REFUSED else None
        if self.admission is not before:
            log.warning("%s", error or f"the disk of {self._folder} takes sends again")

    def _failed(self, text: str, *arguments: object) -> None:
        self._registry.cell(LOG_RETENTION_FAILURES).value += 1
        log.error(text, *arguments)


def note_limits(storage: Storage, directory: str, options: RetentionOptions) -> None:
    """Warn with both values where they differ from the last writer's, and note these. Blocking.

    Each process brings its own configuration, and any server process may become the writer: one that was
    started without the right file would delete by the wrong limits. Nothing depends on the note.
    """
    path = f"{directory}/{names.RETENTION}"
    mine = asdict(options)
    try:
        last = _read(storage, path)
        if last == mine:
            return
        drift = [
            f"{key} {last[key]} -> {value}" for key, value in mine.items() if last.get(key, value) != value
        ]
        if drift:
            log.warning(
                "this process keeps the log in %s by other limits than the last writer did: %s;"
                " every process that may write it should have the same configuration (--config)",
                directory,
                ", ".join(drift),
            )
        _write(storage, path, mine)
    except OSError as error:
        log.warning("the limits of retention cannot be noted in %s: %s", path, error)


def _read(storage: Storage, path: str) -> dict[str, object]:
    """Empty when there is no note, or none that can be read."""
    if not storage.size(path):
        return {}
    with closing(storage.open(path)) as file:
        try:
            found = json.loads(file.pread(file.size(), 0))
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}


def _write(storage: Storage, path: str, limits: dict[str, object]) -> None:
    with closing(storage.open(path + names.UNFINISHED, write=True)) as file:
        file.truncate(0)
        file.pwrite(json.dumps(limits).encode() + b"\n", 0)
    storage.rename(path + names.UNFINISHED, path)
