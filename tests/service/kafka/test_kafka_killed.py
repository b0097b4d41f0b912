"""Processes that hold queues, killed and stopped: others take over, and what was stopped has no effect."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from backend.kafka.options import KafkaOptions
from backend.records import ProgressDelta
from tests.service.kafka.process_kit import TOPICS, ProcessKit, QueueOwner, done, options
from tests.support.waits import until

ROOT = Path(__file__).resolve().parents[3]
QUEUES = 4


class Child:
    """A process of holder_process.py, and the lines that it has written."""

    def __init__(self, terms: KafkaOptions, plain: bool = False) -> None:
        settings = {name: getattr(terms, name) for name in ("bootstrap", "namespace", "topic_prefix")}
        command = [
            sys.executable,
            "-m",
            "tests.service.kafka.holder_process",
            json.dumps(settings),
            f"{plain:d}",
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        self.lines: list[list[str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.decode().split())

    def reports(self, kind: str, since: int = 0) -> list[list[str]]:
        return [line for line in self.lines[since:] if line[0] == kind]

    def finished(self) -> dict[int, int]:
        """Of each queue the offset behind the last that was answered."""
        return {int(line[1]): int(line[2]) + 1 for line in self.reports("f")}

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5)


@pytest.fixture
def installation() -> Iterator[ProcessKit]:
    kit = ProcessKit(options(), TOPICS)
    kit.make_topics()
    yield kit.ready()
    kit.close()


def moved(kit: ProcessKit) -> list[tuple[int, int]]:
    """Queue and offset of every record that was committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": kit.options.bootstrap,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(kit.options.names.to_kafka("moved"), 0, 0)])
    pairs = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        queue, offset, _ = (message.value() or b"").split()
        pairs.append((int(queue), int(offset)))
    consumer.close()
    return pairs


def check_moved(kit: ProcessKit, committed: dict[int, int]) -> None:
    """Each finished odd offset was moved, and once; no other was."""
    pairs = moved(kit)
    assert len(pairs) == len(set(pairs)), "twice"
    assert set(pairs) == {(queue, at) for queue, end in committed.items() for at in range(1, end, 2)}


def committed(kit: ProcessKit) -> dict[int, int]:
    views = [kit.state.progress.view(("g", kit.queue(number))) for number in range(QUEUES)]
    return {number: view.committed or 0 for number, view in enumerate(views)}


def beside(child: Child, kit: ProcessKit) -> QueueOwner:
    """Half of the queues are ours; the child, which had them all, works on the others."""
    until(lambda: len(child.finished()) == QUEUES and min(child.finished().values()) > 20, "it works")
    mine = QueueOwner(kit, address="parent")
    until(lambda: len(mine.owned) == QUEUES // 2, "shared")
    at = len(child.lines)
    until(lambda: len(child.reports("f", at)) > 50, "it goes on")
    return mine


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
def test_who_is_killed_is_followed_by_who_is_left(installation: ProcessKit, plain: bool) -> None:
    child = Child(installation.options, plain)
    try:
        mine = beside(child, installation)
        child.send(signal.SIGKILL)
        began = time.monotonic()
        until(lambda: len(mine.owned) == QUEUES, "all taken over")
        print(f"hand-over after kill -9: {time.monotonic() - began:.2f} s")
        child.end()
        after, answered = committed(installation), child.finished()
        for queue in range(QUEUES):
            assert after[queue] - answered[queue] in (0, 1), (
                "what was answered, and at most what was under way"
            )
        if not plain:
            check_moved(installation, after)
    finally:
        child.end()


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
def test_a_suspended_process_has_no_effect_when_it_resumes(installation: ProcessKit, plain: bool) -> None:
    child = Child(installation.options, plain)
    try:
        mine = beside(child, installation)
        child.send(signal.SIGSTOP)
        began = time.monotonic()
        until(lambda: len(mine.owned) == QUEUES, "all taken over")
        print(f"hand-over after SIGSTOP: {time.monotonic() - began:.2f} s")
        before = committed(installation)
        for queue, epoch in mine.owned.items():
            end = before[queue.queue_id]
            done(installation.commit(progress=[ProgressDelta("g", queue, epoch, 0, ((end + 4, end + 6),))]))
        views = {queue: installation.state.progress.view(("g", queue)) for queue in mine.owned}
        at = len(child.lines)
        child.send(signal.SIGCONT)
        until(lambda: child.reports("l", at), "it hears that it has lost everything")
        lost = child.lines.index(child.reports("l", at)[0])
        for line in child.lines[at:lost]:
            if line[0] == "f":
                assert int(line[2]) < before[int(line[1])], "what is answered well counts"
        done(installation.state.catch_up())
        still = {queue: installation.state.progress.view(("g", queue)) for queue in mine.owned}
        assert all(still[queue] == views[queue] for queue in still), "and nothing has changed"
        until(lambda: len(child.reports("h", lost)) >= QUEUES // 2, "it joins again")
        until(lambda: len(child.reports("f", lost)) > 20, "and works")
        child.send(signal.SIGKILL)
        until(lambda: len(mine.owned) == QUEUES, "all taken over")
        if not plain:
            pairs = moved(installation)
            assert len(pairs) == len(set(pairs)), "twice"
    finally:
        child.end()
