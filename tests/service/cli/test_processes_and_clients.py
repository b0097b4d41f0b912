"""`ddmq processes`, `ddmq clients` and `ddmq config running` on a real server."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddmq_client import Consumer, Producer
from tests.scenarios.real_server import RealServer, running, write_config
from tests.service.cli.conftest import Shell
from tests.support.installations import Installation
from tests.support.waits import until


def test_a_process_states_what_it_is_and_owns(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "2")
    shell("group", "set", topic, "--topic", topic, "--start", "first")
    shell("send", topic, "one")
    shell("pull", topic, "--group", topic)
    until(lambda: owned(shell, topic) == 2, "it owns the queues")
    (row,) = shell.json("processes")["items"]
    assert set(row["parts"]) == {"producer", "consumer", "delay", "admin"}
    assert row["addresses"]["admin"] == f"127.0.0.1:{shell.server.ports['admin']}"
    assert row["memory_bytes"] > 10 << 20
    assert row["cpu_s"] > 0
    assert abs(time.time() * 1000 - row["since_ms"]) < 3_600_000
    assert row["pid"] != os.getpid()
    assert row["version"] in shell("processes")


def owned(shell: Shell, group: str) -> int:
    (row,) = shell.json("processes")["items"]
    return sum(each["queues"] for each in row["subscriptions"] if each["group"] == group)


def test_clients_are_listed_page_by_page(shell: Shell, topic: str) -> None:
    shell("topic", "create", topic, "--queues", "1")
    address, groups = f"127.0.0.1:{shell.server.ports['consumer']}", [f"{topic[:40]}-{n}" for n in range(3)]
    consumers = [Consumer(address, group, topic, handler=str) for group in groups]
    try:
        for consumer in consumers:
            consumer.start()
        with Producer(f"127.0.0.1:{shell.server.ports['producer']}") as producer:
            producer.send(topic, b"one")
            until(lambda: {row.get("group") for row in clients(shell)} >= set(groups), "all have pulled")
            producers = [row for row in clients(shell) if row["kind"] == "producer"]
            assert [row["address"] for row in producers] == ["127.0.0.1"]
        first = shell.json("clients", groups[0])
        assert [row["topics"] for row in first["items"]] == [[topic]]
        assert first["items"][0]["client_id"] in shell("clients", groups[0])
        by_text = shell.json("clients", "--text", groups[1])
        assert ([row["group"] for row in by_text["items"]], by_text["total"]) == ([groups[1]], 1)
        seen, after = [], None
        while True:
            page = shell.json("clients", "--count", "1", *(["--after", after] if after else []))
            seen += [row.get("group", "") for row in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert seen == [row.get("group", "") for row in clients(shell)]
        assert "after is" in (shell("clients", "--after", "x", code=1) or shell.error)
    finally:
        for consumer in consumers:
            consumer.stop()


def clients(shell: Shell) -> list[dict[str, object]]:
    return list(shell.json("clients")["items"])


def test_the_settings_of_a_running_process(shell: Shell) -> None:
    answer = shell.json("config", "running")
    sources = {row["key"]: row["source"] for row in answer["items"]}
    assert answer["total"] == len(sources) > 50
    assert sources["ddmq.data_dir"] == "command line"
    assert "default" in sources.values()
    changed = shell.json("config", "running", "--changed")["items"]
    assert all(row["changed"] for row in changed)
    assert "ddmq.data_dir" in shell("config", "running", "--changed")


@pytest.mark.slow
def test_several_servers_list_the_processes_of_all(installation: Installation, tmp_path: Path) -> None:
    config = write_config(tmp_path / "conf")
    with running(tmp_path / "data", config, installation=installation) as server:
        other = RealServer(tmp_path / "data", config, command="delay-service", installation=installation)
        try:
            other.start()
            for each in (server, other):
                until(
                    lambda each=each: len(each.admin("GET", "processes")["items"]) == 2,
                    "each knows the other by its shards",
                )
            items = server.admin("GET", "processes")["items"]
            shards = [shard for row in items for shard in row["delay_shards"]]
            assert len(shards) == len(set(shards)) > 0
        finally:
            other.end()
