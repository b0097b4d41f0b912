"""T1: sendSync, one message a call, fsync before the answer, 64 connections, server on one core.

Floor: the same RPC server answering the same frames without doing anything.
"""

from __future__ import annotations

import time

from bench import frames, load
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run
from bench.servers import Running, Target, ddmq, start

CONNECTIONS = 64
CALLS = 60_000
BODIES = (1024, 128)


def measure(address: Target, body_bytes: int, calls: int = CALLS) -> dict[str, float]:
    """One round; raises when an answer is not code 0."""
    connections = load.connect(address, CONNECTIONS)
    requests = [
        frames.send_sync(b"bench", b"key-%d" % index, bytes(body_bytes), index)
        for index in range(CONNECTIONS)
    ]
    left = calls

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal left
        if reply is not None and not frames.reply_ok(reply):
            raise AssertionError(f"not stored: {reply!r}")
        left -= 1
        return requests[index] if left >= 0 else None

    began = time.perf_counter()
    latencies = load.closed_loop(connections, next_frame)
    seconds = time.perf_counter() - began
    for one in connections:
        one.close()
    if len(latencies) != calls:
        raise AssertionError(f"{len(latencies)} answers to {calls} calls")
    return {"per_s": calls / seconds} | percentiles(latencies)


def series(ours: Running, noop: Running, body_bytes: int) -> list[Series]:
    floor = f"noop-{body_bytes}"
    return [
        Series(floor, lambda: measure(noop.addresses["producer"], body_bytes)),
        Series(f"sendSync-{body_bytes}", lambda: measure(ours.addresses["producer"], body_bytes), floor),
    ]


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as ours:
        noop = start(["bench.noop_server"])
        try:
            measure(ours.addresses["producer"], 128, 2_000)
            every = [one for body in BODIES for one in series(ours, noop, body)]
            run("t01_send_sync", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS)
        finally:
            noop.stop()


if __name__ == "__main__":
    main()
