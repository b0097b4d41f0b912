"""File log → Kafka → file log by the command itself, with a real broker and kills in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from backend.file_log import open_log
from backend.kafka.opening import open_kafka
from backend.kafka.options import KafkaOptions
from backend.records import NewRecord
from ddmq_common.clock import SystemClock
from ddmq_common.delays.command import (
    ADD,
    COMMAND_PROPERTY,
    DelayCommand,
    decode_command,
    encode_command,
    shard_of,
)
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC, DLQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC
from tests.service.move.move_kit import TOPICS, MoveSide, message
from tests.support.kafka import broker, fresh_name
from tests.support.waits import until

pytestmark = [pytest.mark.slow, pytest.mark.kafka]
INNER = (f"{RETRY_PREFIX}billing", f"{DLQ_PREFIX}billing", SCHEDULE_TOPIC)
COMMAND_S = 120


@contextmanager
def log_in(folder: Path) -> Iterator[MoveSide]:
    log = open_log(folder, clock=SystemClock(), metrics=Registry())
    try:
        yield MoveSide(log)
    finally:
        log.close()


@contextmanager
def cluster(namespace: str) -> Iterator[MoveSide]:
    kafka = open_kafka(
        KafkaOptions(bootstrap=broker(), namespace=namespace, topic_prefix=f"{namespace}."),
        clock=SystemClock(),
    )
    try:
        yield MoveSide(kafka)
    finally:
        kafka.close()


def configuration(folder: Path, namespace: str) -> Path:
    folder.mkdir()
    text = f"kafka:\n  namespace: {namespace}\n  topic_prefix: {namespace}.\n"
    (folder / "backend.yaml").write_text(text)
    return folder


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ddmq", "move", *map(str, arguments), "--json"]


def run(*arguments: object) -> dict[str, object]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def killed_in_the_middle(reached: object, *arguments: object) -> None:
    """Start the command, and kill -9 it once `reached` says so."""
    process = subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or reached(), lambda: "it copies")  # type: ignore[operator]
    finally:
        process.kill()
        process.wait()


def delayed(number: int, due_ms: int) -> NewRecord:
    uuid = str(UUID(int=number))
    command = DelayCommand(ADD, uuid, topic="orders", timestamp_s=due_ms // 1000, due_ms=due_ms + number)
    system = {COMMAND_PROPERTY: encode_command(command)}
    body = encode(b"", b"%d" % number, b"red", None)
    return NewRecord(DELAY_TOPIC, shard_of(uuid, 2), UUID(int=number).bytes, due_ms, body, system=system)


def waiting(side: MoveSide) -> list[tuple[int, bytes, str, int]]:
    """Shard, message id, uuid and due time of every pending add."""
    delays = []
    for queue in side.queues(DELAY_TOPIC):
        for record in side.records(queue):
            command = decode_command(record.system[COMMAND_PROPERTY])
            if command.op == ADD:
                delays.append(
                    (queue.queue_id, record.message_id, command.uuid, command.at_ms or command.due_ms)
                )
    return sorted(delays)


def facts(side: MoveSide) -> tuple[object, object]:
    return [side.contents(topic) for topic in (*TOPICS, *INNER)], side.left()


def test_there_and_back_with_kills_in_the_middle(tmp_path: Path) -> None:
    namespace = fresh_name()
    first, second, kafka = tmp_path / "first", tmp_path / "second", f"kafka:{broker()}"
    conf = configuration(tmp_path / "conf", namespace)
    there = (f"file_log:{first}", kafka, "--target-config", conf)
    with log_in(first) as source:
        source.fill(11, 2_000)
        source.make(DELAY_TOPIC, 2)
        source.send(*(delayed(number, source.clock.wall_ms() + 3_600_000) for number in range(1, 41)))
        pending = waiting(source)
        assert len(pending) == 40

    with cluster(namespace) as target:
        killed_in_the_middle(lambda: target.backend.topic("orders") is not None, *there)
    run(*there)
    assert run(*there)["copied"] == 0
    with log_in(first) as source:
        source.send(*(message("orders", 1) for _ in range(50)))
        before = facts(source)
    with cluster(namespace) as target:
        killed_in_the_middle(lambda: target.backend.settings("group/"), *there, "--finish")
    report = run(*there, "--finish") if run(*there, "--dry-run")["state"] != "finished" else {}
    assert report.get("faults", []) == []
    with cluster(namespace) as target:
        assert facts(target) == before
        assert waiting(target) == pending

    run(kafka, f"file_log:{second}", "--source-config", conf)
    assert run(kafka, f"file_log:{second}", "--source-config", conf, "--finish")["faults"] == []
    with log_in(second) as back:
        assert facts(back) == before
        assert waiting(back) == pending
