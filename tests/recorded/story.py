"""What a recorded directory holds: what make.py does to a release's server, and test_recorded.py finds again.

Whoever changes this makes the recordings anew.
"""

from __future__ import annotations

import hashlib
import zlib
from datetime import timedelta
from typing import Any

CONFIG: dict[str, Any] = {
    "ddmq": {"process_name": "recorded", "samples": {"interval_ms": 200}},
    "file_log": {
        "segment_bytes": "128KiB",
        "allocate_bytes": "64KiB",
        "checkpoint_ms": 1_000,
        "retention": {"clean_free_percent": 0, "refuse_free_percent": 0, "reserve_free_percent": 0},
    },
    "delay_service": {"shards": 2},
}
TOPICS: dict[str, dict[str, Any]] = {
    "orders": {"queues": 3},
    "large": {"queues": 1, "durability": "written", "body_bytes_max": 1 << 20},
    "reminders": {"queues": 2},
}

# --- messages of `orders`, number n in queue n % 3 at offset n // 3

ORDERS = 24
KEYS = 4


def order(number: int) -> dict[str, Any]:
    """The arguments of its send."""
    return {
        "body": f"order {number}".encode(),
        "key": key(number),
        "tags": "red" if number % 2 else "blue",
        "properties": {"n": str(number)},
        "queue": number % 3,
    }


def key(number: int) -> str:
    return f"key-{number % KEYS}"


LARGE = {
    "text": "".join(f"line {number}\n" for number in range(9_000)).encode(),
    "packed": zlib.compress(b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(300))),
    "every byte": bytes(range(256)) * 3,
}

# --- groups over `orders`

GROUPS: dict[str, dict[str, Any]] = {
    "holes": {"ack_timeout_ms": 45_000, "batch_max": 50},
    "failing": {"retry_intervals_ms": [], "retry_steps": 16},
    "spent": {"retry_intervals_ms": [], "retry_steps": 0},
    "ordered": {"order_key": "KEY", "order_scope": "topic", "ordered_deliveries_max": -1},
    "tagged": {"tags": "red", "concurrency": 100},
    "loader": {"sql": ""},
}
HOLES_ACKED = (0, 1, 3, 6)  # offsets of each queue
FAILED = 5  # by `failing`, which waits for its step, and by `spent`: a dead letter. Others are acknowledged
REASON = "no such customer"
PARKED = "key-1"
ORDERED_ACKED = (0, 2)  # heads of their keys
ORDERED_FAILED = 3
FETCHED = 5  # messages of each queue that `loader` is done with

# --- messages of `reminders`: arguments of their sends, and when they come, in minutes from the recording

DELAYS: dict[str, dict[str, Any]] = {
    "on a level": {"level": 16},
    "once": {"delay": timedelta(hours=1)},
    "moved": {"delay": timedelta(days=2)},  # to 40 minutes
    "cancelled": {"delay": timedelta(hours=1)},
    "fired": {"delay": timedelta(milliseconds=50)},
    "series": {"delay": timedelta(minutes=10), "every": timedelta(minutes=10), "times": 3, "catch_up": "all"},
    "cron": {"cron": "0 9 * * *", "zone": "Asia/Shanghai"},  # 01:00 UTC
    "far": {"delay": timedelta(days=20)},
}
MOVED_TO = timedelta(minutes=40)
WAITING = {"once", "moved", "series", "cron", "far"}  # in the delay store
