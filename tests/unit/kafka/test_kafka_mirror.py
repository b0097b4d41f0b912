"""The thread that commits to Kafka's own groups, without a cluster."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from backend.kafka.commits import offset_mirror as module
from backend.kafka.commits.offset_mirror import CLOSE_S, CONSUMERS_MAX, MARK, OffsetMirror, _OffsetCommitter
from backend.kafka.options import KafkaOptions
from backend.progress.group_progress import GroupProgress, Key
from backend.records import QueueRef
from tests.support.waits import until


@pytest.mark.slow
def test_it_ends_in_time_though_no_broker_answers() -> None:
    outcomes: list[tuple[str, Exception | None]] = []
    committer = _OffsetCommitter(
        KafkaOptions("127.0.0.1:1"), lambda group, error: outcomes.append((group, error))
    )
    committer.commit_later("g", [TopicPartition("orders", 0, 7)])
    began = time.monotonic()
    committer.close()
    assert time.monotonic() - began < CLOSE_S + 20.0, "the client's own time-outs take a minute"
    assert all(error for _, error in outcomes), "nothing was committed"


class FakeOffsetConsumer:
    open = 0
    open_max = 0
    fails = False

    def __init__(self, _: dict[str, object]) -> None:
        FakeOffsetConsumer.open += 1
        FakeOffsetConsumer.open_max = max(FakeOffsetConsumer.open, FakeOffsetConsumer.open_max)

    def list_topics(self, topic: str, _: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None, 1: None})})

    def committed(self, partitions: list[TopicPartition], _: float) -> list[TopicPartition]:
        return partitions

    def commit(self, **_: object) -> None: ...

    def close(self) -> None:
        FakeOffsetConsumer.open -= 1
        if FakeOffsetConsumer.fails:
            raise RuntimeError("nobody foresaw it")


@pytest.mark.parametrize("fails", [False, True])
def test_consumers_are_few_and_go_when_they_are_not_used(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Consumer", FakeOffsetConsumer)
    monkeypatch.setattr(module, "UNUSED_S", 0.05)
    monkeypatch.setattr(FakeOffsetConsumer, "open_max", 0)
    monkeypatch.setattr(FakeOffsetConsumer, "fails", fails)
    outcomes: list[str] = []
    committer = _OffsetCommitter(KafkaOptions(), lambda group, _: outcomes.append(group))
    for lap in range(2):
        for number in range(3 * CONSUMERS_MAX):
            committer.commit_later(f"g{number}", [TopicPartition("orders", 0, 7)])
        until(lambda lap=lap: len(outcomes) == 3 * CONSUMERS_MAX * (lap + 1), "all are answered")
        until(lambda: FakeOffsetConsumer.open == 0, "closed")
    assert FakeOffsetConsumer.open_max <= CONSUMERS_MAX
    committer.close()


def test_what_another_program_committed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it stands on another partition than those that are to be written."""
    stands = {"g": TopicPartition("orders", 1, 5, ""), "h": TopicPartition("orders", 1, 5, MARK)}
    looks: list[str] = []
    written: list[str] = []

    class Standing(FakeOffsetConsumer):
        def __init__(self, settings: dict[str, object]) -> None:
            self.group = str(settings["group.id"])

        def committed(self, partitions: list[TopicPartition], _: float) -> list[TopicPartition]:
            looks.append(self.group)
            return [partitions[0], stands.get(self.group, partitions[1])]

        def commit(self, **_: object) -> None:
            written.append(self.group)

        def close(self) -> None: ...

    monkeypatch.setattr(module, "Consumer", Standing)
    outcomes: list[tuple[str, str | None]] = []
    committer = _OffsetCommitter(
        KafkaOptions(), lambda group, error: outcomes.append((group, error and str(error)))
    )
    for _ in range(2):
        for group in ("g", "h", "new"):
            committer.commit_later(group, [TopicPartition("orders", 0, 7, MARK)])
    committer.close()
    why = "offset 5 of orders [1] was committed by another program"
    assert outcomes == [("g", why), ("h", None), ("new", None)] * 2
    assert written == ["h", "new"] * 2
    assert looks == ["g", "h", "new", "g"], "it is looked at once while a consumer is open"


class Group:
    """A mirror whose brokers answer commits one after the other with `answers`, then well. `asked`: with what
    offset each time; `holds`: whether queues are held here; `looks`: how often that was asked of a group;
    `answered`: commits that the mirror has heard of; `raised`: what it raised then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: int) -> None:
        self.offsets_sent: list[int] = []
        self.holds = True
        self.looks: Counter[str] = Counter()
        self.answered = 0
        self.raised: list[Exception] = []
        left, offsets_sent = list(answers), self.offsets_sent

        class Elsewhere(FakeOffsetConsumer):
            def commit(self, *, offsets: list[TopicPartition], **_: object) -> None:
                offsets_sent.append(offsets[0].offset)
                if left:
                    raise KafkaException(KafkaError(left.pop(0)))

        monkeypatch.setattr(module, "Consumer", Elsewhere)
        monkeypatch.setattr(module, "EVERY_S", 0.01)
        self._progress: dict[Key, GroupProgress] = {}
        state: Any = SimpleNamespace(progress=self._progress)
        later = gevent.get_hub().loop.run_callback_threadsafe
        self.mirror = OffsetMirror(
            KafkaOptions(), state, self._holds_queue, str, lambda *call: later(self._answer, *call)
        )

    def _holds_queue(self, key: Key) -> bool:
        self.looks[key[0]] += 1
        return self.holds

    def _answer(self, then: Callable[..., object], *args: object) -> None:
        try:
            then(*args)
        except Exception as error:
            self.raised.append(error)
        self.answered += 1

    def commits(self, offset: int, group: str = "g") -> None:
        key = (group, QueueRef("orders", 0, 0))
        progress = self._progress.setdefault(key, GroupProgress())
        progress.started = True
        progress.acks.reset(offset)
        self.mirror.on_progress([key])


AWAY, REFUSED = KafkaError.NOT_COORDINATOR, KafkaError.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("answers", "commits"), [((AWAY, AWAY), 3), ((REFUSED,), 1), ((AWAY, REFUSED), 2)])
def test_an_offset_is_retried_without_a_coordinator_and_not_after_a_rejection(
    answers: tuple[int, ...], commits: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The group commits once and is silent then. Each kind of failure is told once."""
    group = Group(monkeypatch, *answers)
    with caplog.at_level(logging.INFO):
        group.commits(7)
        until(lambda: group.offsets_sent and group.mirror.is_idle, "written, or refused")
    group.mirror.close()
    assert group.offsets_sent == [7] * commits
    assert len(caplog.records) == len(set(answers))


def test_the_offset_of_a_released_queue_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, AWAY)
    monkeypatch.setattr(module, "EVERY_S", 0.1)
    group.commits(7)
    until(lambda: group.offsets_sent and not group.mirror.is_idle, "it failed, and is to be written again")
    group.holds = False
    until(lambda: group.mirror.is_idle, "nothing is to be written")
    group.mirror.close()
    assert group.offsets_sent == [7]


def test_a_group_without_a_coordinator_is_retried_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(monkeypatch, *[AWAY] * 5)
    began = time.monotonic()
    group.commits(7)
    until(lambda: group.offsets_sent and group.mirror.is_idle, "written")
    group.mirror.close()
    assert time.monotonic() - began >= sum(0.01 * 2**times for times in range(5))


def test_groups_without_a_coordinator_are_retried_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer may take as long as a broker is waited for; only one of them does so for all others."""
    away = 8
    group = Group(monkeypatch, *[AWAY] * 3 * away)
    entered, go_on = threading.Event(), threading.Event()
    commit = module.Consumer.commit

    def paused_commit(*args: Any, **named: Any) -> None:
        if len(group.offsets_sent) == away:
            entered.set()
            go_on.wait(60)
        commit(*args, **named)

    monkeypatch.setattr(module.Consumer, "commit", paused_commit)
    for number in range(away):
        group.commits(1, f"away{number}")
    until(entered.is_set, "the first of them is asked again")
    group.commits(100)
    until(lambda: group.looks["g"] == 2, "it is asked behind that one")
    go_on.set()
    until(lambda: len(group.offsets_sent) > away + 1, "two more are asked")
    group.mirror.close()
    assert group.offsets_sent[: away + 2] == [1] * (away + 1) + [100]


def test_it_ends_while_a_group_that_goes_on_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(monkeypatch)
    entered, go_on = threading.Event(), threading.Event()
    commit = module.Consumer.commit

    def paused_commit(*args: Any, **named: Any) -> None:
        entered.set()
        go_on.wait(60)
        commit(*args, **named)

    monkeypatch.setattr(module.Consumer, "commit", paused_commit)
    group.commits(7)
    until(entered.is_set, "it is under way")
    group.commits(9)
    gevent.get_hub().threadpool.spawn(go_on.set)
    group.mirror.close()
    until(lambda: group.answered == 2, "both are over")
    assert group.offsets_sent == [7, 9]
    assert not group.raised
