"""A part of `ddmq serve --processes` does not outlive the process that started it.

That one holds the other end of the part's standard input: it ends however its holder ends, kill -9 too.
Else the parts of one that was killed would keep the ports, and it could not be started again. What it writes
there are lines, for `hear`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

import gevent
from gevent.socket import wait_read

STDIN = 0
log = logging.getLogger("ddmq.server")


def when_parent_ends(stop: Callable[[], None], hear: Callable[[str], None], descriptor: int = STDIN) -> None:
    """Call `hear` with each line that `descriptor` reads, and `stop` once, when that has come to its end."""

    def follow() -> None:
        text = b""
        while more := _more(descriptor):
            *lines, text = (text + more).split(b"\n")
            for line in lines:
                hear(line.decode())
        log.warning("the process that started this one has ended")
        stop()

    gevent.spawn(follow)


def _more(descriptor: int) -> bytes:
    wait_read(descriptor)
    return os.read(descriptor, 4096)
