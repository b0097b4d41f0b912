"""The `ddmq` command against a real server: tables for people, `--json` for programs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scenarios.real_server import RealServer, ddmq
from tests.service.cli.conftest import Shell


def test_topics(shell: Shell, topic: str) -> None:
    assert shell("topic", "create", topic, "--queues", "2") == f"created {topic} with 2 queues\n"
    shell("topic", "create", topic, code=1)
    assert f"topic {topic!r} exists" in shell.error
    shown = shell.json("topic", "show", topic)
    assert (shown["topic"], shown["queues"], len(shown["by_queue"])) == (topic, 2, 2)
    assert shell.json("topic", "set", topic, "--queues", "3", "--delay", "none")["queues"] == 3
    shell("topic", "set", topic, "--queues", "1", code=1)
    assert "3 queues" in shell.error
    assert topic in {row["topic"] for row in shell.json("topic", "list")}
    assert topic in shell("topic", "list")
    assert shell("topic", "delete", topic, "--yes") == f"deleted {topic}\n"
    shell("topic", "show", topic, code=1)
    assert topic in shell.error


def test_send_and_pull(shell: Shell, topic: str, tmp_path: Path) -> None:
    assert shell("send", topic, "hello", "--key", "k1").startswith("stored: queue ")
    (tmp_path / "a.bin").write_bytes(b"\x00\xff")
    (tmp_path / "lines").write_text("one\ntwo\n\nthree\n")
    report = shell.json("send", topic, "--file", str(tmp_path / "a.bin"), "--property", "p=v", "--tags", "T")
    assert (report["stored"], report["failed"], report["body_bytes"]) == (1, 0, 2)
    assert shell.json("send", topic, "--lines", str(tmp_path / "lines"), "--repeat", "2")["stored"] == 6
    rows = shell.lines("pull", topic, "--group", f"g-{topic}", "--count", "8")
    bodies = sorted(row.get("body", row.get("body_base64")) for row in rows)
    assert bodies == sorted(["hello", "AP8=", *["one", "two", "three"] * 2]), "binary ones whole, in base64"
    (tagged,) = [row for row in rows if row["tags"] == "T"]
    assert tagged["properties"] == {"p": "v"}
    assert shell.lines("pull", topic, "--group", f"g-{topic}", "--count", "1") == []
    shown = shell.json("group", "show", f"g-{topic}")
    assert sum(each["lag"] for each in shown["subscriptions"]) == 0


def test_tail_takes_nothing(shell: Shell, topic: str) -> None:
    for number in range(3):
        shell("send", topic, f"m{number}", "--queue", "1")
    rows = shell.lines("tail", topic, "--no-follow")
    assert [row["body"] for row in rows] == ["m0", "m1", "m2"]
    assert len(shell.lines("tail", topic, "--no-follow", "--count", "1")) == 1
    assert "m2" in shell("tail", topic, "--no-follow")


def test_messages_are_found(shell: Shell, topic: str) -> None:
    (sent,) = shell.json("send", topic, "needle", "--key", "the-key", "--queue", "2")["results"]
    shell("send", topic, "hay", "--queue", "2")
    by_id = shell.json("message", topic, "--id", sent["id"])
    by_key = shell.json("message", topic, "--key", "the-key")
    by_offset = shell.json("message", topic, "--queue", "2", "--offset", "0", "--count", "1")
    by_time = shell.json("message", topic, "--time", str(by_id[0]["stored_ms"]))
    assert [rows[0]["body"] for rows in (by_id, by_key, by_offset)] == ["needle"] * 3
    assert {row["body"] for row in by_time} == {"needle", "hay"}
    assert len(shell.json("message", topic)) == 2
    assert "needle" in shell("message", topic, "--id", sent["id"])
    shell("message", topic, "--id", "0" * 32, code=1)
    shell("message", topic, "--key", "a", "--id", "b", code=2)


def test_groups(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    made = shell.json("group", "create", f"g-{topic}", "--topic", topic, "--start", "first")
    assert made["created"] is True
    assert f"g-{topic}" in shell("group", "list")
    assert {row["group"] for row in shell.json("group", "list")} >= {f"g-{topic}"}
    assert topic in shell("group", "show", f"g-{topic}")
    assert shell("group", "delete", f"g-{topic}", "--yes") == f"deleted g-{topic}\n"
    shell("group", "show", f"g-{topic}", code=1)
    assert f"g-{topic}" in shell.error


def test_stats(shell: Shell, topic: str) -> None:
    shell("send", topic, "x")
    shell("pull", topic, "--group", f"g-{topic}", "--no-ack")
    found = shell.json("stats")
    assert found["health"]["ready"] is True
    assert topic in {row["topic"] for row in found["topics"]}
    assert f"g-{topic}" in {row["group"] for row in found["groups"]}
    shown = shell("stats")
    assert "ready" in shown
    assert topic[:20] in shown


def test_sends_that_are_refused_are_named(shell: Shell, topic: str) -> None:
    report = shell.json("send", "a/b", "x", code=1)
    assert (report["stored"], report["failed"]) == (0, 1)
    assert "a/b" in report["results"][0]["error"]
    shell("send", topic, "x", "--property", "KEYS=1", code=1)
    assert "KEYS" in shell.error


def test_as_processes(server: RealServer, topic: str) -> None:
    """The command itself: standard input, help, version, completion."""
    where = f"127.0.0.1:{server.ports['producer']}"
    ended = ddmq("send", topic, "--lines", "-", "--producer", where, "--json", stdin=b"a\nb\n")
    assert json.loads(ended.stdout)["stored"] == 2
    assert ended.stderr == ""
    assert "ddmq serve" in ddmq("--help").stdout
    assert ddmq("--version").stdout.startswith("ddmq")


def test_doctor(tmp_path: Path, shell: Shell) -> None:
    findings = {row["check"]: row for row in shell.json("doctor", "--data-dir", str(tmp_path / "data"))}
    assert findings["python"]["status"] == "ok"
    assert {row["status"] for row in findings.values()} <= {"ok", "warning"}
    assert not (tmp_path / "data").exists(), "it only looks"
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "ddmq.yaml").write_text("drain_m: 1\n")
    rows = shell.json("doctor", "--data-dir", str(tmp_path), "--config", str(tmp_path / "conf"), code=1)
    (bad,) = [row for row in rows if row["status"] == "failed"]
    assert "drain_m" in bad["found"]
