"""Every engine that keeps the port's contract. One more engine is one more line in ENGINES."""

from __future__ import annotations

from contract_kit import Engine
from contract_member import MemberEngine

from backend.file_log import FileLogOptions, open_log, open_shared
from backend.memory import MemoryBackend
from ddmq_common.metrics.registry import Registry

# Small segments and frequent checkpoints, so that every test meets several of both.
LOG_OPTIONS = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=256 << 10, checkpoint_ms=50)


class MemoryEngine(Engine):
    persists = False

    def open(self) -> None:
        self.backend = MemoryBackend(self.clock)


class FileLogEngine(Engine):
    persists = True

    def open(self) -> None:
        self.backend = open_log(self.directory, LOG_OPTIONS, clock=self.clock, metrics=Registry())


class LogMemberEngine(Engine):
    """A process that is not the writer of a file log; writer and member live on one hub here."""

    persists = True

    def open(self) -> None:
        self.writer = open_shared(self.directory, LOG_OPTIONS, clock=self.clock, metrics=Registry())
        self.backend = open_shared(
            self.directory, LOG_OPTIONS, clock=self.clock, metrics=Registry(), may_write=False
        )

    def reopen(self) -> None:
        self.close()
        self.open()

    def close(self) -> None:
        self.backend.close()
        self.writer.close()


ENGINES: dict[str, type[Engine]] = {
    "memory": MemoryEngine,
    "file_log": FileLogEngine,
    "member": MemberEngine,
    "log_member": LogMemberEngine,
}
PERSISTENT = [name for name, engine in ENGINES.items() if engine.persists]
