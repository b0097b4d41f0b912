"""Keys of the previous release that are constants now.

A file that sets such a key is still accepted for one release: the key is ignored and reported. Remove this
module, and its callers, in the release after 0.2.0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ddmq_common.config import LocatedMapping

log = logging.getLogger("ddmq.server")
# file → key → its value, as it is written in a file
RETIRED: Mapping[str, Mapping[str, str]] = {
    "rpc.yaml": {
        "frames_per_wakeup": "16",
        "accepts_per_wakeup": "64",
        "oneway_open_max": "256",
        "decode_cpu_s": "0.05",
    },
    "backend.yaml": {
        "kafka.heartbeat_ms": "500, or a third of session_ms if that is less",
        "kafka.progress_partitions": "4",
        "kafka.transaction_timeout_ms": "10000",
        "kafka.pending_max": "100000",
        "kafka.waits_max": "100000",
        "kafka.sweep_ms": "5",
    },
    "file_log.yaml": {
        "frame_bytes_max": "4MiB",
        "pending_max": "100000",
        "waits_max": "100000",
        "tail_bytes_max": "8MiB",
        "tail_ms": "200",
        "queue_files_max": "512",
        "warm_blocks_max": "256",
        "sweep_ms": "5",
        "recover_retry_ms": "1000",
    },
    "proxy_producer.yaml": {
        "sweep_ms": "5",
        "creations_max": "64",
        "deferred_max": "1000",
        "delay.waiters_max": "10000",
    },
    "proxy_consumer.yaml": {
        "linger_min_ms": "20",
        "offsets_per_call_max": "10000",
        "results_per_call_max": "1000",
        "read_ahead_count": "128",
        "read_ahead_bytes": "1MiB",
        "commit_timeout_ms": "10000",
        "tick_ms": "5",
    },
    "delay_service.yaml": {
        "read_count": "512",
        "read_bytes": "1MiB",
        "fire_count_max": "512",
        "fire_bytes_max": "1MiB",
        "pause_ms_min": "100",
        "pause_ms_max": "5000",
        "commit_timeout_ms": "10000",
        "ingest_count": "512",
        "ingest_bytes": "1MiB",
        "ingest_unflushed_max": "8192",
    },
}


class RetiredKey(NamedTuple):
    """A key in a configuration file that ddmq no longer uses. `location`: the file and the line."""

    location: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.location}: {self.key} is no longer a setting; its value is {self.value}; remove it"


def remove_retired(path: Path, tree: Any) -> list[RetiredKey]:
    """Remove the retired keys from the tree of a file; return them."""
    keys = []
    for key, value in RETIRED.get(path.name, {}).items():
        *parents, last = key.split(".")
        parent = tree
        for name in parents:
            parent = parent.values.get(name) if isinstance(parent, LocatedMapping) else None
        if isinstance(parent, LocatedMapping) and last in parent.values:
            del parent.values[last]
            keys.append(RetiredKey(f"{path}:{parent.lines.pop(last)}", key, value))
    return keys


def warn_of_old_name(beyond_loopback: bool) -> None:
    """Log a warning if the key or option `insecure` is set by its name of the previous release."""
    if beyond_loopback:
        log.warning(
            "--beyond-loopback, beyond_loopback in ddmq.yaml, is now called --insecure, insecure; the old "
            "name will be removed in the next release"
        )


def warn_of_retired(keys: Iterable[RetiredKey]) -> None:
    """Log a warning for each retired key that a file sets."""
    for key in keys:
        log.warning("%s", key)
