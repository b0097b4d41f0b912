"""A writer and a member of one file log, in one process."""

from __future__ import annotations

from pathlib import Path

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions.election import ElectedBackend, ElectedLog, Election
from backend.file_log.sessions.member import MemberBackend
from backend.file_log.sessions.pipe import SessionLimits
from backend.file_log.sessions.reads import LocalReads, local_reads
from backend.records import QueueRef, ReadStatus, TopicInfo
from ddmq_common.metrics.registry import Registry
from tests.support.rig import Rig
from tests.support.waits import done, soon
from tests.unit.sessions.session_kit import CLOCK

OPTIONS = FileLogOptions(segment_bytes=64 << 10, allocate_bytes=64 << 10)


class Pair(Rig):
    """A writer and a member of one file log; `writer_reads` counts reads that went to the writer."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.writer_reads = 0
        self.logs: list[FileLog] = []
        self.elections: list[Election] = []
        self.writer = self.enter()
        self.member = self.enter()
        self.count(self.member)

    def enter(self) -> ElectedBackend:
        def open_writer(folder: Path, lock: DirectoryLock) -> ElectedLog:
            log = open_log(folder, OPTIONS, clock=CLOCK, metrics=Registry(), lock=lock)
            self.logs.append(log)
            return ElectedLog(log, log.publish_entries)

        reads = local_reads(self.directory, OPTIONS)
        election = Election(self.directory, open_writer, CLOCK, Registry(), SessionLimits(), reads=reads)
        self.elections.append(election)
        return election.start()

    def count(self, face: ElectedBackend) -> None:
        assert isinstance(face.current, MemberBackend)
        local = face.current._reads
        assert isinstance(local, LocalReads)
        read_from_writer = local.read_from_writer

        def counted(*args: object) -> None:
            self.writer_reads += 1
            read_from_writer(*args)  # type: ignore[arg-type]

        local.read_from_writer = counted  # type: ignore[method-assign]

    def make(self, name: str = "orders", **more: object) -> QueueRef:
        info = done(self.member.put_topic(TopicInfo(name, 0, 1, **more), soon()))  # type: ignore[arg-type]
        return QueueRef(name, info.incarnation, 0)

    def bodies(self, queue: QueueRef, offset: int = 0) -> list[bytes]:
        """Everything from `offset` on, as the member reads it."""
        bodies_read: list[bytes] = []
        while True:
            batch = done(self.member.read(queue, offset, 100, 1 << 20))
            if batch.status is not ReadStatus.DATA:
                return bodies_read
            bodies_read += [bytes(delivery) for delivery in batch.deliveries]
            offset = batch.next_offset

    def close(self) -> None:
        for election in reversed(self.elections):
            election.close()
