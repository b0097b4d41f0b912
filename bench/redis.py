"""Redis Streams with fsync always, as a peer of T1: the same load generator, connections and bodies."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import load
from bench.harness import SERVER_CORE
from bench.servers import Running, scratch

CONNECTIONS = 64
START_S = 10.0


def installed() -> bool:
    """Whether redis-server is on the path (Debian: apt-get install redis-server)."""
    return shutil.which("redis-server") is not None


@contextmanager
def server() -> Iterator[Running]:
    """A redis-server on a free port with an append-only file on the measured disk, gone afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="redis-", dir=scratch()) as folder:
        settings = ["--port", str(port), "--dir", folder, "--save", "", "--appendonly", "yes"]
        process = subprocess.Popen(
            ["redis-server", *settings, "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0"],
            stdout=(Path(folder) / "redis.log").open("a"),
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
        )
        running = Running(process, {"redis": ("127.0.0.1", port)})
        try:
            _await(running)
            yield running
        finally:
            running.stop()


def _await(running: Running) -> None:
    give_up = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(running.addresses["redis"], timeout=1).close()
            return
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def xadd(key: bytes, body: bytes) -> bytes:
    """XADD bench * k KEY b BODY."""
    parts = [b"XADD", b"bench", b"*", b"k", key, b"b", body]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def bulk(data: bytes) -> bytes | None:
    """The stream id that answers, None while it is not whole. Raises AssertionError for an error answer."""
    if not data.startswith(b"$"):
        raise AssertionError(f"redis answered {data[:80]!r}")
    return data if data.count(b"\r\n") == 2 else None


def measure(running: Running, body_bytes: int, calls: int) -> dict[str, float]:
    """One round of T1's load."""
    connections = load.connect(running.addresses["redis"], CONNECTIONS)
    requests = [xadd(b"key-%d" % index, bytes(body_bytes)) for index in range(CONNECTIONS)]
    return load.driven(connections, load.answered_ok(requests, calls, bool), calls, running.cpu_us, bulk)
