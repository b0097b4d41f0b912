"""The configuration of a delay service: frozen, validated once. conf/delay_service.yaml is the reference."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ddmq_common.config import rules
from ddmq_common.delays.levels import DEFAULT_WAITS, Levels
from delay_service.core.occurrences import CATCH_UP_MAX


@dataclass(frozen=True, slots=True)
class DelayConfig:
    """The settings of one delay service, including those that producers and consumers of the cluster must
    know.

    `levels`: the waits that property DELAY=n and retries mean, level 1 first, ascending. A change touches
    new messages only: each carries its own due time, and levels taken from the end are emptied.
    `refused_ms`: for so long messages are put off whose target refuses them, then they are dead letters.

    Any due time: `shards`: queues of the inner topic when it is made, for good. `dir`: where the
    stores are, None = `delay` inside the log's directory. `kept_ms`: how long the outcome of an id is known.
    `standby`: on engines that keep what waits (Kafka) also a warm store of each shard that others own.
    `catch_up_max`: of the deliveries that a loop, or a schedule that wants all of them, has missed, the last
    so many fire (of a cron at most 100). `slice_count`: messages in one commit of theirs (of at most
    `fire_bytes_max`), `fires_in_flight`: such commits under way at a time. Both make a storm faster, and what
    is due meanwhile later. `pending_*_max`: of the messages of one topic that wait; at the bound a producer
    proxy refuses more of them. One that repeats counts its bytes for each delivery of a day.
    """

    levels: tuple[str, ...] = DEFAULT_WAITS
    refused_ms: int = field(default=60_000, metadata=rules(low=0, high=86_400_000))
    shards: int = field(default=4, metadata=rules(low=1, high=1024))
    dir: Path | None = None
    standby: bool = True
    kept_ms: int = field(default=259_200_000, metadata=rules(low=3_600_000, high=31_536_000_000))
    catch_up_max: int = field(default=CATCH_UP_MAX, metadata=rules(low=1, high=1_000_000))
    slice_count: int = field(default=192, metadata=rules(low=1, high=10_000))
    fires_in_flight: int = field(default=4, metadata=rules(low=1, high=64))
    pending_count_max: int = field(default=100_000_000, metadata=rules(low=1, high=1 << 60))
    pending_bytes_max: int = field(default=64 << 30, metadata=rules(low=1, high=1 << 60))

    # a level's memory, and one commit of its due messages
    read_count: ClassVar[int] = 512
    read_bytes: ClassVar[int] = 1 << 20
    fire_count_max: ClassVar[int] = 512
    fire_bytes_max: ClassVar[int] = 1 << 20  # of every commit of due messages
    # one read of commands, and the commands in a store before it is flushed
    ingest_count: ClassVar[int] = 512
    ingest_bytes: ClassVar[int] = 1 << 20
    ingest_unflushed_max: ClassVar[int] = 8_192
    # failures: the pause between two tries doubles; the outcome of a late commit is looked up
    pause_ms_min: ClassVar[int] = 100
    pause_ms_max: ClassVar[int] = 5_000
    commit_timeout_ms: ClassVar[int] = 10_000

    def __post_init__(self) -> None:
        Levels(self.levels)

    @property
    def table(self) -> Levels:
        """Return the configured levels as a Levels object."""
        return Levels(self.levels)
