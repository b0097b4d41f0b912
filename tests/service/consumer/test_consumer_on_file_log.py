"""The same proxy over the file log: what was acknowledged before the log was closed stays acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import FIRST, IDL, METHODS, FakeCall, result
from tests.support.waits import until

PATIENCE_S = 60.0
LINGER_MS = 20_000  # every pull here is answered by messages; only a failing test waits this long
OPTIONS = FileLogOptions()


class Server:
    """Log and proxy, opened on one directory; `reopen` forgets everything that is not in the log."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = SystemClock()
        self.open()

    def open(self) -> None:
        metrics = Registry()
        self.log: FileLog = open_log(self.directory, OPTIONS, clock=self.clock, metrics=metrics)
        self.service = ConsumerService(self.log, ConsumerConfig(), metrics, self.clock, Random())
        self.service.start()
        self.handlers = self.service.service().handlers

    def reopen(self) -> None:
        self.log.close()
        self.open()

    def deadline(self) -> float:
        return self.clock.monotonic() + PATIENCE_S

    def do(self, completion: Any) -> Any:
        return completion.wait(PATIENCE_S)

    def send(self, count: int) -> None:
        records = [
            NewRecord(
                "T", 0, number.to_bytes(16, "big"), 1, encode(b"k%d" % number, b"v%d" % number, b"", None)
            )
            for number in range(count)
        ]
        self.do(self.log.append(records, self.deadline()))

    def pull(self, group: bytes = b"G", topic: bytes = b"T", **request: Any) -> FakeCall:
        pull_request = IDL.PullRequest(groupId=group, topic=topic, maxLingerTime=LINGER_MS, **request)
        call = FakeCall("pull", METHODS["pull"].args[0](request=pull_request))
        self.handlers["pull"](call)
        until(lambda: call.answered)
        return call

    def submit(self, results: Any) -> None:
        call = FakeCall("submit", METHODS["submit"].args[0](result=results))
        self.handlers["submit"](call)
        until(lambda: call.answered)
        assert call.result is True

    def committed(self) -> int | None:
        info = self.log.topic("T")
        assert info is not None
        view = self.do(self.log.progress("G", [QueueRef("T", info.incarnation, 0)]))[0]
        return view.committed  # type: ignore[no-any-return]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    log_server = Server(tmp_path / "log")
    log_server.do(log_server.log.put_topic(TopicInfo("T", 0, 1), log_server.deadline()))
    yield log_server
    log_server.log.close()


def test_exactly_the_unfinished_are_redelivered_after_a_restart(server: Server) -> None:
    server.do(server.service.subscribe("G", "T", FIRST))
    server.send(500)
    offsets: list[int] = []
    while len(offsets) < 500:
        offsets += server.pull().offsets
    unfinished = [0, 77, 78, 300]
    server.submit(result([offset for offset in offsets if offset not in unfinished]))
    server.submit(result(fail=[77]))
    server.reopen()
    messages = []
    while len(messages) < len(unfinished):
        messages += server.pull(clientId=b"c").result.messages
    assert [(each.offset, each.attempt) for each in messages] == [(0, 1), (77, 2), (78, 1), (300, 1)]
    assert [each.value for each in messages] == [b"v0", b"v77", b"v78", b"v300"]
    server.submit(result(unfinished))
    assert server.committed() == 500


def test_dead_letters_are_in_the_log(server: Server) -> None:
    server.do(
        server.service.subscribe(
            "G", "T", SubscriptionDefaults(start="first", retry_intervals_ms=(), retry_steps=0)
        )
    )
    server.send(3)
    offsets: list[int] = []
    while len(offsets) < 3:
        offsets += server.pull().offsets
    assert offsets == [0, 1, 2]
    server.submit(result([0, 2], [1]))
    until(lambda: server.committed() == 3)
    server.reopen()
    server.do(server.service.subscribe("watcher", "%DLQ%G", FIRST))
    messages = []
    while not messages:
        messages = server.pull(b"watcher", b"%DLQ%G", clientId=b"c").result.messages
    (letter,) = messages
    assert (letter.key, letter.value, letter.messageId) == (
        b"k1",
        b"v1",
        (1).to_bytes(16, "big").hex().encode(),
    )
    assert letter.properties[b"dead-letter-offset"] == b"1"


def test_groups_and_positions_survive(server: Server) -> None:
    server.send(5)
    server.do(server.service.subscribe("G", "T", SubscriptionDefaults(start="last", batch_max=2)))
    server.reopen()
    assert [group.topics for group in server.service.groups()] == [("T",)]
    server.send(3)
    assert server.pull().offsets == [5, 6]
