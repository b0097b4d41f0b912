"""FollowerThread over a fake consumer: it passes on no record of another cluster than the first one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from backend.kafka.clients import follower as module
from backend.kafka.clients.follower import FollowedRow, FollowerThread
from backend.kafka.options import KafkaOptions
from tests.support.waits import until

PARTITION = ("ddmq.settings", 0)


class FakeMessage:
    """A record of the settings topic, or an error of it."""

    def __init__(self, offset: int, error: int | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> Any:
        return (
            None if self._error is None else SimpleNamespace(code=lambda: self._error, str=lambda: "an error")
        )

    def topic(self) -> str:
        return PARTITION[0]

    def partition(self) -> int:
        return PARTITION[1]

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


class FakeCluster:
    """Brokers, whose cluster id and records a test sets, and all Consumers of them."""

    def __init__(self) -> None:
        self.cluster_id = "first"
        self.messages: list[FakeMessage] = []
        self.assigned: list[int] = []  # the offsets at which Consumers began
        self.changed = threading.Event()

    def create_consumer(self, settings: dict[str, Any]) -> Any:
        return SimpleNamespace(
            list_topics=lambda topic, timeout: SimpleNamespace(cluster_id=self.cluster_id),
            get_watermark_offsets=lambda partition, timeout: (0, 0),
            assign=lambda partitions: self.assigned.extend(each.offset for each in partitions),
            poll=self._poll,
            consume=lambda count, timeout: [],
            close=lambda: None,
        )

    def _poll(self, timeout: float) -> FakeMessage | None:
        self.changed.wait(0.01)
        return self.messages.pop(0) if self.messages else None


class FollowerRig:
    """A thread that follows one partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = FakeCluster()
        self.rows: list[int] = []
        self.other_clusters = 0
        monkeypatch.setattr(module, "Consumer", self.cluster.create_consumer)
        monkeypatch.setattr(module, "AdminClient", lambda settings: None)
        monkeypatch.setattr(module, "ensure_system_topics", lambda *_: {PARTITION[0]: 1})
        monkeypatch.setattr(module, "PAUSE_S", 0.01)
        self.thread = FollowerThread(
            KafkaOptions("broker:9092"),
            on_begun=lambda first: None,
            on_rows=self._on_rows,
            on_truncated=lambda first: None,
            on_other_cluster=self._on_other_cluster,
            on_failed=lambda reason: None,
        )
        until(lambda: self.cluster.assigned == [0], "it follows")

    def _on_rows(self, rows: list[FollowedRow]) -> None:
        self.thread.capacity.release()
        self.rows += [row.offset for row in rows if row.is_record]

    def _on_other_cluster(self) -> None:
        self.other_clusters += 1

    def bring(self, *messages: FakeMessage) -> None:
        self.cluster.messages += messages
        until(lambda: not self.cluster.messages, "they are taken")


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[FollowerRig]:
    rig = FollowerRig(monkeypatch)
    yield rig
    assert rig.thread.stop(30)


def test_records_are_passed_on(rig: FollowerRig) -> None:
    rig.bring(FakeMessage(0), FakeMessage(1))
    until(lambda: rig.rows == [0, 1])
    assert rig.other_clusters == 0


@pytest.mark.parametrize("by_error", [True, False])
def test_records_of_another_cluster_are_not_passed_on(rig: FollowerRig, by_error: bool) -> None:
    rig.bring(FakeMessage(0))
    until(lambda: rig.rows == [0])
    rig.cluster.cluster_id = "other"
    if by_error:
        rig.bring(FakeMessage(1, KafkaError._AUTO_OFFSET_RESET))
    else:
        rig.thread.check_cluster()
        rig.bring(FakeMessage(1))
    until(lambda: rig.other_clusters > 2, "it asks again and again")
    assert rig.rows == [0]
    rig.cluster.cluster_id = "first"
    until(lambda: rig.cluster.assigned == [0, 1], "it goes on where it was")
    rig.bring(FakeMessage(1))
    until(lambda: rig.rows == [0, 1])


def test_an_error_in_the_own_cluster_costs_nothing(rig: FollowerRig) -> None:
    rig.bring(FakeMessage(0), FakeMessage(1, KafkaError._TRANSPORT), FakeMessage(1))
    until(lambda: rig.rows == [0, 1])
    assert (rig.cluster.assigned, rig.other_clusters) == ([0], 0)
