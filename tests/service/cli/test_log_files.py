"""`ddmq log show` and `clean` on real servers: the process that writes the log answers for the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Producer
from tests.scenarios.real_server import RealServer, ddmq, running, write_config
from tests.support.waits import until

MIB = 1 << 20


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RealServer, RealServer]]:
    """A server that writes the log, and a consumer proxy beside it."""
    log = {"segment_bytes": 4 * MIB, "checkpoint_bytes": MIB}
    config = write_config(tmp_path / "conf", file_log=log)
    with running(tmp_path / "data", config) as server:
        other = RealServer(tmp_path / "data", config, command="consumer")
        try:
            yield server, other.start()
        finally:
            other.end()


@pytest.mark.slow
def test_old_segments_are_shown_and_deleted(pair: tuple[RealServer, RealServer]) -> None:
    server, other = pair
    server.admin("POST", "topics", "t", body={"queues": 1})
    server.admin("POST", "groups", "g", "topics", "t", body={"start": "first"})
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        for _ in range(20):
            producer.send("t", b"x" * MIB)
    state = server.admin("GET", "log")
    assert state["disk"]["free_bytes"] > 0
    assert state["writers"][0] == {"topic": "t", "bytes": 20 * MIB}
    assert state["total"] == len(state["items"]) >= 5
    seen = other.admin("GET", "log")
    assert seen["items"][0]["start"] == state["items"][0]["start"], "the writer is asked"
    body = {"before_ms": int(time.time() * 1000), "dry_run": True}
    plan: dict[str, Any] = {}

    def have_same_plan() -> bool:
        """Whether both answer the same: a checkpoint between the two requests may release a segment."""
        plan.update(other.admin("POST", "log", "clean", body=body))
        return bool(plan == server.admin("POST", "log", "clean", body=body))

    until(have_same_plan)
    assert plan["dry_run"]
    assert plan["segments"] > 0
    (unread,) = plan["unread"]
    assert (unread["group"], unread["topic"]) == ("g", "t")
    assert unread["messages"] >= plan["segments"] * 3
    assert server.admin("GET", "log")["total"] == state["total"], "nothing is deleted"
    shown = ddmq("log", "show", "--admin", f"127.0.0.1:{server.ports['admin']}").stdout
    assert "sends rejected below" in shown
    cleaned = ddmq("log", "clean", "--before", "-0s", "--yes", "--admin", f"127.0.0.1:{other.ports['admin']}")
    deleted = int(cleaned.stdout.removeprefix("deleted ").split()[0])
    assert deleted >= plan["segments"]
    assert server.admin("GET", "log")["total"] == state["total"] - deleted
    status, error = server.request("POST", "/log/clean", {"before_ms": 99_999_999_999_999})
    assert status == 400
    assert "allowed: a time in the past" in str(error)
