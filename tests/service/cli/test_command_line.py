"""The `ddmq` command against a real server: tables for people, `--json` for programs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.scenarios.real_server import RealServer, ddmq
from tests.service.cli.conftest import Shell


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


def test_stats(shell: Shell, topic: str) -> None:
    shell("send", topic, "x")
    shell("pull", topic, "--group", f"g-{topic}", "--no-ack")
    stats = shell.json("stats")
    assert stats["health"]["ready"] is True
    assert topic in {row["topic"] for row in stats["topics"]}
    assert f"g-{topic}" in {row["group"] for row in stats["groups"]}
    shown = shell("stats")
    assert "ready" in shown
    assert topic[:20] in shown


def test_as_processes(server: RealServer, topic: str) -> None:
    """The command itself: standard input, help, version, completion."""
    where = f"127.0.0.1:{server.ports['producer']}"
    process = ddmq("send", topic, "--lines", "-", "--producer", where, "--json", stdin=b"a\nb\n")
    assert json.loads(process.stdout)["stored"] == 2
    assert process.stderr == ""
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
