"""T13b: old Python and PHP clients: connect, one durable sendSync, close, 64 at a time.

Floor: connect, echo the same bytes, close, with a server that knows neither Thrift nor a log.
"""

from __future__ import annotations

import select
import socket
import time

from bench import frames, groups
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, Target, ddmq, start

TOGETHER = 64
CALLS = sized(12_000, 400)
BODY = 128
TOPIC = b"connect"


def exchange(address: Target, request: bytes, *, echo: bool) -> int:
    """CALLS times: connect, send, await the answer, close; TOGETHER at once."""
    poll = select.epoll()
    open_ones: dict[int, socket.socket] = {}
    started = answered = 0
    while answered < CALLS:
        while len(open_ones) < TOGETHER and started < CALLS:
            one = socket.create_connection(address, timeout=10)
            one.send(request)
            poll.register(one, select.EPOLLIN)
            open_ones[one.fileno()] = one
            started += 1
        for fd, _ in poll.poll(10):
            one = open_ones.pop(fd)
            reply = one.recv(4096)
            if reply != request if echo else not frames.reply_ok(reply[4:]):
                raise AssertionError(f"wrong answer: {reply!r}")
            poll.unregister(fd)
            one.close()
            answered += 1
    poll.close()
    return answered


def measure(server: Running, service: str) -> dict[str, float]:
    """One round: messages a second, each on a connection of its own."""
    request = frames.send_sync(TOPIC, b"k", bytes(BODY), 7)
    began = time.perf_counter()
    cost_us = server.cpu_us(lambda: exchange(server.addresses[service], request, echo=service == "echo"))
    return {"per_s": CALLS / (time.perf_counter() - began), "cpu_us": cost_us}


def measure_stored(server: Running) -> dict[str, float]:
    """Measure one round, and check that every message is stored."""
    before = groups.stored(server, TOPIC)
    figures = measure(server, "producer")
    after = groups.stored(server, TOPIC)
    if after - before != CALLS:
        raise AssertionError(f"{CALLS} answered OK, {after - before} stored")
    return figures


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server, start(["bench.echo_server"]) as echo:
        groups.send_once(server, TOPIC)
        floor = Series("connect-echo-close", lambda: measure(echo, "echo"))
        sends = Series("connect-send-close", lambda: measure_stored(server), floor.name, "≥ 0.4 of the floor")
        run("t13b_connect", __doc__ or "", [floor, sends], together=TOGETHER, calls=CALLS, body=BODY)


if __name__ == "__main__":
    main()
