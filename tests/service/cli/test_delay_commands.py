"""`ddmq delay …` and the delays of `ddmq send` on a real server."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.scenarios.real_server import RealServer, ddmq, running
from tests.support.installations import Installation
from tests.support.waits import until


def added(shell: Any, topic: str, *options: str, body: str = "tea") -> dict[str, Any]:
    """One message sent by `ddmq delay add`; its row."""
    (row,) = shell.json("delay", "add", topic, body, *options)["results"]
    return row


def bodies(shell: Any, topic: str) -> list[str]:
    return delivered(shell.server, topic)


def test_remind_me_in_90_seconds_no_cancel_that_every_weekday_at_9_in_shanghai(shell, topic):
    shell("topic", "create", topic)
    output = shell("delay", "add", topic, "tea", "--delay", "90s")
    match = re.search(r"due .* \(in 1 m (30|29) s\), id (\S+)", output)
    assert match, output
    ident = match[2]
    assert shell.error.strip() == f"`ddmq delay cancel {ident}` takes it back"
    assert shell("delay", "cancel", ident).strip() == "cancelled"
    output = shell("delay", "add", topic, "stand-up", "--cron", "0 9 * * 1-5", "--zone", "Asia/Shanghai")
    assert re.match(r"first due \d{4}-\d\d-\d\d 09:00:00\+08:00 \(in ", output)
    (row,) = shell.json("delay", "list", topic)["messages"]
    assert row["repeats"] == "cron 0 9 * * 1-5 in Asia/Shanghai"
    assert row["preview"] == "stand-up"
    assert bodies(shell, topic) == []


def test_reschedule_and_fire(shell, topic):
    row = added(shell, topic, "--delay", "1h")
    before = shell.json("delay", "show", row["id"])
    assert shell.json("delay", "show", row["id"][-36:]) == before, "by its uuid too"
    assert re.match(
        r"rescheduled, due .* \(in [12] h", shell("delay", "reschedule", row["id"], "--delay", "2h")
    )
    moved = shell.json("delay", "show", row["id"])
    assert moved["due_ms"] > before["due_ms"] == row["due_ms"]
    (outcome,) = shell.json("delay", "reschedule", row["id"], "--at", "2099-01-01T00:00Z", code=1)
    assert (outcome["outcome"], "33" in outcome["error"]) == (None, True)
    (outcome,) = shell.json("delay", "fire", row["id"])
    assert outcome["outcome"] == "fired"
    assert bodies(shell, topic) == ["tea"]
    assert shell("delay", "reschedule", row["id"], "--delay", "1h", code=1).startswith("already fired")


def test_a_message_that_never_was(shell):
    due = int(time.time()) + 3_600  # of one that was due three days ago no more is known than that
    ident = f"{due}-2-{due + 172_800}-0-0-0-1-b4207970-e5e1-11f1-a4e0-02fc00000001"
    assert shell("delay", "cancel", ident, code=1).startswith("unknown")
    assert "cancelled before it was known" in shell("delay", "show", ident)
    assert "nothing is known" in shell.refused("delay", "show", ident.replace("b42", "c42"))
    assert "'x' is not a delay id; ids look like" in shell.refused("delay", "show", "x")


def test_a_topic_in_place_of_an_id_names_the_command_for_all_of_a_topic(shell, topic):
    for command, told in (("cancel", True), ("fire", False)):
        shell("delay", command, topic, code=1)
        assert f"'{topic}' is not a delay id; ids look like" in shell.error
        more = f"; to cancel all of topic {topic}: `ddmq delay cancel --topic {topic}`"
        assert (more in shell.error) is told
    shell("delay", "cancel", "no/topic", code=1)
    assert "topic no/topic" not in shell.error
    text = shell.refused("delay", "cancel", "--topic", topic, "--text", "x", code=2)
    assert "there is no --text here; --key, --from and --to choose among those of --topic" in text


def test_a_due_time_in_the_past_is_said_to_be_one(shell, topic):
    shell("topic", "create", topic)
    past = ("--at", "2026-01-01T00:00", "--zone", "UTC")
    assert re.search(
        r"ago\), in the past, so it is delivered at once, id ", shell("delay", "add", topic, "x", *past)
    )
    for timing in (("--delay", "1ms"), ("--at", f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%dT%H:%M}Z")):
        assert "in the past" not in shell("delay", "add", topic, "x", *timing)


def test_a_listing_continues_after_its_cursor_over_all_shards(shell, topic):
    dues = [added(shell, topic, "--delay", f"{3600 + n}s", body=f"m{n}")["due_ms"] for n in range(7)]
    rows, after = [], None
    while True:
        page = shell.json("delay", "list", topic, "--count", "3", *(["--after", after] if after else []))
        rows += page["messages"]
        after = page["next"]
        if after is None:
            break
    assert [row["due_ms"] for row in rows] == dues
    assert [row["preview"] for row in rows] == [f"m{n}" for n in range(7)]
    range_options = ("--from", str(dues[2]), "--to", str(dues[5]))
    assert [row["preview"] for row in shell.json("delay", "list", topic, *range_options)["messages"]] == [
        "m2",
        "m3",
        "m4",
    ]
    assert shell("delay", "count", topic, *range_options).strip() == "3"
    assert shell("delay", "count", topic).strip() == "7"
    assert shell.json("delay", "count")["topics"][topic] == 7
    output = shell("delay", "list", topic, "--count", "3")
    assert "m2" in output
    assert "go on with --after" in shell.error


def test_send_takes_the_same_words(shell, topic):
    moment = (datetime.now(ZoneInfo("Asia/Kathmandu")) + timedelta(days=30)).replace(second=0, microsecond=0)
    at = moment.strftime("%Y-%m-%dT%H:%M")
    answer = shell.json("send", topic, "a", "b", "--at", at, "--zone", "Asia/Kathmandu")
    assert answer["stored"] == 2
    assert {row["due_ms"] for row in answer["results"]} == {round(moment.timestamp() * 1000)}
    assert shell("delay", "count", topic).strip() == "2"


def test_deleting_a_topic_tells_of_what_waits_for_it(shell, topic, monkeypatch):
    shell("topic", "create", topic)
    row = added(shell, topic, "--delay", "1h")
    added(shell, topic, "--delay", "2h")
    until(lambda: shell.json("delay", "count", topic)["count"] == 2, "both wait")
    questions = []
    monkeypatch.setattr("ddmq.cli.operate.topic.confirm", questions.append)
    output = shell("topic", "delete", topic)
    waits = "2 delayed messages for it wait"
    assert questions == [f"Delete topic {topic} and every message in it? {waits}, and will be dead letters."]
    assert output == f"deleted {topic}\n"
    assert " ".join(shell.error.split()) == (
        f"note: {waits}: they are dead letters when due, unless a topic {topic} is there again;"
        f" ddmq delay cancel --topic {topic} takes them back"
    )
    assert shell("delay", "cancel", row["id"]).strip() == "cancelled", "they wait on"
    until(lambda: shell.json("delay", "count", topic)["count"] == 1, "one waits")
    shell("topic", "create", topic)
    shell("topic", "delete", topic, "--yes")
    assert " ".join(shell.error.split()).startswith(
        "note: 1 delayed message for it waits: it is a dead letter"
    )
    shell("topic", "create", topic)
    shell("delay", "cancel", "--topic", topic, "--yes")
    shell("topic", "delete", topic, "--yes")
    assert shell.error == "", "nothing waits, nothing is told"


# --- backup and restore


def pending(server: RealServer) -> dict[str, int]:
    counts: dict[str, int] = server.admin("GET", "delay")["topics"]
    return counts


def delivered(server: RealServer, topic: str) -> list[str]:
    _, rows = server.request("GET", f"/topics/{topic}/messages?count=1000")
    return sorted(row["body"] for row in rows) if isinstance(rows, list) else []


def add(server: RealServer, *arguments: str) -> str:
    """The id of one message sent to `orders`."""
    port = f"127.0.0.1:{server.ports['producer']}"
    done = ddmq("delay", "add", "orders", *arguments, "--producer", port, "--json")
    assert done.returncode == 0, done.stderr
    return str(re.search(r'"id":"([^"]+)"', done.stdout)[1])  # type: ignore[index]


def change(server: RealServer, what: str, ident: str, *more: str) -> None:
    done = ddmq("delay", what, ident, *more, "--producer", f"127.0.0.1:{server.ports['producer']}")
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.mark.slow
def test_a_backup_of_a_running_server_is_restored_beside_the_log(tmp_path: Path) -> None:
    """What fired or was cancelled after the backup stays so; what came after it is there again."""
    with running(tmp_path) as server:
        unchanged, fired, cancelled = (
            add(server, body, "--delay", "1h") for body in ("kept", "fired", "gone")
        )
        admin = f"127.0.0.1:{server.ports['admin']}"
        folder = str(server.data_dir / "backups" / "made")
        assert ddmq("delay", "backup", "made", "--admin", admin).returncode == 0
        second_backup = ddmq("delay", "backup", folder, "--admin", admin)
        assert (second_backup.returncode, "not empty" in second_backup.stderr) == (1, True)
        change(server, "fire", fired)
        change(server, "cancel", cancelled)
        later = add(server, "later", "--delay", "1h")
        restore = ("delay", "restore", folder, "--data-dir", str(server.data_dir))
        refused = ddmq(*restore)
        assert (refused.returncode, "a server runs over" in refused.stderr) == (1, True)
        server.kill()
        (server.data_dir / "delay").rename(tmp_path / "lost")
        done = ddmq(*restore)
        assert done.returncode == 0, done.stderr
        server.start()
        until(lambda: pending(server) == {"orders": 2}, "kept and later wait")
        assert delivered(server, "orders") == ["fired"]
        for ident in (unchanged, later):
            change(server, "fire", ident)
        assert delivered(server, "orders") == ["fired", "kept", "later"]


@pytest.mark.slow
def test_a_backup_put_into_an_empty_directory_fires_there(tmp_path: Path) -> None:
    with running(tmp_path / "old") as server:
        once = add(server, "once", "--delay", "1h", "--key", "k")
        schedule = add(server, "again", "--delay", "1h", "--every", "2h", "--times", "3")
        change(server, "fire", schedule)
        shown = server.admin("GET", "delay", "messages", schedule)
        add(server, "soon", "--delay", "15s")  # so long nobody needs until the backup
        folder = server.admin("POST", "delay", "backup", body={"folder": "made"})["folder"]
    fresh = RealServer(tmp_path / "new")
    done = ddmq("delay", "restore", folder, "--data-dir", str(fresh.data_dir), "--json")
    assert done.returncode == 0, done.stderr
    assert '"way":"new log"' in done.stdout
    try:
        fresh.start()
        until(lambda: "soon" in delivered(fresh, "orders"), "what is due by now")
        assert delivered(fresh, "orders") == ["soon"]
        restored = fresh.admin("GET", "delay", "messages", schedule)
        assert (restored["due_ms"], restored["occurrence"]) == (shown["due_ms"], shown["occurrence"])
        assert restored["occurrence"] > 0, "it goes on where it was"
        change(fresh, "fire", once)
        assert delivered(fresh, "orders") == ["once", "soon"]
    finally:
        fresh.end()


@pytest.mark.slow
def test_a_backup_holds_the_shards_of_all_processes(tmp_path: Path) -> None:
    new = tmp_path / "new" / "data"
    with running(tmp_path) as server:
        folder = server.data_dir / "backups" / "of" / "today"
        for hours in range(1, 9):
            add(server, "x", "--delay", f"{hours}h")
        other = RealServer(tmp_path, command="delay-service")
        try:
            other.start()
            until(
                lambda: all(one.describe_own_shards()["elsewhere"] for one in (server, other)),
                "both have some",
            )
            until(lambda: not other.describe_own_shards()["health"]["reason"], "it fires")
            process = ddmq("delay", "backup", "of/today", "--admin", f"127.0.0.1:{other.ports['admin']}")
            assert process.returncode == 0, process.stderr
            for secret in ({}, {"secret": ""}, {"secret": "0" * 64}):
                body = {"folder": str(folder), "shards": [0], **secret}
                status, answer = other.request("POST", "/delay/backup", body)
                assert (status, "no backup 'today' is being made here" in answer["error"]) == (400, True)
        finally:
            other.end()
    done = ddmq("delay", "restore", str(folder), "--data-dir", str(new))
    assert done.stdout.startswith("8 messages wait"), done.stderr


@pytest.mark.slow
def test_a_backup_is_not_put_beside_another_log(tmp_path: Path) -> None:
    """Not beside that of another server, nor beside the log that a restore of it has begun: the same orders
    stand there in another sequence, and messages would be taken for fired."""
    new = str(tmp_path / "new")
    with running(tmp_path / "old") as server:
        for hours in range(9, 0, -1):
            add(server, f"{hours}", "--delay", f"{hours}h")
        folder = server.admin("POST", "delay", "backup", body={"folder": "made"})["folder"]
    with running(tmp_path / "other") as other:
        for hours in range(30):
            add(other, "x", "--delay", f"{hours + 1}h")
    (other.data_dir / "delay").rename(tmp_path / "away")
    assert ddmq("delay", "restore", folder, "--data-dir", new).returncode == 0
    for data_dir in (new, str(other.data_dir)):
        refused = ddmq("delay", "restore", folder, "--data-dir", data_dir)
        assert (refused.returncode, "is not of the log in" in refused.stderr) == (1, True), refused.stderr
        assert not (Path(data_dir) / "delay").exists()


@pytest.mark.slow
def test_an_interrupted_restore_is_not_mistaken_for_a_log(tmp_path: Path) -> None:
    with running(tmp_path / "old") as server:
        add(server, "tea", "--delay", "1h")
        folder = server.admin("POST", "delay", "backup", body={"folder": "made"})["folder"]
    (tmp_path / "new" / "commitlog").mkdir(parents=True)
    (tmp_path / "new" / "delay-restore").mkdir()
    refused = ddmq("delay", "restore", folder, "--data-dir", str(tmp_path / "new"))
    assert (refused.returncode, "was cut short" in refused.stderr) == (1, True), refused.stderr


def test_a_folder_without_a_backup_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    done = ddmq("delay", "restore", str(tmp_path / "x"), "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, "no whole backup" in done.stderr) == (1, True)
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
def test_one_admin_port_answers_for_all_processes(installation: Installation, tmp_path: Path) -> None:
    with running(tmp_path, processes=True, installation=installation) as server:
        ident = add(server, "tea", "--delay", "1h")
        assert server.admin("GET", "delay")["topics"] == {"orders": 1}
        assert server.admin("GET", "delay", "messages", ident)["body"] == "tea"
        status, page = server.request("GET", "/delay/messages?topic=orders&count=5")
        assert (status, [row["id"] for row in page["messages"]]) == (200, [ident])
        assert server.request("GET", "/delay/messages/nonsense")[0] == 400
        assert server.admin("POST", "delay", "backup", body={"folder": "b"})["shards"] > 0


def test_a_message_is_named_by_its_uuid_too_and_the_list_can_be_copied(shell, topic, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first, second, third = (added(shell, topic, "--delay", "1h", body=body)["id"] for body in ("a", "b", "c"))
    listed = shell("delay", "list", topic)
    assert all(any(ident[-36:] in line for line in listed.splitlines()) for ident in (first, second, third))
    assert "cancelled" in shell("delay", "cancel", first[-36:])
    assert "rescheduled" in shell("delay", "reschedule", second[-36:], "--delay", "2h")
    assert "fired" in shell("delay", "fire", third[-36:])


@pytest.mark.slow
def test_messages_of_a_shard_that_is_not_open_are_reported_missing(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        add(server, "x", "--delay", "1h")
        server.kill()
        store = min((server.data_dir / "delay").glob("0-*"))
        store.rename(tmp_path / "store")
        store.write_text("not a folder")
        server.launch()
        admin, producer = (f"127.0.0.1:{server.ports[component]}" for component in ("admin", "producer"))

        def counted() -> str:
            done = ddmq("delay", "count", "orders", "--admin", admin)
            return done.stdout + done.stderr if done.returncode == 0 else ""

        until(lambda: "shards 0 are not open" in counted(), "the others are open")
        assert "or more" in counted()
        done = ddmq(
            "delay",
            "cancel",
            "--topic",
            "orders",
            "--yes",
            "--admin",
            admin,
            "--producer",
            producer,
            "--json",
        )
        assert done.returncode == 1
        assert '"not_open":[0]' in done.stdout


def test_a_histogram_of_what_waits(shell, topic):
    shell("topic", "create", topic)
    for _ in range(3):
        added(shell, topic, "--delay", "90m")
    added(shell, topic, "--delay", "10h")
    until(lambda: shell.json("delay", "histogram", topic)["total"] == 4, "all are counted")
    answer = shell.json("delay", "histogram", topic)
    assert sum(item["count"] for item in answer["items"]) == 4
    output = shell("delay", "histogram", topic, "--from", "+1h", "--to", "+2h")
    assert "4 in all (1 after this time)" in output
    answer = shell.json("delay", "histogram", topic, "--from", "+1h", "--to", "+2h")
    assert (sum(item["count"] for item in answer["items"]), answer["after"]) == (3, 1)
    assert "allowed" not in shell.error
    shell("delay", "histogram", topic, "--steps", "201", code=2)
