"""`ddmq group …` against a real server: settings change at once, one by one, and say what they do."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import Admin, Consumer
from ddmq_client.errors import PullError
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.cli.conftest import Shell
from tests.support.installations import Installation
from tests.support.waits import until


@pytest.mark.parametrize("group_exists", [False, True])
def test_a_costly_pattern_in_front_of_a_pull_is_rejected_when_it_is_set(
    shell: Shell, topic: str, group_exists: bool
) -> None:
    path, script = f"/groups/{topic}/topics/{topic}", {"filter": "!text.matches('a.{0,200}b.{0,200}c')"}
    if group_exists:
        assert shell.server.request("POST", path, {"batch_max": 3})[0] == 200
    for actions, status in ((["Script", "PullServer"], 400), (["Script", "File"], 200)):
        answered_status, answer = shell.server.request(
            "POST", path, {"actions": actions, "push": {"script": script}}
        )
        assert answered_status == status
        assert status == 200 or "'a.{0,200}b.{0,200}c' may take" in answer["error"]
    assert shell.server.request("POST", path, {"actions": ["Script", "PullServer"]})[0] == 400


def test_a_connected_client_feels_a_changed_setting(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first")
    got: list[bytes] = []
    address = f"127.0.0.1:{shell.server.ports['consumer']}"
    with Consumer(address, topic, topic, handler=lambda message: got.append(message.body)):
        shell("send", topic, "one")
        until(lambda: got == [b"one"], "the first message")
        shell("group", "set", topic, "--topic", topic, "--tags", "wanted")
        shell("send", topic, "two", "--tags", "other")
        shell("send", topic, "three", "--tags", "wanted")
        until(lambda: got == [b"one", b"three"], "only what is wanted now")
        shell("group", "set", topic, "--topic", topic, "--unset", "tags")
        shell("send", topic, "four", "--tags", "other")
        until(lambda: got == [b"one", b"three", b"four"], "everything again")
        until(lambda: shell.json("group", "show", topic)["subscriptions"][0]["lag"] == 0, "all is finished")


def test_a_tag_that_looks_like_several_is_set_with_a_note(shell: Shell, topic: str) -> None:
    note = "note: this is one tag named 'new,paid'; for either tag write new || paid"
    one_tag, either = ("--topic", topic, "--tags", "new,paid"), ("--topic", topic, "--tags", "new || paid")
    shell("topic", "create", topic)
    for command, noted in (("create", True), ("create", False), ("set", True)):
        shell("group", command, topic, *one_tag)
        assert (note in shell.error.splitlines()) is noted  # the second `create` changes nothing
    shell("group", "set", topic, *either)
    assert "note" not in shell.error
    shell("pull", topic, "--group", f"{topic}-pulled", "--tags", "new,paid")
    assert note in shell.error.splitlines()
    with Admin(f"127.0.0.1:{shell.server.ports['admin']}") as admin:
        group = admin.create_group(f"{topic}-created", topic, tags="a && b")
    assert group.notes == ("this is one tag named 'a && b'; for either tag write a || b",)
    assert group.subscriptions[0].settings["tags"] == "a && b"


@pytest.fixture
def configured(installation: Installation, tmp_path: Path) -> Iterator[tuple[RealServer, Path]]:
    config = write_config(
        tmp_path / "conf",
        proxy_consumer={"defaults": {"concurrency": 77, "batch_max": 7}},
        groups={"groups": {"g": {"topics": {"t": {"batch_max": 9}}}}},
    )
    with running(tmp_path, config, installation=installation) as server:
        yield server, config


def in_force(server: RealServer, group: str) -> dict[str, object]:
    return dict(server.admin("GET", "groups", group)["subscriptions"][0]["settings"])


def test_settings_from_files_are_reloaded_and_only_files_change_them(
    configured: tuple[RealServer, Path],
) -> None:
    server, config = configured
    now = in_force(server, "g")
    assert (now["concurrency"], now["batch_max"]) == (77, 9), "over the defaults of proxy_consumer.yaml"
    status, answer = server.request("POST", "/groups/g/topics/t", {"batch_max": 1})
    assert status == 400
    assert all(text in answer["error"] for text in ("groups.yaml", "groups.g.topics.t", "reload"))
    assert server.request("DELETE", "/groups/g")[0] == 400
    server.admin("POST", "groups", "own", "topics", "t", body={"batch_max": 3})
    write_config(
        config,
        proxy_consumer={"defaults": {"concurrency": 78}, "answer_bytes_max": 60_000, "idle_ms": 50_000},
        proxy_producer={"topic_rate": {"messages_per_s": 1000.0}},
        groups={"groups": {"g": {"topics": {"t": {"rate_max": 5}}}}},
    )
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "reloaded" in server.log, "it says so")
    (line,) = [line for line in server.log.splitlines() if " reloaded" in line]
    for text in (
        "consumer.idle_ms",
        "consumer.defaults",
        "producer.topic_rate",
        "at_the_next_start=consumer.answer_bytes_max",
    ):
        assert text in line, line
    now = in_force(server, "g")
    assert (now["concurrency"], now["batch_max"], now["rate_max"]) == (78, 100, 5)
    own = in_force(server, "own")
    assert (own["concurrency"], own["batch_max"]) == (78, 3)


def test_what_leaves_the_file_belongs_to_the_command_line(configured: tuple[RealServer, Path]) -> None:
    server, config = configured
    write_config(config, groups={"groups": {}})
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "no longer in the file" in server.log, "it says so")
    until(
        lambda: server.request("POST", "/groups/g/topics/t", {"batch_max": 1})[0] == 200, "it may be changed"
    )
    assert in_force(server, "g")["batch_max"] == 1


def test_an_invalid_group_in_the_file_changes_nothing(configured: tuple[RealServer, Path]) -> None:
    server, config = configured
    write_config(
        config,
        proxy_consumer={"defaults": {"concurrency": 1}},
        groups={"groups": {"g": {"topics": {"t": {"batch_max": 0}}}}},
    )
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "not reloaded" in server.log, "it says that not")
    (line,) = [line for line in server.log.splitlines() if "not reloaded" in line]
    assert all(text in line for text in ("groups.yaml:", "groups.g.topics.t.batch_max", "1 to 10000"))
    assert in_force(server, "g")["concurrency"] == 77


def test_show_counts_dead_letters_of_a_subscription(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    shell("group", "set", topic, "--topic", topic, "--start", "first", "--order-key", "KEY",
          "--ordered-deliveries-max", "1")  # fmt: skip
    shell("send", topic, "one", "--key", "a")

    def fail(_: object) -> None:
        raise RuntimeError("never")

    with Consumer(f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, handler=fail):
        until(lambda: " 1 since this proxy started" in shell("group", "show", topic), "it is counted")


def test_show_names_clients_that_subscribe_differently(shell: Shell, topic: str) -> None:
    shell("group", "set", topic, "--topic", topic, "--tags", "a || b")
    assert shell.json("group", "show", topic)["differences"] == []
    with Consumer(
        f"127.0.0.1:{shell.server.ports['consumer']}", topic, topic, tags="a", auto_ack=False,
        client_id="forgetful",
    ) as client:  # fmt: skip
        with pytest.raises(PullError):
            client.pull(1, timeout_ms=5_000)
        (difference,) = shell.json("group", "show", topic)["differences"]
        assert (difference["client_id"], difference["topic"]) == ("forgetful", topic)
        output = shell("group", "show", topic)
    assert "clients that subscribe differently" in output
    assert "forgetful" in output.partition("clients that subscribe differently")[2]


def test_the_query_of_a_url_is_masked_everywhere(shell: Shell, server: RealServer, topic: str) -> None:
    """It may be a key or a token. Where the URL is changed, the answer masks it, too."""
    shell("topic", "create", topic)
    push = {"http": {"urls": ["http://hooks.example/in?apikey=s3cret&x=1"], "signing_key": "s3cret"}}
    change = {"actions": ["FormParams", "AsyncHttp"], "push": push}
    status, answer = server.request("POST", f"/groups/{topic}/topics/{topic}", change)
    assert status == 200, answer
    shown = [repr(answer), shell("group", "show", topic, "--json"), shell("group", "show", topic)]
    shown += [shell("group", "list", "--json"), shell("group", "set", topic, "--topic", topic, "--json")]
    shown += [repr(server.request("GET", path)) for path in (f"/groups/{topic}", "/groups")]
    path = f"/groups/{topic}/topics/{topic}"
    changed = server.request("POST", path, {**change, "paused": True})[1]
    other = {"http": {"urls": ["http://hooks.example/in?apikey=s3cret"], "signing_key": "s3cret-2"}}
    server.request("POST", path, {"push": other})
    change_path = f"/changes/{changed['undo']}"
    shown += [repr(server.request("GET", path)) for path in ("/changes", change_path)]
    shown.append(repr(server.request("POST", f"{change_path}/undo")))
    shown += [repr(changed), shell("changes"), shell("changes", "--json")]
    assert "apikey=***" in shown[7]
    assert "was changed meanwhile" in shown[9]
    assert "http://hooks.example/in?apikey=***&x=***" in shown[1]
    assert "http://hooks.example/in?apikey=***&x=***" in shown[5]
    assert [each for each in shown if "s3cret" in each] == []


def test_a_paused_group_says_so_everywhere(shell: Shell, topic: str) -> None:
    other = f"{topic}-u"
    for name in (topic, other):
        shell("topic", "create", name, "--queues", "1")
    shell("group", "create", topic, "--topic", topic, "--topic", other, "--start", "first")
    shell("send", topic, "one")
    assert shell("group", "pause", topic, "--topic", topic) == f"paused {topic} on {topic}\n"
    assert shell("group", "pause", topic) == (
        f"{topic} on {topic} is paused already\npaused {topic} on {other}\n"
    )
    assert shell("group", "resume", topic, "--topic", other) == f"resumed {topic} on {other}\n"
    resume = f"`ddmq group resume {topic} --topic {topic}`"
    assert f"nothing is delivered until {resume}" in shell("group", "show", topic)
    assert f"nothing is delivered: {resume}" in shell("lag", topic)
    assert "paused" in shell("lag", topic).splitlines()[0]
    assert "paused" in shell("group", "list").splitlines()[0]
    (paused_line,) = [line for line in shell("stats").splitlines() if line.startswith("paused, nothing is")]
    assert f"{topic} on {topic}" in paused_line or paused_line.endswith("…")  # others are first
    for command in (("lag", topic), ("group", "list")):
        rows = {row["topic"]: row for row in shell.json(*command) if row["group"] == topic}
        assert (rows[topic]["paused"], rows[other]["paused"]) == (True, False)
        assert rows[topic]["paused_since_ms"] > 1_000_000_000_000
        assert rows[other]["paused_since_ms"] is None
        assert rows[topic].get("consumed") is None
    assert "NOBODY CONSUMES" not in shell("group", "show", topic)
    with Admin(f"127.0.0.1:{shell.server.ports['admin']}") as admin:
        described = {each.topic: each for each in admin.get_group(topic).subscriptions}
        assert described[topic].paused
        assert described[topic].paused_since is not None
        assert not described[other].paused
        assert shell.server.metric("ddmq_subscription_paused", group=topic) == 1
    assert shell("pull", topic, "--group", topic) == ""
    assert resume in shell.error
    assert shell("group", "set", topic, "--topic", topic, "--no-paused") == "paused: yes → no\n"
    assert shell("group", "resume", topic, "--topic", topic) == f"{topic} on {topic} is not paused\n"
    assert "one" in shell("pull", topic, "--group", topic)


def test_only_what_a_group_consumes_can_be_paused(shell: Shell, topic: str) -> None:
    shell("group", "create", topic, "--topic", topic)
    assert shell.refused("group", "pause", topic, "--topic", "other") == (
        f"group {topic} does not consume topic other; it consumes: {topic}"
    )
    assert "does not exist" in shell.refused("group", "pause", f"{topic}-none")
    for value in ("yes", 1, None, [True]):
        status, answer = shell.server.request("POST", f"/groups/{topic}/topics/{topic}", {"paused": value})
        assert (status, "allowed: true, false" in answer["error"]) == (400, True)
    assert not shell.json("lag", topic)[0]["paused"]
    shell("group", "delete", topic, "--topic", topic, "--yes")
    assert shell.refused("group", "pause", topic) == f"group {topic} consumes no topic"


def test_a_group_of_a_file_is_paused_over_a_reload_and_a_restart(
    configured: tuple[RealServer, Path],
) -> None:
    server, config = configured
    server.admin("POST", "groups", "g", "topics", "t", body={"paused": True})
    write_config(config, groups={"groups": {"g": {"topics": {"t": {"batch_max": 8}}}}})
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: in_force(server, "g")["batch_max"] == 8, "reloaded")
    assert server.admin("GET", "groups")[0]["paused"]
    server.kill()
    server.start()
    assert server.admin("GET", "groups")[0]["paused"]
    server.admin("POST", "groups", "g", "topics", "t", body={"paused": False})
    assert not server.admin("GET", "groups")[0]["paused"]
