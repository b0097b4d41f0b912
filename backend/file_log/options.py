"""Bounds and periods of the file log. The comment at each bound describes what happens there."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

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
    request_bytes_max: int = 16 * MIB  # per append or commit; more is refused
    pending_bytes_max: int = 64 * MIB  # waiting for the disk; more is refused
    body_bytes_max: int = 2 * MIB
    properties_bytes_max: int = 32 * 1024
    topics_max: int = 10_000  # more are refused; of the system's own (retries, …) only 1,000 beyond it
    settings_max: int = 100_000  # more are refused
    progress_max: int = 1_000_000  # (group, queue) pairs with progress; more are refused
    written_sync_ms: int = 500  # topics of class "written" are synced this often
    checkpoint_bytes: int = 256 * MIB  # a checkpoint after this much log, or
    checkpoint_ms: int = 5_000  # after this time, when something was written
    hot_bytes: int = 256 * MIB  # the newest part of the log, read without leaving the hub
    idempotency_window_ms: int = WINDOW_MS  # an idempotency key is remembered for so long
    idempotency_keys_max: int = (
        KEYS_MAX  # remembered at a time, per topic as many as are free; more are refused
    )
    retention: RetentionOptions = field(default_factory=RetentionOptions)

    frame_bytes_max: ClassVar[int] = 4 * MIB  # a group commit takes no further request past this
    pending_max: ClassVar[int] = 100_000  # requests waiting for the disk; more are rejected
    waits_max: ClassVar[int] = 100_000  # waiting readers; more fail
    tail_bytes_max: ClassVar[int] = 8 * MIB  # consume-queue entries in memory, before they go to their files
    tail_ms: ClassVar[int] = 200  # or after this time
    queue_files_max: ClassVar[int] = 512  # open consume-queue files
    warm_blocks_max: ClassVar[int] = 256  # of 1 MiB, read lately: assumed to be in the page cache
    sweep_ms: ClassVar[int] = 5  # how exact deadlines are
    recover_retry_ms: ClassVar[int] = 1_000  # between two tries to recover from a failed sync

    def __post_init__(self) -> None:
        for name in (option.name for option in fields(self)):
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
        """The largest size of a message's delivery bytes when it is moved to an internal topic.

        A message that was accepted under an earlier, higher limit must still fit there.
        """
        return max(self.delivery_bytes_max, self.request_bytes_max)
