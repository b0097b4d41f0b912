"""Streams of events: made while somebody watches, the same for all, and nobody waits for a slow viewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gevent import socket

from ddmq.server.http import connection as http_connection
from ddmq.server.http import streams
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.routing import AdminRouter
from ddmq.server.http.streams import BEGIN, HEARTBEAT, VIEWERS_MAX, EventFeed, encode_event
from ddmq_common.metrics.catalogue import EVENT_VIEWERS, EVENTS_SKIPPED
from ddmq_common.metrics.registry import Registry
from tests.support.waits import until

LAST = encode_event("end", b'{"reason":"over"}')


class Feed:
    """A server with one feed at /events, whose events are numbered and of `size` bytes."""

    def __init__(self) -> None:
        self.made, self.size, self.failing, self.metrics = 0, 10, False, Registry()
        self.feed = EventFeed(self.make_event, self.metrics)
        router = AdminRouter()
        router.add("GET", "/events", lambda _: self.feed.open())
        router.add("GET", "/x", lambda _: {"fine": True})
        self.server = AdminServer(("127.0.0.1", 0), router)
        self.server.start()

    def make_event(self) -> bytes:
        self.made += 1
        if self.failing:
            raise ZeroDivisionError("a defect")
        return encode_event("snapshot", b"x" * self.size, self.made)

    def watch(self, method: bytes = b"GET", path: bytes = b"/events") -> Any:
        connection = socket.create_connection(("127.0.0.1", self.server.server_port), 20)
        connection.sendall(b"%s %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % (method, path))
        return connection


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    monkeypatch.setattr(streams, "PERIOD_S", 0.01)
    started = Feed()
    yield started
    started.server.stop(timeout=0)


def read_until(connection: Any, end: bytes) -> bytes:
    """Everything up to and with `end`."""
    received_bytes = b""
    while end not in received_bytes:
        more = connection.recv(1 << 16)
        assert more, received_bytes[-500:]
        received_bytes += more
    return received_bytes


def read_rest(connection: Any) -> bytes:
    received_bytes = b""
    try:
        while more := connection.recv(1 << 16):
            received_bytes += more
    except ConnectionResetError:
        pass
    return received_bytes


def test_all_viewers_get_the_same_bytes(feed: Feed) -> None:
    viewers = [feed.watch() for _ in range(2)]
    heads = [read_until(each, b"id: 9\n") for each in viewers]
    for head in heads:
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        assert b"Content-Length" not in head
        assert b"Transfer-Encoding" not in head
        assert BEGIN in head
    feed.feed.end("over", LAST)
    bodies = [
        (head + read_rest(each)).partition(b"id: 5\n")[2] for head, each in zip(heads, viewers, strict=True)
    ]
    assert bodies[0] == bodies[1]
    assert bodies[0].endswith(LAST)
    assert encode_event("snapshot", b"x" * 10, 6) in bodies[0]


def test_events_are_made_only_while_somebody_watches(feed: Feed) -> None:
    with feed.watch(path=b"/x") as other:
        read_until(other, b"fine")
    assert feed.made == 0
    with feed.watch() as viewer:
        read_until(viewer, b"id: 3\n")
    until(lambda: not feed.feed.viewers)
    until(lambda: feed.feed._producer is None)  # noqa: SLF001
    made = feed.made
    with feed.watch() as viewer:
        assert b"id: %d\n" % (made + 1) in read_until(viewer, b"snapshot")


def test_a_viewer_that_never_reads_skips_events_and_holds_up_nobody(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed.size = 64 << 10
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", feed.server.server_port))
    slow.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    until(lambda: feed.feed.viewers)
    (slow_viewer,) = feed.feed.viewers
    until(lambda: feed.metrics.cell(EVENTS_SKIPPED).value > 3)
    assert feed.metrics.cell(EVENT_VIEWERS).value == 1
    with feed.watch() as quick:
        assert read_until(quick, b"id: %d\n" % (feed.made + 5)).count(b"event: snapshot") >= 5
    rest = slow_viewer._rest  # noqa: SLF001
    assert rest is not None
    assert len(rest) < feed.size + 100, "one event at most is held for it"
    monkeypatch.setattr(streams, "STALLED_S", 0.05)
    slow.close()
    until(lambda: not feed.feed.viewers)


def test_a_viewer_that_takes_nothing_is_disconnected(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STALLED_S", 0.05)
    feed.size = 8 << 20
    with feed.watch():
        until(lambda: feed.made >= 1)
        until(lambda: not feed.feed.viewers)


def test_one_viewer_more_than_the_limit_is_told_so(feed: Feed) -> None:
    viewers = [feed.watch() for _ in range(VIEWERS_MAX)]
    until(lambda: len(feed.feed.viewers) == VIEWERS_MAX)
    with feed.watch() as refused:
        answer = read_until(refused, b"}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"128 viewers are watching" in answer
    viewers.pop().close()
    until(lambda: len(feed.feed.viewers) < VIEWERS_MAX)
    with feed.watch() as admitted:
        read_until(admitted, b"snapshot")
    for each in viewers:
        each.close()


def test_open_pages_do_not_keep_commands_out(feed: Feed) -> None:
    """Viewers are beyond the limits of their address, and their work is not charged to it."""
    viewers = [feed.watch() for _ in range(http_connection.CONNECTIONS_MAX + 10)]
    for each in viewers:
        read_until(each, b"snapshot")
    feed.feed.account.charge(3_600.0)
    with feed.watch(path=b"/x") as command:
        assert read_until(command, b"}").startswith(b"HTTP/1.1 200")
    assert len(feed.server.connections) <= 1
    for each in viewers:
        each.close()


def test_the_end_is_an_event(feed: Feed) -> None:
    with feed.watch() as viewer:
        read_until(viewer, b"snapshot")
        feed.feed.end("the server is stopping", LAST)
        assert read_rest(viewer).endswith(LAST)
    with feed.watch() as late:
        answer = read_until(late, b"}")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is stopping" in answer


def test_the_end_does_not_wait_for_a_slow_viewer(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "END_S", 0.05)
    feed.size = 8 << 20
    with feed.watch():
        until(lambda: feed.made > 2)
        feed.feed.end("over", LAST)
        until(lambda: not feed.feed.viewers)


def test_nothing_to_send_is_a_heartbeat(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "HEARTBEAT_S", 0.05)
    feed.failing = True
    with feed.watch() as viewer:
        assert read_until(viewer, HEARTBEAT * 2).endswith(BEGIN + HEARTBEAT * 2)
        feed.failing = False
        read_until(viewer, b"snapshot")


def test_head_is_answered_without_a_stream(feed: Feed) -> None:
    with feed.watch(b"HEAD") as connection:
        answer = read_rest(connection)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert not feed.feed.viewers
    assert feed.made == 0
