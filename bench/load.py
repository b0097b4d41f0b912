"""A closed-loop load generator: many connections, one call under way on each, raw sockets and epoll."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable

from bench import frames
from bench.harness import percentiles

Next = Callable[[int, bytes | None], bytes | None]
PayloadReader = Callable[[bytes], bytes | None]


def connect(address: tuple[str, int], count: int, tls: ssl.SSLContext | None = None) -> list[socket.socket]:
    """That many connections, with TLS if there is a context."""
    connections = []
    for _ in range(count):
        one = socket.create_connection(address, timeout=10)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            one = tls.wrap_socket(one, server_hostname="localhost")
        one.setblocking(False)
        connections.append(one)
    return connections


def answered_ok(requests: list[bytes], calls: int, good: Callable[[bytes], bool] = frames.reply_ok) -> Next:
    """For closed_loop: each connection sends its request again until all made `calls`; all are good."""
    remaining = calls

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal remaining
        if reply is not None and not good(reply):
            raise AssertionError(f"not stored: {reply!r}")
        remaining -= 1
        return requests[index] if remaining >= 0 else None

    return next_frame


def thrift_payload(data: bytes) -> bytes | None:
    """Return the payload of a framed answer, or None while it is incomplete."""
    if len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        return None
    return data[4:]


def closed_loop(
    connections: list[socket.socket], next_frame: Next, read_payload: PayloadReader = thrift_payload
) -> list[float]:
    """Call `next_frame(connection index, last reply's payload)` for each call; None ends that connection.

    `read_payload` returns the payload of the bytes received so far, or None while they are incomplete.
    Returns every call's latency in seconds. A connection that is closed by the server raises.
    """
    poll = select.epoll()
    by_fd = {one.fileno(): index for index, one in enumerate(connections)}
    started = [0.0] * len(connections)
    partial: dict[int, bytearray] = {}
    latencies: list[float] = []
    open_count = 0
    clock = time.perf_counter
    for index, one in enumerate(connections):
        poll.register(one, select.EPOLLIN)
        request = next_frame(index, None)
        if request is not None:
            open_count += 1
            started[index] = clock()
            _send(one, request)
    while open_count:
        for fd, _ in poll.poll(10):
            index = by_fd[fd]
            one = connections[index]
            payload = _receive(one, partial, index, read_payload)
            if payload is None:
                continue
            latencies.append(clock() - started[index])
            request = next_frame(index, payload)
            if request is None:
                open_count -= 1
            else:
                started[index] = clock()
                _send(one, request)
    poll.close()
    return latencies


def driven(
    connections: list[socket.socket],
    next_frame: Next,
    calls: int,
    cpu_us: Callable[[Callable[[], int]], float],
    read_payload: PayloadReader = thrift_payload,
) -> dict[str, float]:
    """closed_loop's figures, with the server's `cpu_us`; raises unless all `calls` are answered."""
    latencies: list[float] = []

    def act() -> int:
        latencies.extend(closed_loop(connections, next_frame, read_payload))
        return calls

    began = time.perf_counter()
    cost_us = cpu_us(act)
    seconds = time.perf_counter() - began
    for one in connections:
        one.close()
    if len(latencies) != calls:
        raise AssertionError(f"{len(latencies)} answers to {calls} calls")
    return {"per_s": calls / seconds} | percentiles(latencies) | {"cpu_us": cost_us}


def _receive(
    one: socket.socket, partial: dict[int, bytearray], index: int, read_payload: PayloadReader
) -> bytes | None:
    try:
        data = one.recv(1 << 18)
    except ssl.SSLWantReadError:  # a session ticket
        return None
    if not data:
        raise ConnectionError("the server closed a connection under load")
    gathered = partial.get(index)
    if gathered is not None:
        gathered += data
        data = bytes(gathered)
    payload = read_payload(data)
    if payload is None:
        partial[index] = bytearray(data)
    elif gathered is not None:
        del partial[index]
    return payload


def _send(one: socket.socket, request: bytes) -> None:
    sent = one.send(request)
    while sent < len(request):
        select.select([], [one], [], 10)
        sent += one.send(request[sent:])
