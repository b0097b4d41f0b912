"""What people see of messages, topics and groups, and what programs get: whole, and nothing besides."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from ddmq_client import Consumer
from tests.scenarios.real_server import ddmq
from tests.service.cli.conftest import Shell
from tests.support.waits import until

BINARY = bytes(range(256)) * 300


def test_every_listing_has_a_table_and_json(shell: Shell, topic: str) -> None:
    shell("send", topic, "hello", "--key", "k")
    shell("pull", topic, "--group", f"g-{topic}")
    listings = {
        "topic list": ("durability", topic),
        f"topic show {topic}": ("body_bytes_max", "queue"),
        "group list": ("dead", f"g-{topic}"),
        f"group show g-{topic}": ("settings from", "committed"),
        f"message {topic}": ("body_bytes", "hello"),
        "lag": ("oldest", f"g-{topic}"),
        f"lag g-{topic}": ("acked/s", topic),
        f"offset show g-{topic}": ("generation", topic),
        "stats": ("server: ready", "in flight"),
        "doctor": ("remedy", "fdatasync"),
    }
    for line, texts in listings.items():
        shown = shell(*line.split())
        assert all(text in shown for text in texts), (line, shown)
        assert shell.error == ""
        assert shell.json(*line.split())
        assert shell.error == ""


def test_lag_and_group_show_warn_of_groups_without_consumers(shell: Shell, topic: str) -> None:
    few, many = f"few-{topic}", f"many-{topic}"
    for group, count in ((few, 1), (many, 3)):
        shell("group", "set", group, "--topic", f"t-{group}", "--start", "first")
        shell("send", f"t-{group}", *map(str, range(count)))
    warning = (
        f"nobody consumes t-{many} for group {many}: 3 messages wait, and no client pulls it at this proxy"
    )
    until(lambda: warning in shell("lag", many), "nobody has pulled for ten seconds")
    rows = [row["group"] for row in shell.json("lag") if row["group"] in (few, many)]
    assert rows == [many, few]
    assert f"nobody consumes t-{few} for group {few}: 1 message waits" in shell("lag", few)
    assert "NOBODY CONSUMES" in shell("group", "show", many)
    shell("pull", f"t-{many}", "--group", many, "--count", "1")
    assert warning not in shell("lag", many), "a client pulls"
    (row,) = shell.json("lag", many)
    assert (row["lag"], row["consumed"]) == (2, True)


def test_every_command_shows_the_same_number_of_dead_letters(shell: Shell, topic: str) -> None:
    shell(
        "group",
        "set",
        topic,
        "--topic",
        topic,
        "--start",
        "first",
        "--retry-intervals-ms",
        "",
        "--retry-steps",
        "0",
    )
    shell("send", topic, "a", "b")
    shell("pull", topic, "--group", topic, "--count", "2", "--fail", "no")

    def count_everywhere() -> list[int]:
        rows = [*shell.json("lag", topic), *shell.json("group", "show", topic)["subscriptions"]]
        rows += [row for row in shell.json("group", "list") if row["group"] == topic]
        rows += [row for row in shell.json("stats")["groups"] if row["group"] == topic]
        letters = [row["letters"] for row in shell.json("dlq", "list", topic)]
        return [*letters, *(row["dead_letters"] for row in rows)]

    until(lambda: count_everywhere() == [2] * 5, "both are dead letters")
    shell("dlq", "purge", topic, "--all", "--yes")
    assert count_everywhere() == [0] * 5
    (row,) = shell.json("lag", topic)
    assert row["dead_letters_since_start"] == 2


def test_tables_are_no_wider_than_their_names_want(shell: Shell, topic: str) -> None:
    """Those of other tests are long; none of them is broken."""
    shell("send", topic[:20], "x")
    shell("pull", topic[:20], "--group", "a-group")
    rows = shell.json("stats")["groups"]
    names = max(len(row["group"]) for row in rows) + max(len(row["topic"]) for row in rows)
    lines = shell("stats").splitlines()
    for row in rows:
        (line,) = [line for line in lines if line.split()[:2] == [row["group"], row["topic"]]]
        assert len(line.rstrip()) <= names + 60


def test_binary_and_control_characters(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BINARY)
    shell("send", topic, "--file", str(tmp_path / "body"), "--queue", "0")
    shell("send", topic, "two\nlines \x1b[31mred", "--queue", "0", "--key", "ключ", "--property", "путь=ü")
    for line in (f"pull {topic} --no-ack --count 2", f"tail {topic} --no-follow"):
        first, second = shell(*line.split()).splitlines()
        assert "(76,800 bytes, binary: 00 01 02" in first
        assert len(first) < 200
        assert second.endswith("key=ключ properties={путь=ü}  two\\nlines \\x1b[31mred")
    for line in (f"pull {topic} --group j --count 2", f"tail {topic} --no-follow"):
        binary, text = shell.lines(*line.split())
        assert base64.b64decode(binary["body_base64"]) == BINARY
        assert "body" not in binary
        assert (binary["queue"], binary["offset"], binary["body_bytes"]) == (0, 0, len(BINARY))
        assert (text["body"], text["properties"]["путь"]) == ("two\nlines \x1b[31mred", "ü")
    assert "binary: 00 01" in shell("message", topic, "--queue", "0", "--offset", "0", "--count", "1")


def test_long_text_is_truncated_for_people_only(shell: Shell, topic: str) -> None:
    shell("send", topic, "é" * 50_000)
    shown = shell("pull", topic, "--group", "g1")
    assert "… (100,000 bytes)" in shown
    assert len(shown) < 2_200
    assert shell.json("pull", topic, "--group", "g2", "--count", "1")["body"] == "é" * 50_000


def test_saved_bodies_are_exact(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BINARY)
    shell("send", topic, "--file", str(tmp_path / "body"), "--queue", "3")
    shell("pull", topic, "--count", "1", "--group", f"g-{topic}", "--save-to", str(tmp_path / "saved"))
    assert f"created group g-{topic}" in shell.error
    assert "1 message, acknowledged" in shell.error
    (saved,) = (tmp_path / "saved").iterdir()
    assert (saved.name, saved.read_bytes()) == (f"{topic}-3-0", BINARY)


def test_many_lines_from_standard_input(shell: Shell, topic: str) -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    where = f"127.0.0.1:{shell.server.ports['producer']}"
    process = ddmq("send", topic, "--lines", "-", "--producer", where, stdin=lines.encode())
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("stored 20,000 messages in ")
    assert shell.json("topic", "show", topic)["messages"] == 20_000
    process = ddmq("send", topic, "--lines", "-", "--producer", where, stdin=b"\n\n")
    assert (process.returncode, process.stderr) == (0, "nothing to send: the input has no lines\n")
    process = ddmq("send", topic, "--stdin", "--producer", where, "--json", stdin=b"all\nof it\n")
    assert json.loads(process.stdout)["body_bytes"] == len(b"all\nof it\n")


def test_doctor_knows_a_running_server(shell: Shell, tmp_path: Path) -> None:
    admin = f"127.0.0.1:{shell.server.ports['admin']}"
    (tmp_path / "ddmq.yaml").write_text(f"admin: {admin}\nproducer: 127.0.0.1:0\nconsumer: 127.0.0.1:0\n")
    line = ("doctor", "--data-dir", str(tmp_path / "data"), "--config", str(tmp_path))
    checks = {row["check"]: row for row in shell.json(*line)}
    assert checks["admin port"]["status"] == "ok"
    assert checks["admin port"]["found"] == f"{admin}: a ddmq server runs there, ready"


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion(shell: Shell, shell_name: str) -> None:
    assert "_DDMQ_COMPLETE" in shell("completion", shell_name)


def test_properties_are_shown_where_there_are_any(shell: Shell, topic: str) -> None:
    shell("send", topic, "plain", "--queue", "0")
    shell(
        "send", topic, "more", "--queue", "0", "--property", "kind=box", "--property", "long=" + "x" * 3_000
    )
    for line in (f"pull {topic} --no-ack --count 2 --group p", f"tail {topic} --no-follow"):
        first, second = shell(*line.split()).splitlines()
        assert first.endswith("0/0  plain")
        assert " properties={kind=box, long=xxx" in second
        assert second.endswith("x…}  more")
        assert len(second) < 2_100
    for line in (f"pull {topic} --no-ack --count 2 --group q", f"tail {topic} --no-follow"):
        assert [row["properties"] for row in shell.lines(*line.split())] == [
            {},
            {"kind": "box", "long": "x" * 3_000},
        ]


def test_tail_shows_only_what_its_filters_match(shell: Shell, topic: str, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff box \x00")
    shell("send", topic, "two boxes", "--key", "17", "--queue", "0")
    shell("send", topic, "a Box", "--key", "boxer", "--queue", "1")
    shell("send", topic, "nothing", "--key", "17", "--queue", "1")
    shell("send", topic, "--file", str(tmp_path / "binary"), "--queue", "0")
    chosen = {
        ("--key", "17"): {(0, 0), (1, 1)},
        ("--key", "1"): set(),
        ("--grep", "box"): {(0, 0), (1, 0), (0, 1)},
        ("--grep", "17"): {(0, 0), (1, 1)},
        ("--key", "17", "--grep", "box"): {(0, 0)},
        ("--grep", "box", "--count", "1"): {(0, 1)},
    }
    for options, positions in chosen.items():
        rows = shell.lines("tail", topic, "--no-follow", *options)
        assert {(row["queue"], row["offset"]) for row in rows} == positions, options


def test_lag_counts_the_clients_that_pull_a_topic_for_a_group(shell: Shell, topic: str) -> None:
    for name in (topic, f"x-{topic}"):
        shell("topic", "create", name)
    shell("group", "create", topic, "--topic", topic, "--topic", f"x-{topic}")

    def clients() -> dict[str, int]:
        return {row["topic"]: row["clients"] for row in shell.json("lag", topic)}

    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, topic, [topic], handler=str), Consumer(address, topic, [topic], handler=str):
        until(lambda: clients() == {topic: 2, f"x-{topic}": 0}, "both pull the one topic")
    until(lambda: clients() == {topic: 0, f"x-{topic}": 0}, "both have stopped")


def test_deleting_answers_programs_too(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    shell("group", "create", topic, "--topic", topic)
    report = {"group": topic, "topic": None, "deleted": True}
    assert shell.json("group", "delete", topic, "--yes") == report
    assert shell.json("topic", "delete", topic, "--yes") == {"topic": topic, "deleted": True, "delayed": 0}
