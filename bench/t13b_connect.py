"""T13b: old Python and PHP clients: connect, one durable sendSync, close, 64 at a time.

Floor: connect, echo the same bytes, close, with a server that knows neither Thrift nor a log.
"""

from __future__ import annotations

import select
import socket
import time

from bench import frames
from bench.harness import CLIENT_CORE, Series, pin, run
from bench.servers import Target, ddmq, start

TOGETHER = 64
CALLS = 12_000
BODY = 128


def measure(address: Target) -> dict[str, float]:
    """Messages a second, each on a connection of its own."""
    request = frames.send_sync(b"connect", b"k", bytes(BODY), 7)
    poll = select.epoll()
    open_ones: dict[int, socket.socket] = {}
    started = answered = 0
    began = time.perf_counter()
    while answered < CALLS:
        while len(open_ones) < TOGETHER and started < CALLS:
            one = socket.create_connection(address, timeout=10)
            one.send(request)
            poll.register(one, select.EPOLLIN)
            open_ones[one.fileno()] = one
            started += 1
        for fd, _ in poll.poll(10):
            one = open_ones.pop(fd)
            if len(one.recv(4096)) < 20:
                raise AssertionError("no answer")
            poll.unregister(fd)
            one.close()
            answered += 1
    poll.close()
    return {"per_s": CALLS / (time.perf_counter() - began)}


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as ours:
        echo = start(["bench.echo_server"])
        try:
            every = [
                Series("connect-echo-close", lambda: measure(echo.addresses["echo"])),
                Series(
                    "connect-send-close", lambda: measure(ours.addresses["producer"]), "connect-echo-close"
                ),
            ]
            run("t13b_connect", __doc__ or "", every, together=TOGETHER, calls=CALLS, body=BODY)
        finally:
            echo.stop()


if __name__ == "__main__":
    main()
