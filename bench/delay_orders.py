"""Adds to the delay service by the thousand: straight into the inner topic, as a producer proxy writes them.

    python -m bench.delay_orders DATA_DIR TOPIC FIRST COUNT BODY DUE_MS DUE_RANGE_MS

Joins the directory as one more process (it becomes its writer when there is none). Order number n has the
uuid that `uuid_of(n)` says and is due at DUE_MS plus a share of DUE_RANGE_MS, spread without order; its body
begins with its due time. What follows from here on (taking in, firing, delivering) is the real way.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path

from backend.completion import Completion
from backend.file_log import open_shared
from backend.port import Backend
from backend.records import AppendResult, AppendStatus, NewRecord, TopicInfo
from ddmq_client.idl.codes import FROM_CHRONOS
from ddmq_common.clock import SystemClock
from ddmq_common.delays.command import (
    ADD,
    COMMAND_PROPERTY,
    EXPIRE_AFTER_S,
    ONCE,
    DelayCommand,
    DelayId,
    encode_command,
    shard_of,
)
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC

SHARDS = 4
BATCH = 1_000
UNDER_WAY = 4
WAIT_S = 30.0
SPREAD = 7_368_787  # prime: number × SPREAD modulo a range visits it without order
MARK = b"\xfeDUE\xfe"
STAMP = struct.Struct("d")
CHRONOS = {b"from_chronos": FROM_CHRONOS.encode()}


def uuid_of(number: int) -> str:
    """The uuid of order `number`."""
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def due_of(number: int, due_ms: int, due_range_ms: int) -> int:
    """When order `number` is due; epoch milliseconds."""
    return due_ms + (number * SPREAD % due_range_ms if due_range_ms > 0 else 0)


def delay_id_of(number: int, due_ms: int) -> bytes:
    """The id that an add of order `number` would have been answered with."""
    uuid, second = uuid_of(number), due_ms // 1_000
    return (
        DelayId(second, ONCE, second + EXPIRE_AFTER_S, 0, 0, 0, shard_of(uuid, SHARDS), uuid).text().encode()
    )


def stamped(due_ms: float, body: int) -> bytes:
    """A body of so many bytes that begins with its due time (epoch seconds)."""
    head = MARK + STAMP.pack(due_ms / 1_000)
    return head + bytes(body - len(head))


def stamps(payload: bytes) -> list[float]:
    """Due times in an answer; epoch seconds."""
    dues = []
    at = payload.find(MARK)
    while at >= 0:
        dues.append(STAMP.unpack_from(payload, at + len(MARK))[0])
        at = payload.find(MARK, at + len(MARK) + STAMP.size)
    return dues


def record_of(number: int, topic: str, due_ms: int, body: int, now_ms: int) -> NewRecord:
    """The record that sendDelaySync makes of an add of type 2."""
    uuid, second = uuid_of(number), due_ms // 1_000
    shard = shard_of(uuid, SHARDS)
    order = DelayCommand(ADD, uuid, topic, ONCE, due_ms, second, second + EXPIRE_AFTER_S, 0, 0, shard)
    return NewRecord(
        DELAY_TOPIC, shard, number.to_bytes(16, "big"), now_ms,
        encode(b"", stamped(due_ms, body), b"tag", CHRONOS), system={COMMAND_PROPERTY: encode_command(order)},
    )  # fmt: skip


def append(
    backend: Backend, topic: str, first: int, count: int, body: int, due_ms: int, due_range_ms: int
) -> None:
    """Store them all, some batches under way at a time. Raises AssertionError when one was not stored."""
    clock, under_way = SystemClock(), deque[Completion[list[AppendResult]]]()
    for start in range(first, first + count, BATCH):
        now_ms = clock.wall_ms()
        batch = [
            record_of(number, topic, due_of(number, due_ms, due_range_ms), body, now_ms)
            for number in range(start, min(start + BATCH, first + count))
        ]
        under_way.append(backend.append(batch, clock.monotonic() + WAIT_S))
        if len(under_way) >= UNDER_WAY:
            _stored(under_way.popleft())
    while under_way:
        _stored(under_way.popleft())


def _stored(answer: Completion[list[AppendResult]]) -> None:
    for result in answer.wait(WAIT_S):
        if result.status is not AppendStatus.STORED:
            raise AssertionError(f"an order was not stored: {result}")


def add(
    data_dir: Path, topic: str, first: int, count: int, body: int, due_ms: int, due_range_ms: int = 0
) -> float:
    """The same in a process of its own; how many a second were stored in the inner topic."""
    numbers = (first, count, body, due_ms, due_range_ms)
    done = subprocess.run(
        [sys.executable, "-m", "bench.delay_orders", str(data_dir), topic, *map(str, numbers)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    directory, topic = Path(sys.argv[1]), sys.argv[2]
    first, count, body, due_ms, due_range_ms = map(int, sys.argv[3:])
    clock = SystemClock()
    backend = open_shared(directory, clock=clock, metrics=Registry())
    for name in (DELAY_TOPIC, topic):
        if backend.topic(name) is None:
            backend.put_topic(TopicInfo(name, 0, SHARDS), clock.monotonic() + WAIT_S).wait(WAIT_S)
    began = time.perf_counter()
    append(backend, topic, first, count, body, due_ms, due_range_ms)
    print(count / (time.perf_counter() - began))
    backend.close()


if __name__ == "__main__":
    main()
