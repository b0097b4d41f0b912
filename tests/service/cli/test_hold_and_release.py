"""`ddmq delay hold` and `release` on real servers: what they show, and what outlives a kill -9."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

from ddmq_client import Admin, Producer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.cli.conftest import Shell
from tests.support.installations import Installation
from tests.support.waits import until


def bodies(server: RealServer, topic: str) -> list[str]:
    rows = server.request("GET", f"/topics/{topic}/messages?count=1000")[1]
    return sorted(row["body"] for row in rows)


def test_a_held_topic_says_so_everywhere(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    text = f"the delays of {topic} are held since "
    assert shell("delay", "hold", topic).startswith(text)
    since_ms = shell.json("topic", "show", topic)["delays_held_since_ms"]
    assert abs(since_ms - time.time() * 1000) < 60_000
    shell("delay", "add", topic, "tea", "--delay", "1ms")
    shell("delay", "hold", topic)
    assert shell.json("topic", "show", topic)["delays_held_since_ms"] == since_ms, "since it was held first"
    until(lambda: shell.server.metric("ddmq_delay_aside_total", topic=topic) == 1, "it is due")
    for command in (("delay", "count"), ("delay", "count", topic), ("delay", "list", topic)):
        assert text in shell(*command)
        assert shell.json(*command)["held"][topic] == since_ms
    assert shell.json("delay", "count", topic)["count"] == 1
    assert "held" in shell("topic", "show", topic)
    assert topic not in shell.json("delay", "list", f"{topic}-other")["held"]
    until(lambda: shell.server.metric("ddmq_delay_held", topic=topic) == 1, "the gauge")
    with Admin(f"127.0.0.1:{shell.server.ports['admin']}") as admin:
        described = admin.get_topic(topic)
        assert described.hold_delays
        assert described.delays_held_since is not None
        admin.update_topic(topic, hold_delays=True)
    assert bodies(shell.server, topic) == []
    assert shell("delay", "release", topic) == f"released the delays of {topic}\n"
    until(lambda: bodies(shell.server, topic) == ["tea"], "it fires")
    assert shell("delay", "release", topic) == f"the delays of {topic} are not held\n"
    assert text not in shell("delay", "count")
    until(lambda: shell.server.metric("ddmq_delay_held", topic=topic) == 0, "the gauge")


def test_what_is_held_can_be_cancelled_and_moved(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    shell("topic", "set", topic, "--hold-delays")
    ids = [
        shell.json("delay", "add", topic, body, "--delay", "1ms")["results"][0]["id"]
        for body in ("cancelled", "moved", "fires")
    ]
    until(lambda: shell.server.metric("ddmq_delay_aside_total", topic=topic) == 3, "all are due")
    assert shell("delay", "cancel", ids[0]).strip() == "cancelled"
    assert shell("delay", "reschedule", ids[1], "--delay", "1h").startswith("rescheduled")
    assert shell.json("delay", "show", ids[2])["state"] == "pending"
    shell("topic", "set", topic, "--no-hold-delays")
    until(lambda: bodies(shell.server, topic) == ["fires"], "only that")
    assert shell.json("delay", "count", topic)["count"] == 1


def test_a_held_message_waits_while_others_fire(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic)
    first, second = (
        shell.json("delay", "add", topic, body, "--delay", "1h")["results"][0]["id"]
        for body in ("tea", "jam")
    )
    assert shell("delay", "hold", first).startswith("held, due ")
    assert shell.json("delay", "hold", first, second)[1]["outcome"] == "held"
    assert shell("delay", "release", second).startswith("released, due ")
    for delay_id in (first, second):
        assert shell("delay", "reschedule", delay_id, "--delay", "1ms").startswith("rescheduled")
    until(lambda: bodies(shell.server, topic) == ["jam"], "what is not held")
    row = shell.json("delay", "show", first)
    assert (row["state"], row["held"], "held" in shell("delay", "show", first)) == ("pending", True, True)
    (listed,) = shell.json("delay", "list", topic)["messages"]
    assert (listed["id"], listed["held"], listed["due_ms"]) == (first, True, row["due_ms"])
    assert "(held)" in shell("delay", "list", topic)
    assert shell.json("delay", "count", topic, "--to", "+0s")["count"] == 1, "its due time is as it was"
    notes = shell.json("message", "--id", row["message_id"], "--story")["notes"]
    assert any("an operator holds it" in note for note in notes)
    answer = shell.json("delay", "fire", first, code=1)[0]
    assert (answer["outcome"], answer["text"]) == ("pending", "it is held; it fires when it is released")
    assert shell("delay", "release", first).startswith("released, due ")
    until(lambda: bodies(shell.server, topic) == ["jam", "tea"], "it fires at once")
    assert "already fired" in shell("delay", "hold", first, code=1)
    assert "give one TOPIC, or IDS" in shell.refused("delay", "hold", topic, topic, code=2)


def test_only_the_delays_of_topics_that_exist_can_be_held(shell: Shell, topic: str) -> None:
    assert "does not exist" in shell.refused("delay", "hold", f"{topic}-none")
    assert "belongs to the system" in shell.refused("delay", "hold", "%DELAY")
    shell("topic", "create", topic)
    for value in ("yes", 1, 0, [], {}):
        status, answer = shell.server.request(
            "POST", f"/topics/{topic}", {"create": False, "hold_delays": value}
        )
        assert (status, "allowed: true, false" in answer["error"]) == (400, True)
    assert not shell.json("topic", "show", topic)["hold_delays"]
    shell("delay", "hold", topic)
    shell("topic", "delete", topic, "--yes")
    shell("topic", "create", topic)
    assert not shell.json("topic", "show", topic)["hold_delays"], "a new topic under the name is not held"


def test_a_topic_of_a_file_can_be_held_over_a_reload(tmp_path: Path, installation: Installation) -> None:
    config = write_config(tmp_path / "conf", topics={"topics": {"owned": {"queues": 1}}})
    with running(tmp_path, config, installation=installation) as server:
        server.admin("POST", "topics", "owned", body={"create": False, "hold_delays": True})
        write_config(config, topics={"topics": {"owned": {"queues": 2}}})
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: server.admin("GET", "topics", "owned")["queues"] == 2, "reloaded")
        assert server.admin("GET", "topics", "owned")["hold_delays"]


def test_nothing_is_lost_or_fired_twice_by_kills_during_a_hold_and_a_release(
    tmp_path: Path, installation: Installation
) -> None:
    count = 400
    with running(tmp_path, installation=installation) as server:
        server.admin("POST", "topics", "t", body={"queues": 1})
        server.admin("POST", "topics", "other", body={"queues": 1})
        server.admin("POST", "topics", "t", body={"create": False, "hold_delays": True})
        with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
            for number in range(count):
                producer.send("t", b"%d" % number, delay=timedelta(milliseconds=number + 1))
            producer.send("other", b"other", delay=timedelta(milliseconds=1))
        until(lambda: bodies(server, "other") == ["other"], "other topics fire")
        for _ in range(2):
            server.kill()
            server.start()
            assert server.admin("GET", "topics", "t")["hold_delays"]
            until(lambda: server.admin("GET", "delay")["topics"] == {"t": count}, "all wait")
            assert bodies(server, "t") == []
        server.admin("POST", "topics", "t", body={"create": False, "hold_delays": False})
        server.kill()
        server.start()
        until(lambda: len(bodies(server, "t")) >= count, "all fire")
        until(lambda: server.admin("GET", "delay")["topics"] == {}, "nothing waits")
        assert Counter(bodies(server, "t")) == Counter(map(str, range(count)))


def test_a_held_message_survives_kills_and_fires_once_after_its_release(
    tmp_path: Path, installation: Installation
) -> None:
    with running(tmp_path, installation=installation) as server:
        server.admin("POST", "topics", "t", body={"queues": 1})
        with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
            held = producer.send("t", b"held", delay=timedelta(seconds=30)).delay_id
            producer.send("t", b"free", delay=timedelta(milliseconds=1))
        path = ("delay", "messages", held)
        assert server.admin("POST", *path, body={"action": "hold"})["outcome"] == "held"
        server.kill()
        server.start()
        assert server.admin("POST", *path, body={"action": "reschedule", "delay_ms": 0})["due_ms"]
        until(lambda: bodies(server, "t") == ["free"], "only that")
        for _ in range(2):
            server.kill()
            server.start()
            assert server.admin("GET", *path)["held"]
            assert bodies(server, "t") == ["free"]
        assert server.admin("POST", *path, body={"action": "release"})["outcome"] == "released"
        server.kill()
        server.start()
        until(lambda: len(bodies(server, "t")) >= 2, "it fires")
        until(lambda: server.admin("GET", "delay")["topics"] == {}, "nothing waits")
        assert bodies(server, "t") == ["free", "held"]
