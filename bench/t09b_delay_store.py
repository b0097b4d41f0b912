"""T9b, T8: the delay store alone: from taken orders into RocksDB, and a storm out of it, in this process.

Ingest: batches of 1,000 with their ids, flushed every ten batches. Floor: the same keys and bytes written by
the bindings directly. Storm: 100,000 due in one millisecond, read from a store that was just opened and
removed, in batches of 1,000.
"""

from __future__ import annotations

import gc
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from random import Random

from bench.delay_messages import BATCH, adding, messages
from bench.harness import Series, run, sized
from bench.servers import scratch
from ddmq_common.rocks.database import Rocks, WriteBatch
from delay_service.store import layout
from delay_service.store.layout import encode_pending
from delay_service.store.opening import open_store
from delay_service.store.port import StoreChanges
from delay_service.store.rocks_store import RocksStore

COUNT = sized(200_000, 2_000)
STORM = sized(100_000, 2_000)
FLUSH_EVERY = 10
SMALL, LARGE = 128, 1024


class Bench:
    """One store that grows, and one database that grows beside it for the floor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store: RocksStore = open_store(folder / "store", 0, 1)
        self.plain = Rocks(folder / "plain")
        self.random = Random(9)
        self.offset = 0
        self.storms = 0

    def make_batches(self, count: int, body: int, due_ms: int | None = None) -> list[StoreChanges]:
        batches = []
        for _ in range(count // BATCH):
            batches.append(adding(messages(self.random, self.offset, BATCH, body, due_ms)))
            self.offset += BATCH
        gc.collect()
        gc.freeze()  # a service holds no such heap of messages
        return batches

    def ingest(self, body: int) -> dict[str, float]:
        batches, longest, began = self.make_batches(COUNT, body), 0.0, time.perf_counter()
        began = time.perf_counter()
        for number, changes in enumerate(batches):
            at = time.perf_counter()
            self.store.write(changes)
            longest = max(longest, time.perf_counter() - at)
            if number % FLUSH_EVERY == FLUSH_EVERY - 1:
                self.store.flush()
        return {"per_s": COUNT / (time.perf_counter() - began), "longest_write_ms": longest * 1000}

    def floor(self, body: int) -> dict[str, float]:
        pairs = [
            sorted((layout.due_key(*one.key), encode_pending(one)) for one in changes.added)
            + sorted((layout.ID + uuid, bytes(26)) for uuid in changes.ids)
            for changes in self.make_batches(COUNT, body)
        ]
        began = time.perf_counter()
        for number, batch_pairs in enumerate(pairs):
            batch = WriteBatch()
            for key, value in batch_pairs:
                batch.put(key, value)
            self.plain.write(batch)
            if number % FLUSH_EVERY == FLUSH_EVERY - 1:
                self.plain.sync()
        return {"per_s": COUNT / (time.perf_counter() - began)}

    def storm(self, body: int) -> dict[str, float]:
        self.storms += 1
        due_ms, count = 1_000 + self.storms, 0
        for changes in self.make_batches(STORM, body, due_ms):
            self.store.write(changes)
        self.store.close()
        self.store = open_store(self.folder / "store", 0, 1)
        began = time.perf_counter()
        while batch := self.store.due(due_ms, BATCH, 1 << 30):
            self.store.write(StoreChanges(removed=batch))
            count += len(batch)
        seconds = time.perf_counter() - began
        if count != STORM:
            raise AssertionError(f"{count} of {STORM} came")
        return {"per_s": STORM / seconds}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch()) as folder:
        bench = Bench(Path(folder))
        every = []
        for body, reach in ((SMALL, "≥ 200,000"), (LARGE, "≥ 100,000")):
            write, plain = f"into the store, {body} B", f"plain batch write, {body} B"
            every += [
                Series(plain, lambda body=body: bench.floor(body)),
                Series(write, lambda body=body: bench.ingest(body), plain, reach),
                Series(f"storm out of the store, {body} B", lambda body=body: bench.storm(body)),
            ]
        run(
            "t09b_delay_store", __doc__ or "", every, count=COUNT, storm=STORM, rocksdict=version("rocksdict")
        )
        if sum(bench.store.counts().values()) != COUNT * 2 * len(every[0].rounds):
            raise AssertionError("what was put in is not counted")
        bench.store.close()
        bench.plain.close()


if __name__ == "__main__":
    main()
