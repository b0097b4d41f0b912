"""PlayedMemory: the memory engine, with calls for tests that act as other processes do on a real engine.

Writes can be paused (`pause_writes`, `resume_writes`) or fail (`fail_next`). `expire`, `lose`, `revoke` and
`depose` act as retention, damage and other members do.
"""

from __future__ import annotations

from backend.memory import MemoryBackend
from backend.records import AppendStatus, QueueRef
from ddmq_common.errors import DdmqError


class PlayedMemory(MemoryBackend):
    """It loses, refuses, expires and takes back when the test says so."""

    def pause_writes(self) -> None:
        """Accept writes, but let none take effect until `resume_writes`."""
        self._writes.paused = True
        self._tick_on()

    def resume_writes(self) -> None:
        """Let paused writes take effect, in order."""
        self._writes.resume_writing()

    def fail_next(
        self,
        error: DdmqError,
        status: AppendStatus = AppendStatus.NOT_STORED,
        *,
        times: int = 1,
        stored: bool = False,
    ) -> None:
        """Fail the next `times` appends or commits; `stored`: they take effect all the same (for UNKNOWN)."""
        self._writes.fail_next(error, status, times, stored)

    def expire(self, queue: QueueRef, offset: int) -> None:
        """Remove what is below `offset`, as retention does."""
        self._store.expire_below(queue, offset)

    def lose(self, queue: QueueRef, offset: int) -> None:
        """Make one record unreadable, as damage does: its offset becomes a gap."""
        found = self._store.queue(queue)
        if found is not None:
            found.lose_record(offset)

    def revoke(self, group: str, topic: str, deadline: float) -> None:
        """Ask the holders to release their queues by `deadline`; they come last in line."""
        self._members.revoke(group, topic, deadline)

    def depose(self, group: str, topic: str) -> None:
        """Take the queues from their holders at once, as after ten seconds of silence; they come last."""
        self._members.depose(group, topic)
