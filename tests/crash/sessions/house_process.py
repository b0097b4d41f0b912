"""One process of the house: a writer or a member, as the election has it, with one job.

    python house_process.py DIR SILENCE_S JOB...

Jobs: `append` keeps sending, `wait` keeps reading, `join` holds a group's queue and keeps committing,
`share` holds its share of four queues and keeps committing on all that it ever held.
What happens is printed as JSON lines with the machine's monotonic time.
"""

from __future__ import annotations

import itertools
import json
import os
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gevent

from backend.completion import Completion
from backend.file_log import FileLogOptions, open_log
from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions.election import ElectedLog, Election
from backend.file_log.sessions.pipe import SessionLimits
from backend.file_log.sessions.reads import local_reads
from backend.port import Assignment, Backend, Join
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    QueueRef,
    ReadStatus,
    TopicInfo,
)
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import decode, encode
from ddmq_common.errors import DdmqError
from ddmq_common.metrics.registry import Registry

CLOCK = SystemClock()
STAMP = struct.Struct("<QQd")  # pid, number, sent at
PENDING_APPENDS = 32


def report_event(what: str, **more: Any) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), **more}), flush=True)


def soon() -> float:
    return CLOCK.monotonic() + 5.0


def enter(directory: Path, limits: SessionLimits) -> Election:
    metrics, options = Registry(), FileLogOptions(checkpoint_ms=500)

    def open_writer(folder: Path, lock: DirectoryLock) -> ElectedLog:
        report_event("opening")
        log = open_log(folder, options, clock=CLOCK, metrics=metrics, lock=lock)
        report_event("writer")
        return ElectedLog(log, log.publish_entries)

    reads = local_reads(directory, options)
    return Election(directory, open_writer, CLOCK, metrics, limits, reads=reads)


class Appends:
    """Keeps IN_FLIGHT appends under way and tells what became of each."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._numbers = itertools.count()
        for _ in range(PENDING_APPENDS):
            self._next()

    def _next(self) -> None:
        number = next(self._numbers)
        body = STAMP.pack(os.getpid(), number, time.monotonic())
        message_id = struct.pack("<QQ", os.getpid(), number)
        record = NewRecord("orders", 0, message_id, 0, encode(b"", body, b"", None))
        answer = self._backend.append([record], soon())
        answer.then(lambda done: self._answered(number, done))

    def _answered(self, number: int, done: Completion[list[AppendResult]]) -> None:
        if done.error is not None:
            report_event("failed", number=number, error=str(done.error))
            return
        result = done.value[0]
        if result.status is AppendStatus.STORED:
            report_event("acked", id=[os.getpid(), number], offset=result.offset)
        else:
            report_event(result.status.name.lower(), id=[os.getpid(), number], error=str(result.error))
        gevent.spawn_later(0.002, self._next)


def read_on(backend: Backend) -> None:
    """Read everything from the start, waiting at the end; tell every message."""
    queue, offset = QueueRef("orders", 1, 0), 0
    while True:
        try:
            backend.wait(queue, offset, soon()).wait()
            batch = backend.read(queue, offset, 100, 1 << 20).wait()
        except DdmqError as error:
            report_event("reading", error=str(error))
            gevent.sleep(0.01)
            continue
        if batch.status is not ReadStatus.DATA:
            continue
        now = time.monotonic()
        for at, delivery in zip(batch.offsets, batch.deliveries, strict=True):
            pid, number, sent = STAMP.unpack(decode(delivery).value)
            report_event("got", id=[pid, number], offset=at, after=now - sent)
        offset = batch.next_offset


class StaleEpochOwner:
    """Holds what it is assigned and keeps finishing offset 0 under its epoch, even when it was lost."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._epoch = 0
        self.membership = backend.join(Join("group", "orders"), self)
        gevent.spawn(self._commit)

    def assigned(self, assignment: Assignment) -> None:
        report_event("assigned", epoch=assignment.epoch, queues=len(assignment.queues))
        self._epoch = self._epoch or assignment.epoch  # keeps its first: the fence must stop it

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.membership.release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        report_event("lost", queues=len(queues))

    def _commit(self) -> None:
        while True:
            gevent.sleep(0.02)
            if not self._epoch:
                continue
            delta = ProgressDelta("group", QueueRef("orders", 1, 0), self._epoch, 0, [(0, 1)])
            try:
                self._backend.commit(CommitBatch(progress=[delta]), soon()).wait()
                report_event("committed", epoch=self._epoch)
            except DdmqError as error:
                report_event("refused", epoch=self._epoch, error=type(error).__name__)


class Sharer:
    """Shares four queues with others; keeps finishing offset 0 of all it ever held, under first epochs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._owned: set[QueueRef] = set()
        self._epochs: dict[QueueRef, int] = {}
        backend.put_topic(TopicInfo("shared", 0, 4), soon()).wait()
        self.membership = backend.join(Join("group", "shared", address=f"pid:{os.getpid()}"), self)
        gevent.spawn(self._commit)

    def assigned(self, assignment: Assignment) -> None:
        self._owned.update(assignment.queues)
        for queue in assignment.queues:
            self._epochs.setdefault(queue, assignment.epoch)
        self._report_owned()

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self._owned.difference_update(queues)
        self.membership.release(queues)
        self._report_owned()

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self._owned.difference_update(queues)
        self._report_owned()

    def _report_owned(self) -> None:
        report_event("has", queues=sorted(queue.queue_id for queue in self._owned))

    def _commit(self) -> None:
        while True:
            gevent.sleep(0.02)
            for queue, epoch in list(self._epochs.items()):
                delta = ProgressDelta("group", queue, epoch, 0, [(0, 1)])
                patient = CLOCK.monotonic() + 60.0  # longer than it is ever stopped: refused is fenced
                try:
                    self._backend.commit(CommitBatch(progress=[delta]), patient).wait()
                    report_event("committed", queue=queue.queue_id)
                except DdmqError as error:
                    report_event("refused", queue=queue.queue_id, error=type(error).__name__)


def main(directory: str, silence_s: str, *jobs: str) -> None:
    election = enter(Path(directory), SessionLimits(silence_s=float(silence_s)))
    backend = election.start()
    backend.put_topic(TopicInfo("orders", 0, 1), soon()).wait()
    report_event("ready", writer=election.is_writer)
    started: list[Any] = []
    for job in jobs:
        if job == "append":
            started.append(Appends(backend))
        elif job == "wait":
            started.append(gevent.spawn(read_on, backend))
        elif job == "join":
            started.append(StaleEpochOwner(backend))
        elif job == "share":
            started.append(Sharer(backend))
    gevent.get_hub().join()


if __name__ == "__main__":
    main(*sys.argv[1:])
