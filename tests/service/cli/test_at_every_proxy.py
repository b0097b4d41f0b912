"""What is changed at one proxy holds at another over the same log: settings, offsets, parked keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Consumer, Producer
from tests.scenarios.real_server import RealServer, running
from tests.support.installations import Installation
from tests.support.waits import until


@pytest.fixture
def pair(installation: Installation, tmp_path: Path) -> Iterator[tuple[RealServer, RealServer]]:
    """A server with everything, and a consumer proxy of its own beside it."""
    with running(tmp_path, installation=installation) as server:
        other = RealServer(tmp_path, command="consumer", installation=installation)
        try:
            yield server, other.start()
        finally:
            other.end()


def one(server: RealServer) -> dict[str, Any]:
    return dict(server.admin("GET", "groups", "g")["subscriptions"][0])


def test_changes_at_one_proxy_hold_at_the_other(pair: tuple[RealServer, RealServer]) -> None:
    server, other = pair
    server.admin("POST", "topics", "t", body={"queues": 1})
    server.admin("POST", "groups", "g", "topics", "t", body={"start": "first", "order_key": "KEY"})
    until(lambda: other.request("GET", "/groups/g")[0] == 200, "the group is known at both")
    got: Counter[str] = Counter()

    def handle(message: Any) -> None:
        if message.key == "bad":
            raise RuntimeError("not this one")
        got.update([message.text()])

    with (
        Producer(f"127.0.0.1:{server.ports['producer']}") as producer,
        Consumer(f"127.0.0.1:{other.ports['consumer']}", "g", "t", handler=handle),
    ):
        producer.send("t", b"one", key="good")
        until(lambda: got["one"] == 1, "the client of the other proxy gets it")
        here = one(server)["queues"][0]
        assert (here["held"], here["holder"]) == (False, f"127.0.0.1:{other.ports['consumer']}")
        server.admin("POST", "groups", "g", "topics", "t", body={"batch_max": 3})
        until(lambda: one(other)["settings"]["batch_max"] == 3, "the setting is in force there")
        until(lambda: one(other)["lag"] == 0, "it is finished")
        server.admin("POST", "groups", "g", "offsets", body={"topic": "t", "to": "first"})
        until(lambda: got["one"] == 2, "it comes again")
        server.admin("POST", "groups", "g", "keys", body={"action": "park", "key": "good"})
        until(lambda: other.admin("GET", "groups", "g", "keys"), "the parked key is known there")
        producer.send("t", b"two", key="good")
        producer.send("t", b"three", key="else")
        until(lambda: got["three"] == 1, "another key goes on")
        assert got["two"] == 0
        server.admin("POST", "groups", "g", "keys", body={"action": "replay", "key": "good"})
        until(lambda: got["two"] == 1, "the key goes on")


def set_here(server: RealServer, names: Iterable[str]) -> dict[str, object]:
    return {name: one(server)["settings"][name] for name in names}


def test_a_change_keeps_what_another_proxy_changed_just_before(pair: tuple[RealServer, RealServer]) -> None:
    server = pair[0]
    server.admin("POST", "topics", "t", body={})
    names = ("concurrency", "batch_max", "retrying_max", "rate_max", "chain_batch")
    for number in range(1, 31):
        for at, name in enumerate(names):
            pair[(at + number) % 2].admin("POST", "groups", "g", "topics", "t", body={name: number})
        expected = dict.fromkeys(names, number)
        until(lambda expected=expected: set_here(server, names) == expected, "all five hold")


def test_a_group_paused_at_one_proxy_gets_nothing_at_the_other(pair: tuple[RealServer, RealServer]) -> None:
    server, other = pair
    server.admin("POST", "topics", "t", body={"queues": 1})
    server.admin("POST", "groups", "g", "topics", "t", body={"start": "first"})
    until(lambda: other.request("GET", "/groups/g")[0] == 200, "the group is known at both")
    got: list[str] = []
    with (
        Producer(f"127.0.0.1:{server.ports['producer']}") as producer,
        Consumer(
            f"127.0.0.1:{other.ports['consumer']}",
            "g",
            "t",
            handler=lambda message: got.append(message.text()),
        ),
    ):
        for number in range(5):
            producer.send("t", b"before")
            until(lambda number=number: len(got) == number + 1, "delivered")
            server.admin("POST", "groups", "g", "topics", "t", body={"paused": True})
            until(lambda: one(other)["paused"], "known there", 1.0)
            producer.send("t", b"meanwhile")
            until(lambda: one(other)["lag"] == 1, "it waits")
            assert got[-1] == "before"
            other.admin("POST", "groups", "g", "topics", "t", body={"paused": False})
            until(lambda: got[-1] == "meanwhile", "delivered when resumed")
            got.pop()
            until(lambda: not one(server)["paused"], "known here")
