"""T12b (T10, T11): a delay store with 10 million pending: memory, opening, the next due one, cancels.

One fill, then each figure in turn. Opening is measured after a kill -9: the filling process ends without
closing, so the write-ahead log is replayed. `cancel`: the id, its message, its removal, made durable.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from random import Random

from bench.delay_messages import BATCH, DUE_RANGE_MS, FIRST_DUE_MS, adding, messages
from bench.harness import Series, percentiles, run, sized
from bench.servers import scratch
from delay_service.store.opening import open_store
from delay_service.store.port import DueKey, IdKind, IdState, StoreChanges
from delay_service.store.rocks_store import RocksStore

COUNT = int(os.environ.get("DDMQ_BENCH_PENDING", sized(10_000_000, 20_000)))
BODY = 128
LOOKUPS = sized(1_000, 50)


def memory_mib() -> float:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def fill(folder: Path, results: multiprocessing.SimpleQueue[dict[str, float]]) -> None:
    """In a process of its own, which ends as if it were killed."""
    store, random, spent = open_store(folder, 0, 1), Random(7), 0.0
    longest = 0.0
    for first in range(0, COUNT, BATCH):
        changes = adding(messages(random, first, BATCH, BODY))
        began = time.perf_counter()
        store.write(changes)
        longest = max(longest, time.perf_counter() - began)
        if first % (10 * BATCH) == 0:
            store.flush()
        spent += time.perf_counter() - began
    store.flush()
    results.put(
        {
            "per_s": COUNT / spent,
            "longest_write_ms": longest * 1000,
            "rss_anon_mib": memory_mib(),
            "disk_mib": store.disk_bytes / (1 << 20),
        }
    )
    os._exit(9)


def filled(folder: Path) -> dict[str, float]:
    results: multiprocessing.SimpleQueue[dict[str, float]] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=fill, args=(folder, results))
    process.start()
    figures = results.get()
    process.join()
    return figures


class Opened:
    """The store as it is found after that."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = Random(11)
        self.epoch = 1
        self.store: RocksStore | None = None

    def open(self) -> dict[str, float]:
        if self.store is not None:
            self.store.close()
        self.epoch += 1
        began = time.perf_counter()
        self.store = open_store(self.folder, 0, self.epoch)
        opened = time.perf_counter() - began
        first = self.store.next_due()
        first_due_s = time.perf_counter() - began
        if first is None or sum(self.store.counts().values()) != COUNT:
            raise AssertionError(f"{dict(self.store.counts())} of {COUNT} are there")
        return {"opened_ms": opened * 1000, "first_due_ms": first_due_s * 1000, "rss_anon_mib": memory_mib()}

    def next_due(self) -> dict[str, float]:
        assert self.store is not None
        latencies = []
        for _ in range(LOOKUPS):
            after = DueKey(FIRST_DUE_MS + self.random.randrange(DUE_RANGE_MS), 0)
            began = time.perf_counter()
            self.store.next_due(after)
            latencies.append(time.perf_counter() - began)
        return percentiles(latencies) | {"rss_anon_mib": memory_mib()}

    def cancels(self) -> dict[str, float]:
        """Each put back afterwards, so that the next round finds as many."""
        assert self.store is not None
        latencies = []
        for _ in range(LOOKUPS):
            at = DueKey(FIRST_DUE_MS + self.random.randrange(DUE_RANGE_MS), 0)
            due = self.store.due(FIRST_DUE_MS + DUE_RANGE_MS, 1, 1 << 20, at)
            if not due:
                continue
            began = time.perf_counter()
            (state,) = self.store.ids([due[0].uuid])
            assert state is not None
            message = self.store.get(DueKey(state.at_ms, state.offset))
            assert message == due[0]
            cancelled = IdState(IdKind.CANCELLED, state.at_ms, state.offset, FIRST_DUE_MS)
            self.store.write(StoreChanges(removed=due, ids={message.uuid: cancelled}))
            self.store.flush()
            latencies.append(time.perf_counter() - began)
            self.store.write(adding(due))
        return percentiles(latencies) | {"rss_anon_mib": memory_mib()}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-", dir=scratch()) as name:
        folder = Path(name)
        one = Opened(folder)
        figures = filled(folder)
        every = [
            Series("filled", lambda: figures, reach="≤ 300 MiB RssAnon"),
            Series("opened", one.open, reach="≤ 1 s"),
            Series("next due behind any moment", one.next_due),
            Series("cancel, durable", one.cancels, reach="p99 ≤ 5 ms"),
        ]
        run(
            "t12b_delay_store", __doc__ or "", every, pending=COUNT, body=BODY, rocksdict=version("rocksdict")
        )
        if one.store is not None:
            one.store.close()


if __name__ == "__main__":
    main()
