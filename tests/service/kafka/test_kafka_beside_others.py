"""docs/kafka.md followed word by word on a cluster that other programs use: nothing of theirs changes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ddmq.trial.cluster import TrialCluster
from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError
from tests.scenarios.real_server import RealServer, ddmq, ddmq_command
from tests.service.kafka.cluster_kit import KafkaServer, Tools, kill
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
START_S = 300.0  # three brokers on a busy machine
INVOICES, CLICKS = "invoices.v1", "clicks"
OWN_GROUPS = ("%DELAY", "SCHEDULE_TOPIC_XXXX")  # by which delays go
TOPICS = {
    INVOICES: {"cleanup_policy": "compact", "min_compaction_lag_ms": "86400000"},
    CLICKS: {"retention_ms": "7200000", "message_timestamp_type": "CreateTime"},
}
SENT: dict[str, list[tuple[bytes | None, Any]]] = {
    INVOICES: [(b"a", b"1"), (b"b", None), (b"c", b"3"), (b"d", b"4")],
    CLICKS: [(None, b"x" * 200), (None, b"y" * 200), (b"k", b"z")],
}
REPORTING, LIVE = "reporting", "live"  # a group whose program is stopped, and one that runs all the time


def committed(consumer: Consumer, partition: TopicPartition) -> bool:
    """Whether that could be committed: coordinators move while a cluster starts."""
    try:
        consumer.commit(offsets=[partition], asynchronous=False)
    except KafkaException:
        return False
    return True


class Others:
    """What other programs have in the cluster, and do."""

    def __init__(self, bootstrap: str) -> None:
        self.tools = Tools(bootstrap)
        self.settings = {"bootstrap.servers": bootstrap, "enable.auto.commit": False}
        for name, config in TOPICS.items():
            self.tools.make(name, 3, **config)
            compression = "lz4" if name == INVOICES else "zstd"
            self.tools.send(name, SENT[name], **{"compression.type": compression, "linger.ms": 50})
        stopped = self._member(REPORTING)
        for name in TOPICS:
            until(lambda name=name: committed(stopped, TopicPartition(name, 0, 1)), "its offset stands")
        stopped.close()
        self.live = self._member(LIVE)
        self.live.subscribe(list(TOPICS))
        until(lambda: (self.live.poll(0.1), len(self.live.assignment()) == 6)[1], "it has its partitions")
        until(lambda: committed(self.live, TopicPartition(CLICKS, 1, 0)), "its offset stands")

    def _member(self, group: str) -> Consumer:
        patient = {"session.timeout.ms": 60_000, "max.poll.interval.ms": 3_600_000}
        return Consumer({**self.settings, **patient, "group.id": group})

    def close(self) -> None:
        self.live.close()

    def all_topics(self) -> set[str]:
        return set(self.tools.admin.list_topics(timeout=30).topics)

    def groups(self) -> set[str]:
        listing = self.tools.admin.list_consumer_groups(request_timeout=30).result()
        return {group.group_id for group in listing.valid}

    def offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
        """Where one stands. (The admin client may end the process: commits/offset_mirror.py.)"""
        reader = self._member(group)
        partitions = [TopicPartition(name, number) for name in TOPICS for number in range(3)]
        offsets = reader.committed(partitions, 30)
        reader.close()
        return {
            (committed.topic, committed.partition): (committed.offset, committed.metadata)
            for committed in offsets
            if committed.offset >= 0
        }

    def members(self, group: str) -> list[str]:
        [answer] = self.tools.admin.describe_consumer_groups([group]).values()
        description = answer.result()
        return [str(description.state), *sorted(member.member_id for member in description.members)]

    def facts(self) -> dict[str, Any]:
        """All that must stay as it is."""
        ends = {
            (name, number): self.live.get_watermark_offsets(TopicPartition(name, number), timeout=30)
            for name in TOPICS
            for number in range(3)
        }
        groups = {group: (self.offsets(group), self.members(group)) for group in (REPORTING, LIVE)}
        assigned = sorted((partition.topic, partition.partition) for partition in self.live.assignment())
        configs = {name: (self.tools.count(name), self.tools.config(name)) for name in TOPICS}
        return {"ends": ends, "groups": groups, "assigned": assigned, "configs": configs}


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.fixture
def bootstrap(tmp_path: Path) -> Iterator[str]:
    """`ddmq kafka up --brokers 3`, and `down`."""
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    folder = tmp_path / "kafka-trial"
    below = range(10_000 + os.getpid() % 10_000, 32_000, 6)  # what connections of others are given
    first = next(port for port in below if all(map(is_free, range(port, port + 6))))
    try:
        words = ddmq_command("kafka", "up", "--brokers", "3", "--dir", str(folder), "--port", str(first))
        up = subprocess.run(words, capture_output=True, text=True, timeout=START_S, check=False)
        assert up.returncode == 0, up.stderr
        assert ddmq("kafka", "status", "--dir", str(folder)).returncode == 0
        yield up.stdout.strip()
        down = ddmq("kafka", "down", "--dir", str(folder))
        assert down.returncode == 0, down.stderr
    finally:
        kill(TrialCluster(folder))


class Commands:
    """The commands of the page, at one server. Gives what they print."""

    def __init__(self, server: RealServer) -> None:
        at = {name: f"127.0.0.1:{port}" for name, port in server.ports.items()}
        self._sending = ("--producer", at["producer"])
        self._pulling = ("--consumer", at["consumer"], "--admin", at["admin"])
        self._admin = ("--admin", at["admin"])

    def run(self, *words: str) -> str:
        by_kind = {"send": self._sending, "delay": self._sending, "pull": self._pulling}
        result = ddmq(*words, *by_kind.get(words[0], self._admin))
        assert result.returncode == 0, (words, result.stdout, result.stderr)
        return result.stdout

    def pull(self, topic: str, group: str, count: int = 1) -> list[str]:
        """The bodies of all that there is, `count` at least: a pull may end before a slow broker answers."""
        bodies: list[str] = []

        def more() -> bool:
            output = self.run("pull", topic, "--group", group, "--json")
            bodies.extend(json.loads(row)["body"] for row in output.splitlines())
            return len(bodies) >= count

        until(more, lambda: f"{count} messages of {topic} for {group}, so far {bodies}", START_S)
        return sorted(bodies)


def test_a_new_user_disturbs_no_other(bootstrap: str, tmp_path: Path) -> None:
    others = Others(bootstrap)
    before, topics, groups = others.facts(), others.all_topics(), others.groups()
    server = KafkaServer(tmp_path / "ours", bootstrap, session_ms=20_000)  # a busy machine holds it up
    try:
        server.start()
        shell = Commands(server)
        shell.run("send", "orders", "hello", "--key", "k")
        assert shell.pull("orders", "billing") == ["hello"]
        shell.run("delay", "add", "orders", "later", "--delay", "1s")
        assert shell.pull("orders", "billing") == ["later"]
        shell.run("send", "orders", "bad")
        shell.run("pull", "orders", "--group", "billing", "--fail", "no such customer")

        names = {row["topic"] for row in json.loads(shell.run("topic", "list", "--json"))}
        assert {"orders", "clicks", "invoices%2Ev1"} <= names
        for group in ("ours", REPORTING, LIVE):
            assert shell.pull("invoices%2Ev1", group, 4) == sorted(
                "" if value is None else value.decode() for _, value in SENT[INVOICES]
            )
            assert shell.pull(CLICKS, group, 3) == sorted(value.decode() for _, value in SENT[CLICKS])
        until(lambda: others.offsets("ours"), "our own group's offsets stand as Kafka's")
        until(lambda: "committed by another program" in server.log, "theirs are left as they are")

        looked = ddmq("doctor", "--config", str(server.config), "--data-dir", str(server.data_dir), "--json")
        rows = [row for row in json.loads(looked.stdout) if row["check"].startswith("kafka")]
        assert rows
        assert [row for row in rows if row["status"] == "failed"] == []
    finally:
        server.end()
        after, now = others.facts(), others.all_topics()
        others.close()
    assert after == before
    assert {name for name in now - topics if not name.startswith(("ddmq.", "__"))} <= {
        "orders",
        "SCHEDULE_TOPIC_XXXX",
    }
    assert {"billing", "ours"} <= others.groups() - groups <= {"billing", "ours", *OWN_GROUPS}
