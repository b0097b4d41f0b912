"""The member engine: the port as a process has it that is not the writer, over a session.

Both ends live on one hub here; what crosses between them is the real socket.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions.election import ElectedLog, Election
from backend.testing.kit import Engine
from ddmq_common.metrics.registry import Registry
from tests.played_memory import PlayedMemory


class MemberEngine(Engine):
    """A member of a writer on the memory engine: everything through the session."""

    persists: ClassVar[bool] = False

    def open(self) -> None:
        def open_writer(directory: Path, lock: DirectoryLock) -> ElectedLog:
            return ElectedLog(PlayedMemory(self.clock))

        self.directory.mkdir(exist_ok=True)
        arguments = self.directory, open_writer, self.clock
        self.writer = Election(*arguments, Registry()).start()
        self.backend = Election(*arguments, Registry(), may_write=False).start()

    def reopen(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.backend.close()
        self.writer.close()
