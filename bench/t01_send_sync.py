"""T1: sendSync, one message a call, fsync before the answer, 64 connections, server on one core.

Floor: the same RPC server answering the same frames without doing anything. Where redis-server is installed,
Redis Streams with `appendfsync always` take the same load in the same run, on the same core.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.peers.queues_of_others import RedisStreams
from bench.peers.system import started
from bench.servers import Running, ddmq, start

CONNECTIONS = 64
CALLS = sized(60_000, 1_000)
BODIES = (1024, 128)
REACH = {1024: "≥ 45,000/s, p99 ≤ 3 ms, ≥ 0.65 of the floor", 128: ""}


def measure(server: Running, body_bytes: int, calls: int = CALLS) -> dict[str, float]:
    """One round; raises when an answer is not code 0."""
    requests = [
        frames.send_sync(b"bench", b"key-%d" % index, bytes(body_bytes), index)
        for index in range(CONNECTIONS)
    ]
    return driven(server, load.answered_ok(requests, calls), calls)


def driven(server: Running, requests: load.Next, calls: int) -> dict[str, float]:
    """So many calls over CONNECTIONS."""
    connections = load.connect(server.addresses["producer"], CONNECTIONS)
    return load.driven(connections, requests, calls, server.cpu_us)


def measure_stored(server: Running, body_bytes: int) -> dict[str, float]:
    """Measure one round, and check that every message is stored."""
    before = groups.stored(server, b"bench")
    figures = measure(server, body_bytes)
    after = groups.stored(server, b"bench")
    if after - before != CALLS:
        raise AssertionError(f"{CALLS} answered OK, {after - before} stored")
    return figures


def series(server: Running, noop: Running, body_bytes: int) -> list[Series]:
    floor = f"no-op, {body_bytes} B"
    return [
        Series(floor, lambda: measure(noop, body_bytes)),
        Series(
            f"sendSync, {body_bytes} B", lambda: measure_stored(server, body_bytes), floor, REACH[body_bytes]
        ),
    ]


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        server = stack.enter_context(ddmq())
        noop = stack.enter_context(start(["bench.noop_server"]))
        measure(server, 128, sized(2_000, 200))
        every = [one for body in BODIES for one in series(server, noop, body)]
        for peer in stack.enter_context(started([RedisStreams])):
            name = "Redis XADD, fsync always, 1024 B"
            every.append(Series(name, partial(peer.sends, CONNECTIONS, 1, CALLS)))
        run("t01_send_sync", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS)


if __name__ == "__main__":
    main()
