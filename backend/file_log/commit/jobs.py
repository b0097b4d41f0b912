"""What the writer asks of the native thread: write a frame, sync, save what a failed write left unproven."""

from __future__ import annotations

from backend.file_log.commit.committer import Job, WritePlace
from backend.file_log.commit.packing import PackedFrame
from backend.file_log.segments import Segment


class CommitJob(Job):
    """Write one frame."""

    __slots__ = ("frame",)

    def __init__(self, frame: PackedFrame) -> None:
        self.frame = frame

    def run(self, place: WritePlace) -> None:
        place.write(self.frame.data, self.frame.position, sync=self.frame.sync)


class SyncJob(Job):
    """Sync what was only written."""

    __slots__ = ()

    def run(self, place: WritePlace) -> None:
        place.sync()


class GrowJob(Job):
    """See whether a disk that was full has space again."""

    __slots__ = ()

    def run(self, place: WritePlace) -> None:
        place.prepare()


class RescueJob(Job):
    """After a failure: what is not proven durable goes to a new segment."""

    __slots__ = ("durable", "frame", "segment")

    segment: Segment

    def __init__(self, durable: int, frame: PackedFrame | None) -> None:
        self.durable = durable
        self.frame = frame

    def run(self, place: WritePlace) -> None:
        self.segment = place.rescue(self.durable, b"" if self.frame is None else self.frame.data)
