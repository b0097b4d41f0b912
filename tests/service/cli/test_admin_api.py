"""The admin API over real HTTP: every path, statuses, one JSON object with the reason."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.scenarios.real_server import PATIENCE_S, RealServer, ddmq, running, write_config
from tests.support.waits import until


def test_health_and_metrics(server: RealServer) -> None:
    assert server.request("GET", "/ready") == (200, {"ready": True, "reason": ""})
    assert server.request("GET", "/health") == (200, {"alive": True, "ready": True, "reason": ""})
    status, text = server.request("GET", "/metrics")
    assert status == 200
    assert "# TYPE ddmq_log_commits_total counter" in text


def test_a_topic_from_birth_to_death(server: RealServer, topic: str) -> None:
    topic_row = server.admin("POST", "topics", topic, body={"queues": 2, "durability": "written"})
    assert (topic_row["queues"], topic_row["durability"], topic_row["source"]) == (2, "written", "log")
    assert server.admin("POST", "topics", topic, body={"create": False, "queues": 3})["queues"] == 3
    assert len(server.admin("GET", "topics", topic)["by_queue"]) == 3
    assert topic in {row["topic"] for row in server.admin("GET", "topics")}
    assert server.admin("GET", "topics", topic, "messages") == []
    assert server.admin("DELETE", "topics", topic) == {}
    assert server.request("GET", f"/topics/{topic}")[0] == 404


def test_a_group_from_birth_to_death(server: RealServer, topic: str) -> None:
    body = {"topics": ["owned"], "start": "first", "ack_timeout_ms": 1234}
    group_row = server.admin("POST", "groups", topic, body=body)
    assert group_row["created"] is True
    assert group_row["subscriptions"][0]["settings"]["ack_timeout_ms"] == 1234
    assert server.admin("GET", "groups", topic)["group"] == topic
    assert topic in {row["group"] for row in server.admin("GET", "stats")["groups"]}
    assert server.admin("DELETE", "groups", topic) == {}
    assert server.request("GET", f"/groups/{topic}")[0] == 404


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "words"),
    [
        ("GET", "/", None, 404, "/topics/{topic}/messages"),
        ("GET", "/topics/none", None, 404, "'none' does not exist"),
        ("PUT", "/topics/none", None, 405, "PUT"),
        ("POST", f"/topics/{quote('a/b', safe='')}", {}, 400, "'a/b'"),
        ("POST", f"/topics/{quote('Ü')}", {}, 400, "'Ü'"),
        ("POST", "/topics/t", {"queus": 3}, 400, "did you mean 'queues'"),
        ("POST", "/topics/t", {"queues": 0}, 400, "1 to 1024"),
        ("POST", "/topics/t", {"queues": "many"}, 400, "'many'"),
        ("POST", "/topics/t", {"body_bytes_max": 10**20}, 400, "1 to 1073741824"),  # no message carries it
        ("POST", "/topics/owned", {"create": False, "queues": 9}, 400, "topics.yaml"),
        ("DELETE", "/topics/owned", None, 400, "topics.yaml"),
        ("POST", "/groups/g", {}, 400, "topics"),
        ("POST", "/groups/g", {"topics": "owned"}, 400, "'owned'"),
        ("POST", "/groups/g", {"topics": ["owned"], "start": "never"}, 400, "'never'"),
        ("POST", "/groups/g/topics/owned", {"start": "9" * 5000}, 400, "first, last, or epoch milliseconds"),
        ("POST", "/groups/g/topics/owned", {"retry_intervals_ms": [100] * 40_000}, 400, "at most 65536"),
        ("GET", "/topics/owned/messages?count=x", None, 400, "'x'"),
        ("GET", "/topics/owned/messages?queue=-1&offset=0", None, 400, "'-1'"),
        ("GET", "/topics/owned/messages?queue=5&offset=0", None, 404, "0 to 1"),
        ("GET", "/topics/owned/messages?id=zz", None, 400, "32 hex digits"),
        ("GET", "/messages/zz", None, 400, "32 hex digits"),
    ],
)
def test_invalid_requests_are_rejected(
    server: RealServer, method: str, target: str, body: Any, status: int, words: str
) -> None:
    answered_status, answer = server.request(method, target, body)
    assert (answered_status, set(answer)) == (status, {"error"})
    assert words in answer["error"]


def test_what_is_not_http_is_one_short_line_in_the_log(server: RealServer) -> None:
    before = server.log.count("\n")
    with socket.create_connection(("127.0.0.1", server.ports["admin"]), PATIENCE_S) as raw:
        raw.sendall(b"\x00\x00\x00\x37\x82!\x01\x08sendSync" + b"x" * 500 + b"\r\n\r\n")
        while raw.recv(1000):
            pass
    lines = until(lambda: server.log.splitlines()[before:], "a line about it")
    (line,) = [line for line in lines if "admin request refused" in line]
    assert "WARNING" in line
    assert len(line) < 300
    assert server.request("GET", "/ready")[0] == 200


def test_hangup_reloads_topics_and_groups(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", topics={"topics": {"a": {"queues": 1}}})
    with running(tmp_path, config) as server:
        write_config(
            config,
            topics={"topics": {"a": {"queues": 2}, "b": {"durability": "written"}}},
            groups={"groups": {"g": {"topics": {"b": {"start": "first"}}}}},
        )
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: "reloaded topics=a,b" in server.log, "it says what changed")
        topics = {row["topic"]: row for row in server.admin("GET", "topics")}
        assert (topics["a"]["queues"], topics["b"]["durability"]) == (2, "written")
        assert [row["group"] for row in server.admin("GET", "groups")] == ["g"]
        write_config(config, topics={"topics": {"a": {"queus": 3}}})
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: "not reloaded" in server.log, "it says that not")
        (line,) = [line for line in server.log.splitlines() if "not reloaded" in line]
        assert all(word in line for word in ("topics.yaml:", "queus", "did you mean 'queues'"))
        assert server.admin("GET", "topics", "a")["queues"] == 2


@pytest.mark.slow
def test_an_interrupt_of_the_terminal_drains_every_process_once(tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group: the parts must not count it beside the SIGTERM they get."""
    server = RealServer(tmp_path, processes=True)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server.start()
        os.killpg(server.pid, signal.SIGINT)
        assert server.wait() == 0
        assert server.log.count("ddmq.server: draining") == 3
        assert "second stop signal" not in server.log
    finally:
        signal.signal(signal.SIGINT, previous)
        server.end()


def test_a_signal_just_before_the_wait_ends_the_wait() -> None:
    """What a wait in the system alone would sleep through, until some part died."""
    code = """
import os, signal
from ddmq.server.process.processes import NEVER, Wakes
told = []
signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
wakes = Wakes()
os.kill(os.getpid(), signal.SIGINT)
assert told == [signal.SIGINT]
wakes.wait(NEVER)
print("awake")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "awake\n"


@pytest.mark.slow
def test_hangup_reaches_every_process(tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf", topics={"topics": {"a": {"queues": 1}}})
    server = RealServer(tmp_path, config, processes=True)
    try:
        server.start()
        pids = server.component_pids()
        assert set(pids) == {"producer", "consumer", "delay-service"}
        write_config(config, topics={"topics": {"a": {"queues": 2}}})
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: server.log.count("reloaded topics=") == 3, "all say so")
        assert server.admin("GET", "topics", "a")["queues"] == 2
        server.terminate()
        assert server.wait() == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()), "none is left")
        assert json.dumps(server.log).count("INFO ddmq.server: stopped") == 3
    finally:
        server.end()


def send_latencies(server: RealServer) -> int:
    """Of how many sends `/stats` tells, once every part answers; else 0."""
    stats = server.admin("GET", "stats")
    rows = stats["counters"].get("ddmq_send_latency_us", [])
    return 0 if stats["silent_parts"] else sum(row["count"] for row in rows)


@pytest.mark.slow
def test_stats_cover_every_process(tmp_path: Path) -> None:
    with running(tmp_path, processes=True) as server:
        where = ("--producer", f"127.0.0.1:{server.ports['producer']}")
        assert ddmq("send", "orders", "hello", *where).returncode == 0
        assert until(lambda: send_latencies(server), "the producer proxy's send") == 1
        shown = ddmq("stats", "--admin", f"127.0.0.1:{server.ports['admin']}").stdout
        assert "send, request to answer" in shown
        findings = server.admin("GET", "findings")
        assert findings["items"] == findings["missing"] == [], "every process says so"
        producer = server.component_pids()["producer"]
        os.kill(producer, signal.SIGSTOP)
        silent = server.admin("GET", "stats")["silent_parts"]
        missing = server.admin("GET", "findings")["missing"]
        os.kill(producer, signal.SIGCONT)
        assert "producer" in silent
        assert {"name": "producer", "admin": silent["producer"]} in missing
        os.kill(server.component_pids()["consumer"], signal.SIGKILL)
        until(lambda: "part died" in server.log and server.log.count("part ready") == 4, "it is back")
        assert until(lambda: send_latencies(server), "it knows the others again") == 1
