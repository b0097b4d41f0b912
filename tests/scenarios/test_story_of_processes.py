"""The story of a message that went through three processes: each tells its part, and the parts add up."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ddmq_client import Consumer, OutgoingMessage, Producer
from tests.scenarios.real_server import RealServer, ddmq, running
from tests.support.waits import until

pytestmark = pytest.mark.slow


def test_each_process_reports_its_phases(tmp_path: Path) -> None:
    handled: list[str] = []

    def handle(message: Any) -> None:
        handled.append(message.text())
        if len(handled) == 1:
            raise RuntimeError("not today")

    with running(tmp_path, processes=True) as server:
        server.admin("POST", "topics", "t", body={"queues": 1, "trace_one_in": 1})
        server.admin("POST", "groups", "g", "topics", "t", body={"start": "first"})
        with Producer(f"127.0.0.1:{server.ports['producer']}", client_id="shop") as producer:
            producer.send("t", b"one", delay=timedelta(milliseconds=300))
            with Consumer(f"127.0.0.1:{server.ports['consumer']}", "g", "t", handler=handle):
                until(lambda: len(handled) == 2, "failed once, then handled")
                (row,) = until(lambda: server.messages("t"), "it is stored")
                answer: dict[str, Any] = {}

                def acknowledged() -> bool:
                    answer.update(server.admin("GET", "messages", row["id"], "story"))
                    return bool(answer["stories"][0]["end"] == "done")

                until(acknowledged, lambda: answer)
    (one,) = answer["stories"]
    phases = one["spans"]
    assert all(before["end_ms"] == after["start_ms"] for before, after in pairwise(phases))
    assert sum(phase["ms"] for phase in phases) == one["whole_ms"]
    names = [phase["phase"] for phase in phases]
    assert names.count("leased") == 2
    assert "delayed" in names
    assert "shop" in phases[0]["who"]
    who = {word for phase in phases for word in (phase["who"], phase["why"]) if word}
    assert len({text for text in who if "127.0.0.1" in text or ":" in text}) >= 2, who
    assert answer["trace_events"] >= 8
    assert answer["notes"] == []


@pytest.mark.parametrize("messages", [1, 2])
def test_a_message_of_a_transaction(tmp_path: Path, messages: int) -> None:
    with running(tmp_path) as server:
        server.admin("POST", "topics", "t", body={"queues": 1, "trace_one_in": 1})
        server.admin("POST", "groups", "g", "topics", "t", body={"start": "first"})
        address = f"127.0.0.1:{server.ports['producer']}"
        with Producer(address, client_id="bank-1", producer_group="bank") as producer:
            with producer.transaction() as tx:
                tx.send_batch([OutgoingMessage("t", b"money") for _ in range(messages)])
                open_ = until(lambda: server.admin("GET", "transactions")["transactions"], "it is open")
            sent = tx.results[0]
        answer: dict[str, Any] = {}

        def traced() -> bool:
            answer.update(server.admin("GET", "messages", sent.message_id, "story"))
            return bool(answer["trace_events"])

        until(traced, lambda: answer)
    (one,) = answer["stories"]
    phases = one["spans"]
    assert sum(phase["ms"] for phase in phases) == one["whole_ms"]
    (waited,) = [phase for phase in phases if phase["phase"] == "transaction"]
    assert waited["why"] == f"transaction {open_[0]['transaction']} of bank"
    assert phases[0]["phase"] == "sending"
    assert "bank-1" in phases[0]["who"]


def test_a_queue_that_another_proxy_holds(tmp_path: Path) -> None:
    """Asked at a proxy that does not hold the queue: what is not known there is not guessed."""
    with running(tmp_path) as server:
        other = RealServer(tmp_path, command="consumer")
        try:
            other.start()
            server.admin("POST", "topics", "t", body={"queues": 1, "trace_one_in": 1})
            server.admin("POST", "groups", "g", "topics", "t", body={"start": "first", "concurrency": 1})
            until(lambda: other.request("GET", "/groups/g")[0] == 200, "the group is known at both")
            answer = _read_stalled_story(server, other)
        finally:
            other.end()
    (one,) = answer["stories"]
    assert sum(phase["ms"] for phase in one["spans"]) == one["whole_ms"]
    (lease,) = [phase for phase in one["spans"] if phase["phase"] == "leased"]
    assert str(other.ports["admin"]) in lease["why"], "that proxy has told it"
    waits = [phase for phase in one["spans"] if phase["phase"] == "concurrency"]
    assert waits, "it waited for the one before, which took its time"


def _read_stalled_story(server: RealServer, other: RealServer) -> dict[str, Any]:
    """Two messages, one at a time, at the other proxy; the second one's story, asked at the server."""
    may_end = Event()

    def handle(message: Any) -> None:
        if message.text() == "first":
            may_end.wait(60)

    answer: dict[str, Any] = {}
    with (
        Producer(f"127.0.0.1:{server.ports['producer']}") as producer,
        Consumer(f"127.0.0.1:{other.ports['consumer']}", "g", "t", handler=handle),
    ):
        producer.send("t", b"first")
        until(lambda: other.admin("GET", "groups", "g")["subscriptions"][0]["in_flight"], "it is in hand")
        producer.send("t", b"second")
        (row, _) = until(lambda: _both(server), "both are stored")

        def story() -> dict[str, Any]:
            answer.update(server.admin("GET", "messages", row["id"], "story"))
            return answer

        def waited_long() -> bool:
            phases = story()["stories"][0]["spans"]
            assert phases[-1]["phase"] in ("queued", "turn"), "its proxy has not told what holds it up"
            return bool(answer["stories"][0]["whole_ms"] > 300)

        until(waited_long, lambda: answer)
        may_end.set()
        until(lambda: story()["stories"][0]["end"] == "done", lambda: answer)
    return answer


def _both(server: RealServer) -> list[dict[str, Any]]:
    rows = sorted(server.messages("t"), key=lambda row: -int(row["offset"]))
    return rows if len(rows) == 2 else []


def test_after_a_kill_the_story_names_what_is_missing(tmp_path: Path) -> None:
    """Events of the last second are lost with the process; what is told still adds up."""
    with running(tmp_path) as server:
        server.admin("POST", "topics", "t", body={"queues": 1, "trace_one_in": 1})
        server.admin("POST", "groups", "g", "topics", "t", body={"start": "first", "ack_timeout_ms": 500})
        with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
            producer.send("t", b"one")
        (row,) = until(lambda: server.messages("t"), "it is stored")
        ports = [f"127.0.0.1:{server.ports[component]}" for component in ("consumer", "admin")]
        looked = ddmq(
            "pull",
            "t",
            "--group",
            "g",
            "--count",
            "1",
            "--no-ack",
            "--consumer",
            ports[0],
            "--admin",
            ports[1],
        )
        assert "one" in looked.stdout, looked
        server.kill()
        server.start()
        handled: list[str] = []

        def handle(message: Any) -> None:
            handled.append(message.text())

        with Consumer(f"127.0.0.1:{server.ports['consumer']}", "g", "t", handler=handle):
            until(lambda: handled, "it comes again")
            answer: dict[str, Any] = {}

            def acknowledged() -> bool:
                answer.update(server.admin("GET", "messages", row["id"], "story"))
                return bool(answer["stories"][0]["end"] == "done")

            until(acknowledged, lambda: answer)
    (one,) = answer["stories"]
    assert sum(phase["ms"] for phase in one["spans"]) == one["whole_ms"]
    assert one["spans"][-1]["phase"] == "leased"
