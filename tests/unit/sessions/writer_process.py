"""A writer in a process of its own, on the memory engine; says `ready`, ends with its standard input."""

import sys
from pathlib import Path

import gevent

from backend.file_log.lock import DirectoryLock
from backend.file_log.sessions.election import ElectedLog, Election
from backend.memory import MemoryBackend
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry

CLOCK = SystemClock()


def open_writer(directory: Path, lock: DirectoryLock) -> ElectedLog:
    return ElectedLog(MemoryBackend(CLOCK))


Election(Path(sys.argv[1]), open_writer, CLOCK, Registry()).start()
print("ready", flush=True)
gevent.get_hub().threadpool.apply(sys.stdin.read)
