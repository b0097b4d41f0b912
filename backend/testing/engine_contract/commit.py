"""Commits: all or nothing, fenced by epoch and generation, and the progress that they leave."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, CommitBatch, ProgressDelta, ProgressView, QueueRef
from backend.testing.kit import Kit
from backend.testing.waits import done
from ddmq_common.delivery import decode
from ddmq_common.errors import FencedError, UnknownTopicError

GROUP = "billing"
NOTHING = ProgressView(None, (), {}, 0, 0)


def build_delta(queue: QueueRef, epoch: int = 0, generation: int = 0, **rest: object) -> ProgressDelta:
    return ProgressDelta(GROUP, queue, epoch, generation, **rest)  # type: ignore[arg-type]


def count_records(kit: Kit) -> list[int]:
    """Return how many records each queue of `orders` holds."""
    return [len(kit.stored(queue)) for queue in kit.queues("orders")]


def is_finished(kit: Kit, queue: QueueRef, offset: int) -> bool:
    view = kit.progress(GROUP, queue)
    below = view.committed is not None and offset < view.committed
    return below or any(start <= offset < end for start, end in view.finished)


def test_records_for_several_queues_and_progress_together(kit: Kit) -> None:
    assert kit.backend.capabilities.atomic
    kit.make("orders", 3)
    kit.send("orders", b"a", b"b", b"c")
    queue = kit.queue("orders")
    results = kit.commit(
        [kit.new("orders", 1), kit.new("orders", 2), kit.new("orders", 1)],
        [build_delta(queue, 3, finished=((0, 2),), attempts=((2, 1),))],
        {"seen": b"1"},
    )
    assert [(result.status, result.offset) for result in results] == [
        (AppendStatus.STORED, 0),
        (AppendStatus.STORED, 0),
        (AppendStatus.STORED, 1),
    ]
    assert count_records(kit) == [3, 2, 1]
    assert kit.progress(GROUP, queue) == ProgressView(2, (), {2: 1}, 3, 0)
    assert kit.backend.setting("seen") == b"1"


def test_an_empty_commit_succeeds(kit: Kit) -> None:
    assert kit.commit() == []


@pytest.mark.parametrize("stale", ["epoch", "generation", "ahead", "reset"])
def test_a_fenced_commit_changes_nothing(kit: Kit, stale: str) -> None:
    kit.make("orders", 2)
    first, second = kit.queues("orders")
    kit.commit(progress=[build_delta(first, 5, 1, reset_to=0), build_delta(second, 5)])
    late = {
        "epoch": build_delta(first, 4, 1, finished=((0, 9),)),
        "generation": build_delta(first, 5, 0, finished=((0, 9),)),
        "ahead": build_delta(first, 5, 2, finished=((0, 9),)),
        "reset": build_delta(first, 5, 1, reset_to=7),
    }[stale]
    with pytest.raises(FencedError, match=GROUP):
        kit.commit([kit.new("orders")], [build_delta(second, 5, finished=((0, 3),)), late], {"seen": b"1"})
    assert count_records(kit) == [0, 0]
    assert kit.progress(GROUP, first) == ProgressView(0, (), {}, 5, 1)
    assert kit.progress(GROUP, second) == ProgressView(None, (), {}, 5, 0)
    assert kit.backend.setting("seen") is None


def test_a_delta_fenced_by_an_earlier_one_of_the_same_batch(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    with pytest.raises(FencedError):
        kit.commit(
            progress=[build_delta(queue, 3, finished=((0, 1),)), build_delta(queue, 2, finished=((1, 2),))]
        )
    assert kit.progress(GROUP, queue) == NOTHING


def test_a_commit_fenced_by_one_still_under_way(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    reset = kit.backend.commit(CommitBatch(progress=[build_delta(queue, 1, 1, reset_to=5)]), kit.soon)
    late = kit.backend.commit(CommitBatch(progress=[build_delta(queue, 1, 0, finished=((0, 9),))]), kit.soon)
    fresh = kit.backend.commit(CommitBatch(progress=[build_delta(queue, 1, 1, finished=((5, 6),))]), kit.soon)
    done(reset)
    with pytest.raises(FencedError):
        done(late)
    done(fresh)
    assert kit.progress(GROUP, queue) == ProgressView(6, (), {}, 1, 1)


@pytest.mark.parametrize("missing", ["topic", "queue", "progress"])
def test_a_missing_target_rejects_all_of_the_commit(kit: Kit, missing: str) -> None:
    info = kit.make("orders", 2)
    queue = kit.queue("orders")
    records, progress = [kit.new("orders")], [build_delta(queue, finished=((0, 1),))]
    if missing == "topic":
        records.append(kit.new("nowhere"))
    elif missing == "queue":
        records.append(kit.new("orders", 2))
    else:
        progress.append(build_delta(QueueRef("orders", info.incarnation + 1, 0), finished=((0, 1),)))
    with pytest.raises(UnknownTopicError):
        kit.commit(records, progress, {"seen": b"1"})
    assert count_records(kit) == [0, 0]
    assert kit.progress(GROUP, queue) == NOTHING
    assert kit.backend.setting("seen") is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"finished": ((5, 5),)},
        {"finished": ((5, 4),)},
        {"finished": ((-1, 4),)},
        {"attempts": ((3, 0),)},
        {"attempts": ((-3, 1),)},
        {"generation": 1, "reset_to": -1},
        {"generation": 1, "reset_to": 3, "finished": ((0, 1),)},
        {"epoch": -1},
    ],
)
def test_bad_arguments_raise_at_once(kit: Kit, arguments: dict[str, object]) -> None:
    queue = kit.make_queue("orders")
    with pytest.raises(ValueError, match="refused"):
        kit.backend.commit(CommitBatch(progress=[build_delta(queue, **arguments)]), kit.soon)  # type: ignore[arg-type]
    assert kit.progress(GROUP, queue) == NOTHING


def test_appends_and_commits_called_in_order_are_stored_in_order(kit: Kit) -> None:
    kit.make("orders")
    calls: list[Completion[list[AppendResult]]] = []
    for n in range(200):
        record = kit.new("orders", body=b"%d" % n)
        if n % 3:
            calls.append(kit.backend.append([record], kit.soon))
        else:
            calls.append(kit.backend.commit(CommitBatch([record]), kit.soon))
    offsets = [done(call)[0].offset for call in calls]
    records = kit.stored(kit.queue("orders"))
    assert offsets == [record.offset for record in records] == sorted(set(offsets))
    assert offsets == list(range(200)) or not kit.engine.gapless
    assert [decode(bytes(record.delivery)).value for record in records] == [b"%d" % n for n in range(200)]


def test_after_a_later_commit_the_outcome_of_an_earlier_one_is_certain(kit: Kit) -> None:
    """Also of one whose answer was not waited for: what is not there by then never comes."""
    queue = kit.make_queue("orders")
    answers: list[bool] = []
    for n in range(20):
        deadline = kit.clock.monotonic() + n / 2_000
        early = CommitBatch([kit.new("orders")], [build_delta(queue, 1, finished=((n, n + 1),))])
        kit.backend.commit(early, deadline)
        kit.commit(progress=[build_delta(queue, 1)])
        answers.append(is_finished(kit, queue, n))
    kit.commit(progress=[build_delta(queue, 1)])
    assert [is_finished(kit, queue, n) for n in range(20)] == answers
    assert count_records(kit) == [sum(answers)]


# --- progress


def test_nothing_is_recorded_at_first(kit: Kit) -> None:
    kit.make("orders", 2)
    assert done(kit.backend.progress(GROUP, kit.queues("orders"))) == [NOTHING, NOTHING]
    assert done(kit.backend.progress(GROUP, [])) == []
    assert kit.progress(GROUP, QueueRef("nowhere", 1, 0)) == NOTHING


def test_progress_is_per_group_and_queue(kit: Kit) -> None:
    kit.make("orders", 2)
    first, second = kit.queues("orders")
    kit.commit(
        progress=[
            build_delta(second, finished=((0, 4),)),
            ProgressDelta("audit", first, 2, 0, ((0, 1),)),
        ]
    )
    assert [view.committed for view in done(kit.backend.progress(GROUP, [second, first]))] == [4, None]
    assert [view.committed for view in done(kit.backend.progress("audit", [second, first]))] == [None, 1]


def test_the_committed_offset_is_the_lowest_unfinished_one(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[build_delta(queue, finished=((7, 9), (2, 4), (3, 6), (7, 8)))])
    assert kit.progress(GROUP, queue) == ProgressView(0, ((2, 6), (7, 9)), {}, 0, 0)
    kit.commit(progress=[build_delta(queue, finished=((0, 2),))])
    assert kit.progress(GROUP, queue) == ProgressView(6, ((7, 9),), {}, 0, 0)
    kit.commit(progress=[build_delta(queue, finished=((6, 7),))])
    assert kit.progress(GROUP, queue) == ProgressView(9, (), {}, 0, 0)


def test_repeated_progress_is_harmless(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    change = build_delta(queue, 2, finished=((0, 3), (5, 7)), attempts=((3, 2), (4, 1)))
    kit.commit(progress=[change])
    once = kit.progress(GROUP, queue)
    kit.commit(progress=[change, change])
    assert kit.progress(GROUP, queue) == once == ProgressView(3, ((5, 7),), {3: 2, 4: 1}, 2, 0)


def test_attempts_rise_and_end_with_finishing(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[build_delta(queue, attempts=((3, 1), (9, 4)))])
    assert kit.progress(GROUP, queue) == ProgressView(None, (), {3: 1, 9: 4}, 0, 0)
    kit.commit(progress=[build_delta(queue, attempts=((3, 2),))])
    kit.commit(progress=[build_delta(queue, attempts=((3, 1),))])
    assert dict(kit.progress(GROUP, queue).attempts) == {3: 2, 9: 4}
    kit.commit(progress=[build_delta(queue, finished=((3, 4),))])
    kit.commit(progress=[build_delta(queue, attempts=((3, 5),))])
    assert dict(kit.progress(GROUP, queue).attempts) == {9: 4}


def test_a_reset_starts_a_generation(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[build_delta(queue, 4, finished=((0, 50), (60, 70)), attempts=((55, 3),))])
    kit.commit(progress=[build_delta(queue, 4, 1, reset_to=20)])
    assert kit.progress(GROUP, queue) == ProgressView(20, (), {}, 4, 1)
    kit.commit(progress=[build_delta(queue, 4, 1, finished=((20, 30),))])
    kit.commit(progress=[build_delta(queue, 4, 7, reset_to=0)])
    assert kit.progress(GROUP, queue) == ProgressView(0, (), {}, 4, 7)


def test_a_start_position_is_a_reset(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a", b"b")
    queue = kit.queue("orders")
    kit.commit(progress=[build_delta(queue, 0, 1, reset_to=2)], settings={"group/billing": b"{}"})
    assert kit.progress(GROUP, queue) == ProgressView(2, (), {}, 0, 1)


def test_an_epoch_alone_fences_and_starts_nothing(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[build_delta(queue, 9)])
    assert kit.progress(GROUP, queue) == ProgressView(None, (), {}, 9, 0)
    with pytest.raises(FencedError):
        kit.commit(progress=[build_delta(queue, 8, finished=((0, 1),))])


def test_a_wide_ack_map_is_read_back_complete(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    alternating = tuple((offset, offset + 1) for offset in range(1, 20_001, 2))
    for start in range(0, len(alternating), 1000):
        kit.commit(progress=[build_delta(queue, finished=alternating[start : start + 1000])])
    kit.commit(progress=[build_delta(queue, finished=((1_000_000, 2_000_000),))])
    view = kit.progress(GROUP, queue)
    assert view.committed == 0
    assert view.finished == (*alternating, (1_000_000, 2_000_000))


def test_many_acks_under_way_at_once(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    starts = [start * 10 for start in range(100)]
    calls = [
        kit.backend.commit(
            CommitBatch(progress=[build_delta(queue, finished=((start, start + 10),))]), kit.soon
        )
        for start in reversed(starts)
    ]
    for call in calls:
        assert done(call) == []
    assert kit.progress(GROUP, queue).committed == 1000
