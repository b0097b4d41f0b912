"""Health, draining and closing."""

from __future__ import annotations

import pytest

from backend.completion import Completion
from backend.records import AppendResult, AppendStatus, CommitBatch, TopicInfo
from backend.testing.kit import Kit, Member
from backend.testing.waits import done, until
from ddmq_common.errors import DrainingError, RemoteError, TryLaterError, UnknownTopicError

SETTLED = (AppendStatus.STORED, AppendStatus.NOT_STORED, AppendStatus.UNKNOWN, AppendStatus.REFUSED)


def refused_as_draining(call: Completion[list[AppendResult]]) -> bool:
    """The append failed with DrainingError, or says so per record; nothing else is allowed."""
    try:
        results = done(call)
    except DrainingError:
        return True
    return all(
        result.status in (AppendStatus.REFUSED, AppendStatus.NOT_STORED)
        and isinstance(result.error, DrainingError)
        for result in results
    )


def test_an_open_engine_is_ready(kit: Kit) -> None:
    assert kit.backend.health().ready


def test_it_says_what_it_can_do(kit: Kit) -> None:
    capabilities = kit.backend.capabilities
    assert capabilities.engine
    assert capabilities.durability
    assert capabilities.body_bytes_max >= 2 * 1024 * 1024
    assert "_" not in kit.backend.broker


def test_a_deadline_that_has_passed_is_answered_all_the_same(kit: Kit) -> None:
    kit.make("orders")
    past = kit.clock.monotonic() - 1
    results = done(kit.backend.append([kit.new("orders")] * 3, past))
    assert [result.status in SETTLED for result in results] == [True] * 3
    for call in (
        kit.backend.commit(CommitBatch([kit.new("orders")]), past),
        kit.backend.put_topic(TopicInfo("bills", 0, 1), past),
        kit.backend.delete_topic("bills", past),
    ):
        try:
            done(call)  # type: ignore[arg-type]
        except (TryLaterError, RemoteError, UnknownTopicError):
            pass
    assert kit.append(kit.new("orders"))[0].status is AppendStatus.STORED


def test_a_callback_that_raises_costs_nobody_else_an_answer(kit: Kit) -> None:
    """The error is a bug of the caller: it is shown on standard error, and the engine continues."""
    queue = kit.make_queue("orders")

    def raise_error(_: object) -> None:
        raise ZeroDivisionError("broken on purpose")

    stop = kit.backend.watch_settings(raise_error)
    waits = [kit.backend.wait(queue, 0, kit.soon) for _ in range(3)]
    waits[1].then(raise_error)
    appends = [kit.backend.append([kit.new("orders")], kit.soon) for _ in range(5)]
    appends[1].then(raise_error)
    commits = [kit.backend.commit(CommitBatch(settings={"k": b"%d" % n}), kit.soon) for n in range(5)]
    commits[1].then(raise_error)
    reads = [kit.backend.read(queue, 0, 1, 1) for _ in range(5)]
    reads[1].then(raise_error)
    everyone: list[Completion] = [*appends, *commits, *reads, *waits]
    until(lambda: all(call.done for call in everyone), "everyone answered")
    assert [done(call)[0].offset for call in appends] == list(range(5))
    assert [done(call) for call in commits] == [[]] * 5
    assert all(done(call) for call in reads)
    assert [done(wait) for wait in waits] == [True] * 3
    stop()
    assert kit.send("orders", b"x") == [5]
    assert done(kit.backend.wait(queue, 5, kit.soon)) is True


def test_draining_settles_what_is_pending_and_refuses_what_is_new(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    pending = [kit.backend.append([kit.new("orders")], kit.soon) for _ in range(20)]
    drained = kit.backend.drain(kit.soon)
    late = kit.backend.append([kit.new("orders")], kit.soon)
    commit = kit.backend.commit(CommitBatch(settings={"k": b"v"}), kit.soon)
    topic = kit.backend.put_topic(TopicInfo("bills", 0, 1), kit.soon)
    assert done(drained) is None
    assert [call.done for call in pending] == [True] * 20
    assert [done(call)[0].offset for call in pending] == list(range(20))
    assert refused_as_draining(late)
    for refused in (commit, topic):
        with pytest.raises(DrainingError):
            done(refused)
    assert not kit.backend.health().ready
    assert kit.backend.health().reason
    assert len(kit.stored(queue)) == 20


def test_draining_twice_is_harmless(kit: Kit) -> None:
    first, second = kit.backend.drain(kit.soon), kit.backend.drain(kit.soon)
    assert done(first) is None
    assert done(second) is None


def test_closing_settles_everything(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    parked = kit.backend.wait(queue, 0, kit.soon)
    cancelled = kit.backend.wait(queue, 0, kit.soon)
    cancelled.cancel()
    calls = [kit.backend.append([kit.new("orders")], kit.soon) for _ in range(10)]
    kit.backend.close()
    for call in calls:
        try:
            assert all(result.status in SETTLED for result in done(call))
        except DrainingError:
            pass
    try:
        assert done(parked) is True  # when the append was faster
    except DrainingError:
        pass
    assert not cancelled.done


def test_a_closed_engine_rejects_calls_and_may_be_closed_twice(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.backend.close()
    kit.backend.close()
    assert refused_as_draining(kit.backend.append([kit.new("orders")], kit.soon))
    for call in (
        kit.backend.commit(CommitBatch(), kit.soon),
        kit.backend.read(queue, 0, 1, 1),
        kit.backend.wait(queue, 0, kit.soon),
        kit.backend.bounds([queue]),
        kit.backend.progress("billing", [queue]),
        kit.backend.put_topic(TopicInfo("bills", 0, 1), kit.soon),
    ):
        with pytest.raises(DrainingError):
            done(call)
    assert not kit.backend.health().ready


def test_members_of_a_closed_engine_hear_nothing_more(kit: Kit) -> None:
    kit.make("orders")
    first, second = Member(kit, "billing", "orders"), Member(kit, "billing", "orders")
    kit.backend.close()
    first.leave()
    second.leave()
    assert first.granted == second.granted == []
