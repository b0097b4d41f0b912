"""The thread that commits to Kafka's own groups, without a cluster."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backend.kafka import mirror as module
from backend.kafka.mirror import CLOSE_S, CONSUMERS_MAX, OURS, OffsetMirror, _Committer
from backend.kafka.options import KafkaOptions
from backend.progress.group_progress import GroupProgress
from backend.records import QueueRef
from tests.support.waits import until


@pytest.mark.slow
def test_it_ends_in_time_though_no_broker_answers() -> None:
    told: list[tuple[str, Exception | None]] = []
    committer = _Committer(KafkaOptions("127.0.0.1:1"), lambda group, error: told.append((group, error)))
    committer.ask("g", [TopicPartition("orders", 0, 7)])
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < CLOSE_S + 20.0, "the client's own time-outs take a minute"
    assert all(error for _, error in told), "nothing was committed"


class FakeConsumer:
    open = 0
    open_max = 0
    fails = False

    def __init__(self, _: dict[str, object]) -> None:
        FakeConsumer.open += 1
        FakeConsumer.open_max = max(FakeConsumer.open, FakeConsumer.open_max)

    def list_topics(self, topic: str, _: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None, 1: None})})

    def committed(self, places: list[TopicPartition], _: float) -> list[TopicPartition]:
        return places

    def commit(self, **_: object) -> None: ...

    def close(self) -> None:
        FakeConsumer.open -= 1
        if FakeConsumer.fails:
            raise RuntimeError("nobody foresaw it")


@pytest.mark.parametrize("fails", [False, True])
def test_consumers_are_few_and_go_when_they_are_not_used(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Consumer", FakeConsumer)
    monkeypatch.setattr(module, "UNUSED_S", 0.05)
    monkeypatch.setattr(FakeConsumer, "open_max", 0)
    monkeypatch.setattr(FakeConsumer, "fails", fails)
    told: list[str] = []
    committer = _Committer(KafkaOptions(), lambda group, _: told.append(group))
    for lap in range(2):
        for number in range(3 * CONSUMERS_MAX):
            committer.ask(f"g{number}", [TopicPartition("orders", 0, 7)])
        until(lambda lap=lap: len(told) == 3 * CONSUMERS_MAX * (lap + 1), "all are answered")
        until(lambda: FakeConsumer.open == 0, "closed")
    assert FakeConsumer.open_max <= CONSUMERS_MAX
    committer.close()


def test_what_another_program_committed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it stands on another partition than those that are to be written."""
    stands = {"g": TopicPartition("orders", 1, 5, ""), "h": TopicPartition("orders", 1, 5, OURS)}
    looks: list[str] = []
    written: list[str] = []

    class Standing(FakeConsumer):
        def __init__(self, settings: dict[str, object]) -> None:
            self.group = str(settings["group.id"])

        def committed(self, places: list[TopicPartition], _: float) -> list[TopicPartition]:
            looks.append(self.group)
            return [places[0], stands.get(self.group, places[1])]

        def commit(self, **_: object) -> None:
            written.append(self.group)

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Consumer", Standing)
    told: list[tuple[str, str | None]] = []
    committer = _Committer(KafkaOptions(), lambda group, error: told.append((group, error and str(error))))
    for _ in range(2):
        for group in ("g", "h", "new"):
            committer.ask(group, [TopicPartition("orders", 0, 7, OURS)])
    committer.close()
    why = "offset 5 of orders [1] was committed by another program"
    assert told == [("g", why), ("h", None), ("new", None)] * 2
    assert written == ["h", "new"] * 2
    assert looks == ["g", "h", "new", "g"], "it is looked at once while a consumer is open"


@pytest.mark.parametrize(
    ("code", "commits"), [(KafkaError.NOT_COORDINATOR, 3), (KafkaError.UNKNOWN_MEMBER_ID, 1)]
)
def test_what_no_coordinator_took_is_written_again_and_what_one_refused_is_not(
    code: int, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group commits once and is silent then; the broker says twice that it is another's."""
    asked: list[int] = []

    class Elsewhere(FakeConsumer):
        def commit(self, *, offsets: list[TopicPartition], **_: object) -> None:
            asked.append(offsets[0].offset)
            if len(asked) < 3:
                raise KafkaException(KafkaError(code))

    monkeypatch.setattr(module, "Consumer", Elsewhere)
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    key = ("g", QueueRef("orders", 0, 0))
    progress = GroupProgress()
    progress.started = True
    progress.acks.reset(7)
    state: Any = SimpleNamespace(progress={key: progress})
    loop = gevent.get_hub().loop
    mirror = OffsetMirror(
        KafkaOptions(), state, lambda _: True, str, lambda *given: loop.run_callback_threadsafe(*given)
    )
    mirror.progressed([key])
    until(lambda: asked and mirror.idle, "written, or refused")
    mirror.close()
    assert asked == [7] * commits
