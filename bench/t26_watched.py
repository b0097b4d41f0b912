"""T26: what viewers of GET /events cost: processor time of a server at rest, and the latency of T1's load.

Each viewer is a connection of its own, read by one process on the clients' core. The floor of each series is
the same server without viewers. "1,000 groups": each with a subscription to a topic of its own, so that
finding the groups that are furthest behind takes time.
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from bench import groups, t01_send_sync
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq

VIEWERS = (0, 1, 10, 100)
GROUPS = sized(1_000, 10)
REST_S = sized(20.0, 2.5)
CALLS = sized(300_000, 1_000)  # several seconds, so that several snapshots are made meanwhile
BODY = 1024
REACH_REST = {100: "≤ 2 % of a core"}
REACH_LOAD = {100: "p99 ≤ 1.05 × that without viewers"}
WATCH = "--watch"


def watch(host: str, port: int, count: int) -> None:
    """Watch with so many connections until standard input ends. Print a line when each has received an event,
    and at the end the number of events received since then."""
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            viewer = socket.create_connection((host, port))
            viewer.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            selector.register(viewer, selectors.EVENT_READ)
        silent = {key.fileobj for key in selector.get_map().values()}
        selector.register(sys.stdin, selectors.EVENT_READ)
        events = 0
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    print(events, flush=True)
                    return
                assert isinstance(key.fileobj, socket.socket)
                events += (received := key.fileobj.recv(1 << 20).count(b"event: snapshot"))
                if received and key.fileobj in silent:
                    silent.discard(key.fileobj)
                    if not silent:
                        print("watching", flush=True)
                        events = 0


@contextmanager
def watched(server: Running, viewers: int) -> Iterator[None]:
    """Watch a server with so many viewers. Raises AssertionError if events were skipped."""
    host, port = server.addresses["admin"]
    command = [sys.executable, "-m", "bench.t26_watched", WATCH, host, str(port), str(viewers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if viewers and process.stdout.readline() != "watching\n":
            raise AssertionError(f"not all of {viewers} viewers received an event")
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        events = int(process.communicate("")[0])
    if not viewers * (seconds - 3) <= events <= viewers * (seconds + 2):
        raise AssertionError(f"{viewers} viewers got {events} events in {seconds:.1f} s")


def rest(server: Running, viewers: int) -> dict[str, float]:
    """Measure a server at rest."""
    with watched(server, viewers):
        before, began = server.cpu_seconds(), time.monotonic()
        time.sleep(REST_S)
        percent = (server.cpu_seconds() - before) / (time.monotonic() - began) * 100
    return {"cpu_percent": percent}


def send(server: Running, viewers: int) -> dict[str, float]:
    """Measure T1's load, p99 first."""
    with watched(server, viewers):
        figures = t01_send_sync.measure(server, BODY, CALLS)
    return {"p99_ms": figures.pop("p99_ms")} | figures


def series(server: Running, crowded: Running) -> list[Series]:
    loads = (
        ("at rest", partial(rest, server), REACH_REST),
        (f"at rest, {GROUPS:,} groups", partial(rest, crowded), REACH_REST),
        ("sendSync", partial(send, server), REACH_LOAD),
        (f"sendSync, {GROUPS:,} groups", partial(send, crowded), REACH_LOAD),
    )
    return [
        Series(
            f"{what}, {viewers} viewers",
            partial(measure, viewers),
            f"{what}, 0 viewers" if viewers else None,
            reach.get(viewers, ""),
        )
        for what, measure, reach in loads
        for viewers in VIEWERS
    ]


def crowd(server: Running) -> None:
    """Create GROUPS topics with one message, each with a group that consumes nothing."""
    for number in range(GROUPS):
        topic = b"crowd-%d" % number
        groups.admin(server, "POST", f"/topics/{topic.decode()}", {"queues": 1})
        groups.send_once(server, topic)
        groups.subscribe(server, topic, b"group-%d" % number)


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        server, crowded = (stack.enter_context(ddmq()) for _ in range(2))
        for each in (server, crowded):
            t01_send_sync.measure(each, 128, sized(2_000, 200))
        crowd(crowded)
        run("t26_watched", __doc__ or "", series(server, crowded), calls=CALLS, groups=GROUPS, rest_s=REST_S)


if __name__ == "__main__":
    if sys.argv[1:2] == [WATCH]:
        watch(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
