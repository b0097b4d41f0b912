"""T12: start to ready: an empty directory; a log of 10 GB after kill -9."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench import load
from bench.harness import CLIENT_CORE, Series, pin, run
from bench.servers import scratch, start_ddmq
from bench.t02_batch import BATCH, BODY, batch

LOG_BYTES = 10 << 30
CONNECTIONS = 8


def empty() -> dict[str, float]:
    """Seconds from starting the process to its ready line, over a directory that does not exist yet."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        began = time.perf_counter()
        server = start_ddmq(Path(folder) / "data", {0, 1})
        seconds = time.perf_counter() - began
        server.stop()
    return {"ready_s": seconds}


def fill(data: Path) -> None:
    """Write LOG_BYTES of messages, then kill -9 under load."""
    server = start_ddmq(data, {0, 1})
    connections = load.connect(server.addresses["producer"], CONNECTIONS)
    request, left = batch(0), LOG_BYTES // (BATCH * (BODY + 130))

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal left
        left -= 1
        if left == 0:
            server.kill()
        return request if left > 0 else None

    try:
        load.closed_loop(connections, next_frame)
    except ConnectionError:
        pass
    server.kill()


def reopened(data: Path) -> dict[str, float]:
    """Seconds to ready over the filled directory; killed again, never closed cleanly."""
    began = time.perf_counter()
    server = start_ddmq(data, {0, 1})
    seconds = time.perf_counter() - began
    server.kill()
    return {"ready_s": seconds}


def main() -> None:
    pin(CLIENT_CORE)
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        data = Path(folder) / "data"
        fill(data)
        size = sum(path.stat().st_blocks * 512 for path in (data / "commitlog").rglob("*"))
        every = [Series("empty", empty), Series("10 GB after kill -9", lambda: reopened(data))]
        run("t12_start", __doc__ or "", every, log_bytes=size)


if __name__ == "__main__":
    main()
