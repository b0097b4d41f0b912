"""A process that writes to a store until it is killed or fails, and says what is durable.

`python -m tests.crash.delay_store.store_writer FOLDER SEED EPOCH [FILE_BYTES]`: prints `f NUMBER` after each
flush, NUMBER being the batches written before it. With FILE_BYTES no file may grow beyond: the first failure
is told as `failed`, then the process checks that the store refuses, and ends.
"""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

from ddmq_common.errors import StorageError
from ddmq_common.rocks.database import RocksOptions
from delay_service.store.opening import open_store
from delay_service.store.port import DelayStore, StoreChanges
from tests.crash.delay_store.store_load import Load, written

SMALL = RocksOptions(write_buffer_bytes=128 << 10, file_bytes=128 << 10)


def tidy_for_ever(store: DelayStore) -> None:
    """As the service does, beside everything else; its failure is the writer's to tell."""
    while True:
        try:
            store.tidy()
        except StorageError:
            return


def write_for_ever(store: DelayStore, load: Load) -> None:
    """Until something fails."""
    while True:
        for _ in range(load.number % 5 + 1):
            store.write(load.next())
        number = load.number
        store.flush()
        print("f", number, flush=True)


def main() -> None:
    folder, seed, epoch = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = open_store(folder, 0, epoch, SMALL)
    load = Load(seed)
    while load.number < written(store):
        load.next()
    if len(sys.argv) > 4:
        limit = int(sys.argv[4])
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    threading.Thread(target=tidy_for_ever, args=(store,), daemon=True).start()
    print("ready", flush=True)
    try:
        write_for_ever(store, load)
    except StorageError:
        print("failed", flush=True)
        for call in (store.flush, lambda: store.write(StoreChanges()), lambda: store.due(1, 1, 1)):
            try:
                call()
            except StorageError:
                continue
            print("went on after a failure", flush=True)
        store.close()


if __name__ == "__main__":
    main()
