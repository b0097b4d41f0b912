"""Commits of one turn of the hub are one; where that is rejected each goes by itself."""

from __future__ import annotations

from collections.abc import Sequence

import gevent

from backend.records import AppendResult, NewRecord, ProgressDelta, QueueRef, TopicInfo
from ddmq_common.clock import ManualClock
from ddmq_common.delivery import encode
from ddmq_common.errors import FencedError, RemoteError
from proxy_producer.transactions.combined_commits import (
    BYTES_MAX,
    CombinedCommits,
    TransactionCommit,
    merge_deltas,
)
from tests.played_memory import PlayedMemory
from tests.support.waits import until

QUEUE, OTHER = QueueRef("q", 1, 0), QueueRef("q", 1, 1)
Outcomes = list[tuple[list[int], Exception | None]]


class Commits:
    """What `gathered` gives an engine, and what its callers hear."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend = PlayedMemory(self.clock)
        self.backend.put_topic(TopicInfo("q", 0, 2), self.clock.monotonic() + 9).wait(9)
        self.gathered = CombinedCommits(self.backend, lambda: self.clock.monotonic() + 9)
        self.outcomes: Outcomes = []
        self.batches = 0
        commit = self.backend.commit

        def counted(*args: object) -> object:
            self.batches += 1
            return commit(*args)  # type: ignore[arg-type]

        self.backend.commit = counted  # type: ignore[method-assign, assignment]

    def add(self, offset: int, queue: QueueRef = QUEUE, epoch: int = 1, size: int = 1) -> None:
        record = NewRecord("q", queue.queue_id, bytes(16), 0, encode(b"", b"x" * size, b"", None))
        delta = ProgressDelta("g", queue, epoch, 0, [(offset, offset + 1)])

        def then(results: Sequence[AppendResult], error: Exception | None) -> None:
            self.outcomes.append(([result.offset for result in results], error))

        self.gathered.add(TransactionCommit([record], delta, then))

    def wait_for_outcomes(self, count: int) -> Outcomes:
        until(lambda: len(self.outcomes) == count)
        return self.outcomes


def test_those_of_one_turn_are_one_commit() -> None:
    commits = Commits()
    for offset in range(3):
        commits.add(offset)
    commits.add(0, OTHER)
    assert commits.wait_for_outcomes(4) == [([0], None), ([1], None), ([2], None), ([0], None)]
    assert commits.batches == 1
    commits.add(3)
    commits.wait_for_outcomes(5)
    gevent.sleep(0)
    assert commits.batches == 2
    view = commits.backend.progress("g", [QUEUE]).wait(9)[0]
    assert view.committed == 4


def test_one_that_is_rejected_harms_no_other() -> None:
    commits = Commits()
    commits.add(0, epoch=5)
    commits.wait_for_outcomes(1)
    commits.add(1, epoch=5)
    commits.add(2, epoch=4)
    commits.add(0, OTHER, epoch=1)
    outcomes = commits.wait_for_outcomes(4)[1:]
    assert [len(offsets) for offsets, _ in outcomes] == [1, 0, 1]
    assert isinstance(outcomes[1][1], FencedError)
    assert commits.backend.bounds([QUEUE, OTHER]).wait(9)[0] == (0, 2)


def test_all_hear_that_nobody_knows() -> None:
    commits = Commits()
    commits.backend.fail_next(RemoteError("silent"), stored=True)
    commits.add(0)
    commits.add(1)
    assert [type(error) for _, error in commits.wait_for_outcomes(2)] == [RemoteError] * 2
    assert commits.batches == 1


def test_much_goes_in_several() -> None:
    commits = Commits()
    for offset in range(4):
        commits.add(offset, size=BYTES_MAX // 2)
    assert [error for _, error in commits.wait_for_outcomes(4)] == [None] * 4
    assert commits.batches > 1


def test_progress_of_a_queue_is_one_delta_for_each_epoch() -> None:
    deltas = [
        ProgressDelta("g", QUEUE, 1, 0, [(0, 1)], [(5, 1)]),
        ProgressDelta("g", QUEUE, 1, 0, [(2, 3)], [(6, 2)]),
        ProgressDelta("g", QUEUE, 2, 0, [(4, 5)]),
        ProgressDelta("g", OTHER, 1, 0, [(0, 9)]),
    ]
    merged = merge_deltas(deltas)
    assert [(one.queue, one.epoch, list(one.finished)) for one in merged] == [
        (QUEUE, 1, [(0, 1), (2, 3)]),
        (QUEUE, 2, [(4, 5)]),
        (OTHER, 1, [(0, 9)]),
    ]
    assert list(merged[0].attempts) == [(5, 1), (6, 2)]
