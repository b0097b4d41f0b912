"""Fencing of group progress, and commits that are checked whole."""

from __future__ import annotations

import tracemalloc

import pytest

from backend.progress.ack_map import AckMap
from backend.progress.group_progress import NO_PROGRESS, Fence, GroupProgress, ProgressTable
from backend.records import ProgressDelta, QueueRef
from ddmq_common.errors import BoundReachedError, FencedError

QUEUE = QueueRef("orders", 1, 0)
OTHER = QueueRef("orders", 1, 1)


def delta(epoch: int = 0, generation: int = 0, queue: QueueRef = QUEUE, **rest: object) -> ProgressDelta:
    return ProgressDelta("g", queue, epoch, generation, **rest)  # type: ignore[arg-type]


@pytest.fixture
def table() -> ProgressTable:
    return ProgressTable()


def test_nothing_recorded_has_no_committed_offset(table: ProgressTable) -> None:
    assert table.view("g", QUEUE) == NO_PROGRESS
    table.apply(delta(epoch=4))
    view = table.view("g", QUEUE)
    assert (view.committed, view.epoch) == (None, 4)


def test_attempts_alone_do_not_start_progress() -> None:
    progress = GroupProgress()
    progress.apply(delta(attempts=((3, 1),)))
    assert progress.view().committed is None
    assert progress.view().attempts == {3: 1}


@pytest.mark.parametrize(
    "late",
    [
        delta(epoch=4, generation=2, finished=((0, 9),)),
        delta(epoch=5, generation=1, finished=((0, 9),)),
        delta(epoch=9, generation=3, finished=((0, 9),)),
        delta(epoch=5, generation=2, reset_to=0),
        delta(epoch=4, generation=3, reset_to=0),
    ],
)
def test_a_fenced_delta_changes_nothing(late: ProgressDelta) -> None:
    progress = GroupProgress()
    progress.apply(delta(epoch=5, generation=2, reset_to=10))
    progress.apply(delta(epoch=5, generation=2, finished=((12, 14),), attempts=((11, 2),)))
    before = progress.view()
    with pytest.raises(FencedError, match="progress of group g on orders queue 0 refused"):
        progress.apply(late)
    assert progress.view() == before


def test_a_reset_starts_afresh_and_may_go_back() -> None:
    progress = GroupProgress()
    progress.apply(delta(finished=((0, 50), (60, 70)), attempts=((55, 2),)))
    progress.apply(delta(generation=1, reset_to=20))
    view = progress.view()
    assert (view.committed, view.finished, view.attempts, view.generation) == (20, (), {}, 1)


def test_a_higher_epoch_is_adopted() -> None:
    progress = GroupProgress()
    progress.apply(delta(epoch=7, finished=((0, 1),)))
    assert progress.fence == Fence(7, 0)


def test_attempts_only_rise_and_end_with_finishing() -> None:
    progress = GroupProgress()
    progress.apply(delta(attempts=((3, 2), (4, 1))))
    progress.apply(delta(attempts=((3, 1),)))
    assert progress.view().attempts == {3: 2, 4: 1}
    progress.apply(delta(finished=((3, 4),)))
    progress.apply(delta(attempts=((3, 9),)))
    assert progress.view().attempts == {4: 1}


def test_check_sees_what_earlier_deltas_of_the_batch_leave(table: ProgressTable) -> None:
    with pytest.raises(FencedError):
        table.check([delta(epoch=3), delta(epoch=2)])
    assert table.check([delta(epoch=3), delta(epoch=2, queue=OTHER)]) == {
        ("g", QUEUE): Fence(3, 0),
        ("g", OTHER): Fence(2, 0),
    }
    assert len(table) == 0


def test_check_sees_what_batches_ahead_leave(table: ProgressTable) -> None:
    ahead = table.check([delta(generation=1, reset_to=5)])
    with pytest.raises(FencedError):
        table.check([delta(finished=((0, 1),))], ahead)
    table.check([delta(generation=1, finished=((5, 6),))], ahead)


def test_more_pairs_than_the_bound_are_refused_and_those_there_go_on(table: ProgressTable) -> None:
    table.apply(delta(finished=((0, 1),)))
    with pytest.raises(BoundReachedError, match="1 pairs"):
        table.check([delta(finished=((1, 2),)), delta(queue=OTHER)], entries_max=1)
    ahead = table.check([delta(queue=OTHER)], entries_max=2)
    with pytest.raises(BoundReachedError, match="2 pairs"):
        table.check([delta(queue=QueueRef("orders", 2, 0))], ahead, entries_max=2)
    deltas = [delta(finished=((1, 2),)), delta(queue=OTHER)]
    assert len(table.check(deltas, ahead, entries_max=2)) == 2


def test_a_refused_first_delta_leaves_no_entry(table: ProgressTable) -> None:
    with pytest.raises(FencedError):
        table.apply(delta(generation=3, finished=((0, 1),)))
    assert len(table) == 0


def test_progress_of_a_deleted_topic_goes(table: ProgressTable) -> None:
    table.apply(delta(finished=((0, 1),)))
    table.apply(delta(queue=QueueRef("orders", 2, 0), finished=((0, 1),)))
    assert table.drop_queues("orders", 1) == 1
    assert [key for key, _ in table] == [("g", QueueRef("orders", 2, 0))]


@pytest.mark.slow
def test_a_million_finished_above_one_unfinished_costs_little() -> None:
    tracemalloc.start()
    try:
        acks = AckMap()
        acks.finish([(1, 1_000_001)])
        assert tracemalloc.get_traced_memory()[0] < 10_000
        for page in range(100):  # every second offset of a span of 200,000
            start = 1_000_002 + page * 2_000
            acks.finish([(offset, offset + 1) for offset in range(start, start + 2_000, 2)])
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
    assert acks.committed == 0
    assert acks.span == 1_200_001
