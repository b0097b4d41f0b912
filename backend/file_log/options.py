"""Bounds and periods of the file log. The comment at each bound describes what happens there."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.file_log.core.retention import RetentionOptions
from backend.idempotency import KEYS_MAX, WINDOW_MS
from ddmq_common.errors import ConfigError

MIB = 1 << 20
SEGMENT_BYTES_MIN = 4 << 10  # smaller ones are a file for nearly each record
SEGMENT_BYTES_MAX = 2048 * MIB  # the index has 32 bits for a position inside a segment


@dataclass(frozen=True, slots=True)
class FileLogOptions:
    """The options of one file log: sizes in bytes, periods in the unit of the name."""

    segment_bytes: int = 1024 * MIB  # then a new segment starts; a bigger frame gets a bigger segment
    allocate_bytes: int = 64 * MIB  # space allocated ahead, at a time
    frame_bytes_max: int = 4 * MIB  # a group commit takes no further request past this
    request_bytes_max: int = 16 * MIB  # per append or commit; more is refused
    pending_bytes_max: int = 64 * MIB  # waiting for the disk; more is refused
    pending_max: int = 100_000  # requests waiting for the disk; more are refused
    body_bytes_max: int = 2 * MIB
    properties_bytes_max: int = 32 * 1024
    topics_max: int = 10_000  # more are refused; of the system's own (retries, …) only 1,000 beyond it
    settings_max: int = 100_000  # more are refused
    waits_max: int = 100_000  # open waits; more fail
    progress_max: int = 1_000_000  # (group, queue) pairs with progress; more are refused
    written_sync_ms: int = 500  # topics of class "written" are synced this often
    checkpoint_bytes: int = 256 * MIB  # a checkpoint after this much log, or
    checkpoint_ms: int = 5_000  # after this time, when something was written
    tail_bytes_max: int = 8 * MIB  # consume-queue entries kept in memory before they go to their files
    tail_ms: int = 200  # or after this time
    queue_files_max: int = 512  # consume-queue files held open
    hot_bytes: int = 256 * MIB  # the newest part of the log, read without leaving the hub
    warm_blocks_max: int = 256  # blocks of 1 MiB read lately, assumed to be cached too
    idempotency_window_ms: int = WINDOW_MS  # an idempotency key is remembered for so long
    idempotency_keys_max: int = (
        KEYS_MAX  # remembered at a time, per topic as many as are free; more are refused
    )
    sweep_ms: int = 5  # the precision of deadlines
    recover_retry_ms: int = (
        1_000  # between attempts to recover from a failed sync, and between two recoveries
    )

    retention: RetentionOptions = field(default_factory=RetentionOptions)

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name != "retention" and getattr(self, name) <= 0:
                raise ConfigError(f"log: {name} is {getattr(self, name)}; allowed: above 0")
        for name in ("request_bytes_max", "pending_bytes_max"):
            if getattr(self, name) < self.body_bytes_max:
                raise ConfigError(
                    f"log: {name} is {getattr(self, name)}; allowed: at least body_bytes_max,"
                    f" {self.body_bytes_max}, or such a message could never be stored"
                )
        if self.idempotency_keys_max < 2:  # one topic may have as many as are free
            raise ConfigError(
                f"log: idempotency_keys_max is {self.idempotency_keys_max}; allowed: at least 2"
            )
        if not SEGMENT_BYTES_MIN <= self.segment_bytes <= SEGMENT_BYTES_MAX:
            raise ConfigError(
                f"log: segment_bytes is {self.segment_bytes}; "
                f"allowed: {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            )

    @property
    def delivery_bytes_max(self) -> int:
        """The largest size of one record's delivery bytes: body, key, tag and properties, encoded."""
        return self.body_bytes_max + 2 * self.properties_bytes_max

    @property
    def moved_bytes_max(self) -> int:
        """The same limit in internal topics, where a message accepted under a higher limit must still fit."""
        return max(self.delivery_bytes_max, self.request_bytes_max)
