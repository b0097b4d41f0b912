"""`ddmq changes`, `ddmq undo` and `ddmq dlq export` on a real server."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from ddmq_client import Admin, Consumer, Message
from ddmq_client.delays import DelayStatus
from tests.service.cli.conftest import Shell
from tests.support.waits import until


def newest(shell: Shell, name: str) -> str:
    """The id of the newest change whose object names this."""
    rows = shell.json("changes", "--count", "100")["items"]
    return next(str(row["id"]) for row in rows if name in row["object"])


def finish(shell: Shell, group: str, topic: str, count: int) -> list[str]:
    """The bodies that a group gets and acknowledges, until there are so many."""
    bodies: list[str] = []

    def handle(message: Message) -> None:
        bodies.append(message.text())

    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, group, [topic], handler=handle, linger_ms=50):
        until(lambda: len(bodies) >= count, "they come")
        until(lambda: sum(row["lag"] for row in shell.json("lag", group)) == 0, "nothing is left")
    return bodies


def test_closing_a_topic_is_undone(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    shell("topic", "set", topic, "--not-writable")
    shell("send", topic, "x", code=1)
    change_id = newest(shell, f"topic {topic}")
    assert "127.0.0.1" in shell("changes", change_id)
    assert "writable" in shell("changes", change_id)
    assert shell("undo", change_id, "--yes").startswith(f"topic {topic} is as it was before")
    shell("send", topic, "x")
    assert "was undone before" in shell.refused("undo", change_id, "--yes")
    assert "there is no change" in shell.refused("changes", "0" * 20)


def test_settings_of_a_subscription_are_undone_unless_they_changed_again(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    group = f"g-{topic}"
    shell("group", "set", group, "--topic", topic, "--concurrency", "7")
    shell("group", "set", group, "--topic", topic, "--concurrency", "9", "--ack-timeout-ms", "5000")
    first = newest(shell, group)
    shell("undo", first, "--yes")
    settings = shell.json("group", "show", group)["subscriptions"][0]
    assert (settings["settings"]["concurrency"], settings["set_here"]) == (7, ["concurrency"])
    shell("group", "pause", group)
    paused = newest(shell, group)
    shell("group", "set", group, "--topic", topic, "--concurrency", "11")
    assert "was changed meanwhile: settings is" in shell.refused("undo", paused, "--yes")
    assert shell.json("group", "show", group)["subscriptions"][0]["paused"]


def test_a_reset_of_offsets_is_undone(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "2")
    group = f"g-{topic}"
    shell("group", "set", group, "--topic", topic, "--start", "first")
    for number in range(6):
        shell("send", topic, str(number), "--queue", str(number % 2))
    assert len(finish(shell, group, topic, 6)) == 6

    def committed() -> list[int]:
        return [row["committed"] for row in shell.json("offset", "show", group)]

    until(lambda: committed() == [3, 3], "it is stored")
    shell("offset", "reset", group, "--topic", topic, "--to", "first", "--yes")
    assert committed() == [0, 0]
    change_id = newest(shell, f"offsets of group {group}")
    shell("undo", change_id, "--yes")
    assert committed() == [3, 3]
    again = newest(shell, f"offsets of group {group}")
    shell("offset", "reset", group, "--topic", topic, "--to", "1", "--queue", "1", "--yes")
    assert "queue 1 were reset again" in shell.refused("undo", again, "--yes")
    assert committed() == [3, 1]


def test_dead_letters_are_exported_and_the_export_is_resumed(
    shell: Shell, topic: str, tmp_path: Path
) -> None:
    group = f"g-{topic}"
    shell("topic", "create", topic)
    settings = {"topics": [topic], "start": "first", "retry_steps": 0, "retry_intervals_ms": []}
    shell.server.admin("POST", "groups", group, body=settings)
    for body in ("one", "two", "three"):
        shell("send", topic, body, "--queue", "0")
    failed: list[bytes] = []
    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", group, [topic], linger_ms=50) as consumer:
        while len(failed) < 3:
            for message in consumer.pull(10, timeout_ms=200):
                failed.append(message.body)
                message.fail()
        until(
            lambda: sum(row["letters"] for row in shell.json("dlq", "list", group)) == 3,
            "they are dead letters",
        )
    path = tmp_path / "letters.ndjson"
    assert shell("dlq", "export", group, "--output", str(path)).startswith("exported 3 dead letters")
    lines = path.read_text().splitlines(keepends=True)
    assert [json.loads(line)["body"] for line in lines] == ["one", "two", "three"]
    assert "--resume continues it" in shell.refused("dlq", "export", group, "--output", str(path))
    path.write_text(lines[0] + lines[1][:20])  # as after a kill
    answer = shell.json("dlq", "export", group, "--output", str(path), "--resume")
    assert answer == {"group": group, "output": str(path), "exported": 2}
    assert path.read_text() == "".join(lines)
    path.write_text("")
    assert shell.json("dlq", "export", group, "--output", str(path), "--resume")["exported"] == 3
    assert path.read_text() == "".join(lines)
    path.write_text("no letters\n")
    error = shell.refused("dlq", "export", group, "--output", str(path), "--resume")
    assert error == "the last line of the file is no exported dead letter"
    shell("dlq", "resend", group, "--all")
    changes = shell.json("changes")["items"]
    assert (changes[0]["object"], changes[0]["after"]["resent"]) == (f"dead letters of {group}", {topic: 3})
    shell("dlq", "resend", group, "--all")
    shell("dlq", "purge", group, "--all", "--yes")
    assert shell.json("changes")["items"] == changes, "nothing was resent or purged"


def test_the_admin_client_plans_starts_and_undoes(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    ids = [
        shell.json("delay", "add", topic, body, "--delay", "1h")["results"][0]["id"]
        for body in ("a", "b", "c")
    ]
    with Admin(f"127.0.0.1:{shell.server.ports['admin']}") as admin:
        assert admin.hold_delay(ids[0]).status is DelayStatus.HELD
        assert [message.is_held for message in admin.list_delays(topic=topic)] == [True, False, False]
        plan = admin.plan_operation("delays", "hold", topic=topic)
        assert (plan.counted, plan.skipped, plan.state) == (2, {"it is held already": 1}, "planned")
        assert plan.token is not None
        assert admin.start_operation(plan.id, plan.token, rate=1000).started_at is not None
        until(lambda: admin.get_operation(plan.id).state == "done", "it ends")
        assert admin.get_operation(plan.id).changed == 2
        assert all(message.is_held for message in admin.list_delays(topic=topic))
        assert plan.id in [row.id for row in admin.list_operations()]
        far = admin.plan_operation("delays", "reschedule", topic=topic, shift=timedelta(days=3000))
        assert (far.counted, far.skipped) == (0, {"the change is not allowed": 3})
        assert admin.release_delay(ids[0]).status is DelayStatus.RELEASED
        admin.update_topic(topic, writable=False)
        change = admin.list_changes(limit=1)[0]
        assert (change.object, change.undoable, change.before["writable"]) == (f"topic {topic}", True, True)
        assert admin.undo_change(change.id).undoes == change.id
        assert admin.get_topic(topic).writable
        assert isinstance(admin.list_findings(), list)
        assert admin.find_keys(text=f"none of {topic}") == []
