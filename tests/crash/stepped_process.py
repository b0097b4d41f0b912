"""A real server process whose wall clock is set from outside, for clock_steps.py.

`python -m tests.crash.stepped_process CLOCK COMMAND …` is `ddmq COMMAND …` with a clock of its own: the
machine's, and as many milliseconds more as stand in the file CLOCK (8 bytes, little-endian, signed). Whoever
writes there steps it, in all processes at once, as NTP or an operator does.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from ddmq.cli.root import run as ddmq
from ddmq.server.config import Configuration
from ddmq.server.process import server_process

_OFFSET = struct.Struct("<q")


class SteppedClock:
    """See the module's text."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self, path: Path) -> None:
        """Makes the file when it is missing."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(fd, _OFFSET.size)
            self._map = mmap.mmap(fd, _OFFSET.size)
        finally:
            os.close(fd)

    @property
    def offset_ms(self) -> int:
        """How far it is ahead of the machine's."""
        offset: int = _OFFSET.unpack(self._map)[0]
        return offset

    def step(self, offset_ms: int) -> None:
        """Put it so far ahead of the machine's."""
        self._map[:] = _OFFSET.pack(offset_ms)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


def main() -> None:
    clock = SteppedClock(Path(sys.argv[1]))

    class Stepped(server_process.ServerProcess):
        """With that clock."""

        def __init__(self, config: Configuration, names: Iterable[str]) -> None:
            super().__init__(config, names, clock)

    server_process.ServerProcess = Stepped  # type: ignore[misc]  # the command makes it by this name
    sys.exit(ddmq(sys.argv[2:]))


if __name__ == "__main__":
    main()
