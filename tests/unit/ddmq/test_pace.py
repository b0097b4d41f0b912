"""What asks the admin API for much is answered slowly, piece by piece, and at nobody else's cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gevent
import pytest
from gevent import socket

from backend.memory import MemoryBackend
from ddmq.server.admin import topics
from ddmq.server.http import connection as http_connection
from ddmq.server.http import pace
from ddmq.server.http.connection import AdminServer
from ddmq.server.http.pace import DEBT_S, SHARE_S, Account, Accounts, PacedGreenlet, paced, yield_if_long
from ddmq.server.http.routing import AdminRouter, Text
from ddmq_common.clock import ManualClock
from ddmq_common.errors import TryLaterError
from tests.support.waits import until


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sleeping takes no time, but moves this clock."""
    moved: list[float] = []
    monkeypatch.setattr(pace.gevent, "sleep", moved.append)
    return moved


def test_who_owes_too_much_waits_until_a_share_of_the_time_has_paid_it(slept: list[float]) -> None:
    account = Account(clock=lambda: sum(slept))
    account.charge(DEBT_S)
    account.pause()
    assert not slept
    account.charge(0.04)
    account.pause()
    assert sum(slept) == pytest.approx(0.04 / SHARE_S)
    slept.append(60.0)
    assert account.debt_s == 0.0


def test_an_answer_owes_its_processor_time_and_not_what_it_waits() -> None:
    account = Account(clock=lambda: 0.0)

    def answer() -> None:
        burn(0.01)
        gevent.sleep(0.03)
        burn(0.01)

    greenlet = PacedGreenlet(answer)
    greenlet.account = account
    greenlet.start()
    greenlet.join(30)
    assert 0.02 <= account.debt_s < 0.045


def test_a_long_answer_gives_way_after_every_slice() -> None:
    progress: list[int] = []
    at: list[int] = []

    def others() -> None:
        while not greenlet.ready():
            progress.append(len(at))
            gevent.sleep(0)

    def answer() -> None:
        for number in paced(range(20)):
            at.append(number)
            burn(0.002)

    greenlet = PacedGreenlet(answer)
    greenlet.account = Account()
    greenlet.start()
    gevent.spawn(others).join(30)
    assert set(range(1, 20)) <= set(progress)


def test_a_listing_of_topics_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLICE_S", 0.0)
    gave_way: list[float] = []
    clock = ManualClock()
    backend = MemoryBackend(clock)
    for number in range(3 * topics.TOPICS_AT_ONCE):
        topics.create(backend, clock, f"t{number}", {"queues": 2})
    monkeypatch.setattr(pace.gevent, "sleep", gave_way.append)
    greenlet = PacedGreenlet(lambda: topics.list_topics(backend, internal=False))
    greenlet.account = Account()
    greenlet.start()
    greenlet.join(30)
    assert [row["queues"] for row in greenlet.value] == [2] * 3 * topics.TOPICS_AT_ONCE
    assert len(gave_way) == 3


def test_outside_of_a_request_nothing_is_owed(slept: list[float]) -> None:
    burn(0.002)
    yield_if_long(1.0)
    assert not slept


def test_whose_turn_does_not_come_is_told_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LISTING_WAIT_S", 0.001)
    account = Account()
    with account.listing_slot(), pytest.raises(TryLaterError, match="try again"), account.listing_slot():
        pass
    with account.listing_slot():
        pass


def test_a_network_of_ipv6_is_one_client() -> None:
    accounts = Accounts()
    with accounts.connected("2001:db8::1") as one, accounts.connected("2001:db8::ffff:2") as same:
        assert one is same
        assert one.connections == 2
        with accounts.connected("2001:db8:0:1::1") as other, accounts.connected("::ffff:10.0.0.1") as mapped:
            assert len({id(one), id(other), id(mapped)}) == 3
            with accounts.connected("10.0.0.1") as same:
                assert same is mapped
        other.charge(1.0)
    with accounts.connected("10.0.0.2"):
        assert len(accounts) == 2, "who has gone is forgotten, unless it owes"


@pytest.fixture
def server() -> Iterator[Any]:
    router = AdminRouter()
    started = AdminServer(("127.0.0.1", 0), router)
    started.start()
    yield started
    started.stop(timeout=0)


def send_request(server: AdminServer, path: str, own: str = "127.0.0.1", *, read: bool = True) -> Any:
    """The whole answer, or the connection."""
    connection = socket.create_connection(("127.0.0.1", server.server_port), 20, source_address=(own, 0))
    connection.sendall(b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
    if not read:
        return connection
    with connection, connection.makefile("rb") as answer:
        return answer.read()


def test_listings_of_one_address_are_made_one_after_another(server: AdminServer) -> None:
    now, most = [0], [0]

    def listing(_: Any) -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        gevent.sleep(0.005)
        now[0] -= 1
        return {"fine": True}

    server.application.add("GET", "/listing", listing)
    server.application.add("GET", "/ready", lambda _: {"during": now[0]})
    requests = [gevent.spawn(send_request, server, "/listing") for _ in range(8)]
    until(lambda: now[0])
    assert b'"during":1' in send_request(server, "/ready")
    gevent.joinall(requests, timeout=30)
    assert all(each.value.startswith(b"HTTP/1.1 200") for each in requests)
    assert most == [1]


def test_one_address_has_not_all_connections(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "ADDRESS_CONNECTIONS_MAX", 2)
    end = gevent.event.Event()
    server.application.add("GET", "/slow", lambda _: end.wait(30) and {})
    server.application.add("GET", "/ready", lambda _: {})
    connections = [send_request(server, "/slow", read=False) for _ in range(2)]
    until(lambda: len(server.connections) >= 2)
    with socket.create_connection(("127.0.0.1", server.server_port), 20) as third:
        assert third.recv(100).startswith(b"HTTP/1.1 503")
    assert send_request(server, "/ready", "127.0.0.2").startswith(b"HTTP/1.1 200")
    end.set()
    for connection in connections:
        connection.close()


def test_answers_that_nobody_takes_are_bounded(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 16 << 20
    monkeypatch.setattr(http_connection, "UNSENT_BYTES_MAX", size + 100)
    server.application.add("GET", "/long", lambda _: Text("text/plain", b"x" * size))
    untaken = send_request(server, "/long", read=False)
    until(lambda: server.unsent >= size)
    assert send_request(server, "/long").startswith(b"HTTP/1.1 503")
    untaken.close()
    until(lambda: not server.unsent)
    assert len(send_request(server, "/long")) > size
