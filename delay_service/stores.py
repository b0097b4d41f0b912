"""Where the stores of the shards are, and how much memory each may take."""

from __future__ import annotations

from pathlib import Path

from backend.records import QueueRef
from ddmq_common.rocks.database import RocksOptions
from delay_service.shard import Opener
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore

CACHE_BYTES = 64 << 20  # of all shards together
BUFFER_BYTES = 64 << 20  # the same, of what is not in files yet; with more than 16 shards it is more
BUFFERS = 4
BUFFER_BYTES_MIN = 1 << 20


def stores_in(folder: Path, shards: int) -> Opener:
    """Opens shards in `folder`, made when missing; blocks (native thread)."""
    options = RocksOptions(
        write_buffer_bytes=max(BUFFER_BYTES // BUFFERS // shards, BUFFER_BYTES_MIN),
        write_buffers=BUFFERS,
        block_cache_bytes=CACHE_BYTES // shards,
    )

    def opened(queue: QueueRef, epoch: int) -> DelayStore:
        return open_store(folder, queue.queue_id, epoch, options)

    return opened
