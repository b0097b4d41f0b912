"""Every engine that keeps the port's contract. One more engine is one more line in ENGINES."""

from __future__ import annotations

from backend.file_log import FileLogOptions, open_log, open_shared
from backend.testing.kit import Engine
from ddmq_common.metrics.registry import Registry
from tests.contract.contract_kafka import KafkaEngine
from tests.contract.contract_member import MemberEngine
from tests.played_memory import PlayedMemory
from tests.support.constants import build_options

# Small segments and frequent checkpoints, so that every test meets several of both.
LOG_OPTIONS = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=256 << 10, checkpoint_ms=50)


class MemoryEngine(Engine):
    persists = False

    def open(self) -> None:
        self.backend = PlayedMemory(self.clock)


class FileLogEngine(Engine):
    persists = True

    def open(self) -> None:
        self.backend = open_log(self.directory, LOG_OPTIONS, clock=self.clock, metrics=Registry())


class TinyLogEngine(Engine):
    """Every bound so small that a short story rolls segments, writes checkpoints and reads cold files."""

    persists = True
    options = build_options(
        FileLogOptions,
        segment_bytes=4 << 10,
        allocate_bytes=1 << 10,
        checkpoint_bytes=2 << 10,
        checkpoint_ms=5,
        tail_bytes_max=256,
        tail_ms=1,
        queue_files_max=2,
        hot_bytes=4 << 10,
        warm_blocks_max=1,
    )

    def open(self) -> None:
        self.backend = open_log(self.directory, self.options, clock=self.clock, metrics=Registry())


class LogMemberEngine(Engine):
    """A process that is not the writer of a file log; writer and member live on one hub here."""

    persists = True
    fills_batches = False

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
    "kafka": KafkaEngine,
}
BROKERS = ["kafka"]  # a real broker is started for it
MODELLED = {**ENGINES, "tiny_log": TinyLogEngine}  # the stories beside the model
del MODELLED["kafka"]  # ends of transactions take offsets, and the broker has its own clock: the model counts
PERSISTENT = [name for name, engine in ENGINES.items() if engine.persists]
