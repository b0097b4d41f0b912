"""`ddmq move` over the port, memory to memory: what is there afterwards, also when it was cut short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backend.records import CommitBatch, ProgressDelta
from ddmq.move.context import MoveError
from ddmq.move.progress import FINISHED
from ddmq_common.errors import DdmqError, RemoteError
from ddmq_common.names import DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TRANSACTION_GROUP
from proxy_consumer.groups.group import GROUP_PREFIX
from proxy_producer.transactions.codec import HalfMark, half_record
from tests.played_memory import PlayedMemory
from tests.service.move.move_kit import TOPICS, MoveSide, message, moved
from tests.service.move.seats import seated
from tests.support.waits import done

INNER = (f"{RETRY_PREFIX}billing", f"{DLQ_PREFIX}billing")


@pytest.fixture
def sides() -> Iterator[tuple[MoveSide, MoveSide]]:
    both = MoveSide(PlayedMemory()), MoveSide(PlayedMemory())
    yield both
    for each in both:
        each.backend.close()


def same(source: MoveSide, target: MoveSide) -> None:
    for topic in (*TOPICS, *INNER):
        assert target.contents(topic) == source.contents(topic)
    assert target.left() == source.left()


@pytest.mark.parametrize("seed", range(8))
def test_everything_is_moved_and_exactly_the_unfinished_is_redelivered(seed, sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(seed)
    moved(source, target).copy(None)
    source.send(*(message("orders", 1) for _ in range(50)))  # while clients are still there
    report = moved(source, target).finish_move()
    assert (report.state, report.differences) == (FINISHED, [])
    same(source, target)
    assert target.contents(SCHEDULE_TOPIC) == source.contents(SCHEDULE_TOPIC)
    topics = source.backend.topic("orders"), target.backend.topic("orders")
    assert [(t.queues, t.delay, t.body_bytes_max) for t in topics if t] == [(3, "none", 5_000)] * 2
    assert target.backend.settings(GROUP_PREFIX) == source.backend.settings(GROUP_PREFIX)
    assert moved(source, target).verify_copies().differences == []


def test_a_second_run_copies_nothing_twice(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(1)
    first = moved(source, target).copy(None)
    second_run = moved(source, target).copy(None)
    assert first.copied
    assert (second_run.copied, second_run.remaining) == (0, {})


@pytest.mark.parametrize("times", range(1, 30, 4))
@pytest.mark.parametrize("stored", [True, False])
def test_an_interrupted_run_resumes_from_any_point(times, stored, sides, monkeypatch):  # type: ignore[no-untyped-def]
    """After the `times`-th commit of the target the run ends, whether or not that was stored."""
    source, target = sides
    source.fill(times)
    monkeypatch.setattr("ddmq.move.context.READ_COUNT", 20)
    real, commits = target.backend.commit, [0]

    class Killed(BaseException):
        pass

    def commit(batch, deadline, into=None):  # type: ignore[no-untyped-def]
        commits[0] += 1
        if commits[0] == times:
            if stored:
                done(real(batch, deadline))
            raise Killed
        return real(batch, deadline, into)

    monkeypatch.setattr(target.backend, "commit", commit)

    def move_all() -> None:
        moved(source, target).copy(None)
        moved(source, target).finish_move()

    with pytest.raises(Killed):
        move_all()
    assert moved(source, target).finish_move().differences == []
    same(source, target)


def test_a_copy_whose_answer_was_lost_is_not_repeated(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(3)
    run = moved(source, target)
    run.begin()
    run.messages.prepare_targets()
    assert isinstance(target.backend, PlayedMemory)
    target.backend.fail_next(RemoteError("no answer"), stored=True)
    run.messages.copy_round()
    assert moved(source, target).finish_move().differences == []
    same(source, target)


def test_what_the_target_was_sent_in_between_is_new_to_every_group(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(5)
    moved(source, target).copy(None)
    before = source.left()
    own = [message("orders", 0), message("orders", 2)]
    target.send(*own)
    source.send(*(message("orders", 0) for _ in range(3)))
    assert moved(source, target).finish_move().differences == []
    ids = {record.message_id for record in own}
    left = target.left()
    for group in ("billing", "audit"):
        assert ids <= {each.message_id for each in left[group]}
        assert set(before[group]) <= set(left[group])
        assert [each for each in left[group] if each.message_id not in ids] == source.left()[group]


def test_topics_with_messages_of_their_own_are_rejected_and_nothing_is_written(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(2)
    target.make("prices", 2)
    target.send(message("prices", 0))
    for run in (moved(source, target).plan_move, lambda: moved(source, target).copy(None)):
        with pytest.raises(MoveError, match="prices has messages at the target that are no copies"):
            run()
    assert target.backend.topic("orders") is None


def test_a_dry_run_says_what_there_is_and_writes_nothing(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(2)
    plan = moved(source, target).plan_move()
    assert (plan.topics, plan.groups) == (5, 2)
    assert sum(plan.remaining.values())
    assert not target.backend.topics()
    assert not target.backend.settings("")


def test_consumers_at_the_source_or_the_target_stop_the_last_step(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(4)
    moved(source, target).copy(None)
    for side, reason in ((source, "the source is still at work"), (target, "consumers are at the target")):
        with seated(side.backend, "billing", "orders"), pytest.raises(MoveError, match=reason):
            moved(source, target).finish_move()
    assert moved(source, target).finish_move().differences == []


def test_patterns_take_a_topic_and_what_belongs_to_it(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(6)
    assert moved(source, target, ("ord*",)).finish_move().differences == []
    assert target.contents("orders") == source.contents("orders")
    assert target.backend.topic("prices") is None
    with pytest.raises(MoveError, match="this move"):
        moved(source, target).copy(None)


def test_differences_are_reported(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(7)
    moved(source, target).copy(None)
    assert isinstance(target.backend, PlayedMemory)
    queue = next(one for one in target.queues("orders") if len(target.records(one)) > 2)
    target.backend.lose(queue, 1)
    differences = moved(source, target).verify_copies().differences
    assert [difference.split(": ")[0] for difference in differences] == [f"orders queue {queue.queue_id}"]


def test_a_run_beside_a_newer_one_ends(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(8)
    older = moved(source, target)
    older.begin()
    older.messages.prepare_targets()
    moved(source, target).begin()
    newer = moved(source, target)
    newer.copy(None)
    source.send(*(message("orders", 0) for _ in range(3)))
    with pytest.raises(DdmqError, match="another `ddmq move` of the same source has taken over"):
        older.messages.copy_round()


def test_progress_that_the_target_had_is_replaced(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(9)
    moved(source, target).copy(None)
    queue = target.queues("orders")[0]
    target.commit(CommitBatch(progress=[ProgressDelta("audit", queue, 3, 0, ((0, 500),))]))
    assert moved(source, target).finish_move().differences == []
    same(source, target)


def test_open_transactions_keep_a_move_from_being_finished(sides):  # type: ignore[no-untyped-def]
    source, target = sides
    source.fill(1)
    source.make(HALF_TOPIC, 1)
    mark = HalfMark("018e0000000070008000000000000001", "bank", "orders", 0)
    source.send(half_record(0, message("orders", 0), mark))
    moved(source, target).copy(None)
    with pytest.raises(MoveError, match="1 transactions are open at the source, 018e0000"):
        moved(source, target).finish_move()
    end_of_transaction = ProgressDelta(TRANSACTION_GROUP, source.queues(HALF_TOPIC)[0], 1, 0, ((0, 1),))
    source.commit(CommitBatch(progress=(end_of_transaction,)))
    assert moved(source, target).finish_move().state == FINISHED
    assert target.backend.topic(HALF_TOPIC) is None
