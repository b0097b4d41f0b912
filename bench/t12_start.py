"""T12: start to ready: an empty directory; a log of 10 GB after kill -9 under load.

The log is in the page cache as far as the machine's memory goes, as after the crash of a process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, CORES, Series, pin, run, sized
from bench.servers import Running, roomy_scratch, scratch, start_ddmq
from bench.t02_batch import BATCH, BODY, batch

LOG_BYTES = sized(10 << 30, 20 << 20)
MORE_BYTES = sized(64 << 20, 2 << 20)  # written before each further kill
CONNECTIONS = 8
RECORD_BYTES = BODY + 140
REACH = {"empty": "≤ 1 s", "after kill -9": "≤ 10 s"}


class Killed:
    """Load on one directory, ended by kill -9 while batches are under way; counts across starts."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.sent = self.acknowledged = 0  # messages

    def load(self, log_bytes: int) -> None:
        """Start a server, write, kill it in the middle."""
        server = start_ddmq(self.data, CORES)
        connections = load.connect(server.addresses["producer"], CONNECTIONS)
        request, message_limit = batch(0), self.acknowledged + log_bytes // RECORD_BYTES

        def next_frame(_: int, reply: bytes | None) -> bytes | None:
            if reply is not None:
                if not frames.reply_ok(reply):
                    raise AssertionError(f"not stored: {reply!r}")
                self.acknowledged += BATCH
            if self.acknowledged >= message_limit:
                server.kill()
            self.sent += BATCH
            return request

        try:
            load.closed_loop(connections, next_frame)
        except ConnectionError:
            pass
        finally:
            server.kill()
            for one in connections:
                one.close()

    def reopened(self) -> dict[str, float]:
        """Write some more and kill again; seconds to ready after that. Nothing acknowledged is missing."""
        self.load(MORE_BYTES)
        began = time.perf_counter()
        server = start_ddmq(self.data, CORES)
        seconds = time.perf_counter() - began
        try:
            self._check(server)
        finally:
            server.kill()
        return {"ready_s": seconds}

    def _check(self, server: Running) -> None:
        stored = groups.stored(server, b"batch")
        if not self.acknowledged <= stored <= self.sent:
            raise AssertionError(f"{self.acknowledged} acknowledged of {self.sent} sent, {stored} stored")
        self.acknowledged = stored  # what nobody was told about counts from now on


def empty() -> dict[str, float]:
    """Seconds from starting the process to its ready line, over a directory that does not exist yet."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        began = time.perf_counter()
        server = start_ddmq(Path(folder) / "data", CORES)
        seconds = time.perf_counter() - began
        server.stop()
    return {"ready_s": seconds}


def main() -> None:
    pin(CLIENT_CORE)
    with roomy_scratch(LOG_BYTES) as folder:
        log = Killed(folder / "data")
        log.load(LOG_BYTES)
        size = sum(path.stat().st_blocks * 512 for path in (log.data / "commitlog").rglob("*"))
        name = f"{size / (1 << 30):.3g} GiB after kill -9"
        every = [
            Series("empty", empty, reach=REACH["empty"]),
            Series(name, log.reopened, reach=REACH["after kill -9"]),
        ]
        run("t12_start", __doc__ or "", every, log_bytes=size)


if __name__ == "__main__":
    main()
