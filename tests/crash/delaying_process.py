"""A delay service over a directory, to be killed: for kill_delay and test_delay_stopped.

`python -m tests.crash.delaying_process DIRECTORY [until-idle] [watched SOCKET]` becomes the directory's
writer or joins it, says `ready` when every shard it was granted fires, and runs until it is killed; with
`until-idle` it ends by itself when all orders are taken in and nothing waits; with `watched` its storage
is as whoever listens at the socket says (storage_calls.py). Few messages a commit, so that kills meet every
step.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import gevent

from backend.file_log import FileLogOptions, open_shared
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from delay_service.config import DelayConfig
from delay_service.service import DelayService
from delay_service.store.opening import stores_in
from tests.crash.storage_calls import give_in
from tests.support.constants import build_options
from tests.support.waits import until

SHARDS = 2
CONFIG = build_options(DelayConfig, shards=SHARDS, slice_count=4, ingest_count=16, pause_ms_min=1)
OPTIONS = FileLogOptions(segment_bytes=1 << 20, allocate_bytes=1 << 18, checkpoint_bytes=1 << 19)


def idle(service: DelayService) -> bool:
    """Everything is taken in, nothing waits, nothing is under way."""
    shards = service.shards
    if len(shards) < SHARDS or not service.health().ready:
        return False
    rows = service.lags()
    return (
        all(lag == 0 for lag in rows.values())
        and not service.pending_counts().total()
        and all(shard.is_idle for shard in shards.values())
    )


def main() -> None:
    directory = Path(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if "watched" in sys.argv[2:]:
        give_in(sys.argv[-1])
    backend = open_shared(directory, OPTIONS, clock=SystemClock(), metrics=Registry())
    service = DelayService(backend, CONFIG, Registry(), SystemClock(), stores_in(directory / "delay", SHARDS))
    service.start()
    until(lambda: service.started.done, "the shards fire")
    print("ready", flush=True)
    if "until-idle" in sys.argv[2:]:
        until(lambda: idle(service), "nothing waits")
        service.drain(time.monotonic() + 10).wait(10)
        backend.drain(time.monotonic() + 10).wait(10)
        backend.close()
        print("idle", flush=True)
    else:
        gevent.get_hub().join()  # until it is killed


if __name__ == "__main__":
    main()
