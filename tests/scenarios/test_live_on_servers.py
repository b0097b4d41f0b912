"""Real servers are watched: all viewers get the same, processes answer as one, and the end is an event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection, socket
from typing import Any

from tests.interop.apache_client import Client
from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.waits import until

END_WITHIN_S = 2.0  # after the drain began


class SnapshotViewer:
    """An open stream of a server's snapshots."""

    def __init__(self, connection: socket) -> None:
        self._lines = connection.makefile("rb")
        self.text = b""

    def read_event(self) -> tuple[str, Any] | None:
        """The next event: its name and its data; None at the end of the stream."""
        name = ""
        for line in self._lines:
            self.text += line
            if line.startswith(b"event: "):
                name = line.removeprefix(b"event: ").decode().strip()
            elif line.startswith(b"data: "):
                return name, json.loads(line.removeprefix(b"data: "))
        return None

    def snapshots(self) -> Iterator[Any]:
        while (event := self.read_event()) is not None:
            assert event[0] == "snapshot", event
            yield event[1]


@contextmanager
def watching(server: RealServer) -> Iterator[SnapshotViewer]:
    with create_connection((server.host, server.ports["admin"]), PATIENCE_S) as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield SnapshotViewer(connection)


def send_some(server: RealServer) -> None:
    with Client(server.ports["producer"]) as producer:
        for number in range(10):
            assert producer.send("t", b"%d" % number, partitionId=0).code == 0


def prepare(server: RealServer) -> None:
    server.admin("POST", "topics", "t", body={"create": True})
    server.admin("POST", "groups", "g", body={"topics": ["t"], "start": "first"})


def test_viewers_see_the_same_until_the_server_stops(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        prepare(server)
        with watching(server) as one, watching(server) as other:
            first = next(each for each in one.snapshots() if each["totals"]["in_per_s"] is not None)
            assert next(other.snapshots())["at_ms"] <= first["at_ms"]
            send_some(server)
            for snapshot in one.snapshots():
                behind = {(row["group"], row["topic"]): row["lag"] for row in snapshot["behind"]}
                if behind.get(("g", "t")) == 10 and snapshot["totals"]["lag"] == 10:
                    break
            # How many: test_sampler.py, with a clock that it moves. Here a sample may be late.
            assert any(snapshot["tails"]["values"]["in_per_s"])
            assert snapshot["versions"].keys() == first["versions"].keys()
            assert snapshot["missing"] == {}
            until(lambda: other.read_event() and b"id: %d\n" % snapshot["at_ms"] in other.text)
            assert _event_of(one, snapshot["at_ms"]) == _event_of(other, snapshot["at_ms"])
            began = time.monotonic()
            server.terminate()
            events = list(iter(one.read_event, None))
            assert time.monotonic() - began < END_WITHIN_S + PATIENCE_S / 10
            assert events[-1] == ("end", {"reason": "the server is stopping"})
        assert server.wait() == 0


def _event_of(watcher: SnapshotViewer, at_ms: int) -> bytes:
    (event,) = (event for event in watcher.text.split(b"\n\n") if event.startswith(b"id: %d\n" % at_ms))
    return event


def test_processes_are_watched_as_one(tmp_path: Path) -> None:
    with running(tmp_path, processes=True) as server:
        prepare(server)
        with watching(server) as watcher:
            snapshots = watcher.snapshots()
            next(each for each in snapshots if each["tails"]["values"]["in_per_s"][-1] is not None)
            send_some(server)
            seen: dict[str, float] = {}
            for snapshot in snapshots:
                assert snapshot["missing"] == {}
                seen["in_per_s"] = sum(value or 0 for value in snapshot["tails"]["values"]["in_per_s"])
                for name in ("lag", "disk_free_bytes"):
                    seen[name] = snapshot["totals"][name] or 0
                if seen["in_per_s"] and seen["lag"] == 10 and seen["disk_free_bytes"]:
                    break
        status, history = server.request("GET", "/history?series=in_per_s&topic=t&step_s=1")
        if status == 404:  # the busiest are chosen every 10 s
            until(lambda: server.request("GET", "/history?topic=t&step_s=1")[0] == 200)
        status, history = server.request("GET", "/history?series=in_per_s,lag&step_s=1")
        assert status == 200
        assert 9.5 <= sum(value or 0 for value in history["series"]["in_per_s"]) <= 10.5
        assert history["missing"] == {}


def test_two_servers_on_one_directory_are_watched_as_one(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        other = RealServer(tmp_path)
        try:
            other.start()
            prepare(server)
            until(lambda: server.describe_own_shards()["elsewhere"], "both own delay shards")
            for _ in range(20):
                body = {"topic": "t", "body": "tea", "delay_ms": 1_800_000}
                server.admin("POST", "messages", body=body)
            for each in (server, other):

                def sees_all(each: RealServer = each) -> bool:
                    snapshot = each.admin("GET", "snapshot")
                    return snapshot["totals"]["delayed"] == snapshot["due_next_hour"] == 20

                until(sees_all, "the delayed messages of both are in the snapshot of each")

            def has_more_than_its_own() -> bool:
                send_some(other)  # again, because a busy machine may miss a second
                return stored_in_history(server) > 25  # its own are 20

            until(
                has_more_than_its_own,
                lambda: f"both are in the history of one: {read_history(server)}, {read_history(other)}",
            )
            assert server.admin("GET", "snapshot")["missing"] == {}
        finally:
            other.end()


def read_history(server: RealServer) -> Any:
    return server.request("GET", "/history?series=in_per_s&step_s=1")[1]


def stored_in_history(server: RealServer) -> float:
    """The sum of the rates of the last ten minutes, which is about the number of sends."""
    return sum(value or 0 for value in read_history(server)["series"]["in_per_s"])
