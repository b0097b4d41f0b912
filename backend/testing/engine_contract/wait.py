"""Waiting for data: woken at once, False at the deadline, never after a cancel, never forgotten."""

from __future__ import annotations

import time

from backend.completion import Completion
from backend.port import Wait
from backend.testing.kit import Kit
from backend.testing.waits import done
from ddmq_common.errors import UnknownTopicError


def test_data_that_is_there_settles_true(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a", b"b")
    for offset in (0, 1):
        assert done(kit.backend.wait(kit.queue("orders"), offset, kit.soon)) is True


def test_an_append_wakes_everyone_who_waits_for_it(kit: Kit) -> None:
    queue = kit.make_queue("orders", 2)
    waits = [kit.backend.wait(queue, 0, kit.soon) for _ in range(5)]
    later = kit.backend.wait(queue, 1, kit.soon)
    other = kit.backend.wait(kit.queue("orders", 1), 0, kit.soon)
    kit.send("orders", b"a")
    assert [done(wait) for wait in waits] == [True] * 5
    assert not later.done
    assert not other.done
    kit.send("orders", b"b")
    assert done(later) is True
    kit.send("orders", b"c", queue_id=1)
    assert done(other) is True


def test_a_commit_wakes(kit: Kit) -> None:
    kit.make("orders")
    wait = kit.backend.wait(kit.queue("orders"), 0, kit.soon)
    kit.commit([kit.new("orders")])
    assert done(wait) is True


def test_whoever_was_woken_can_read_it(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    for offset in range(50):
        wait = kit.backend.wait(queue, offset, kit.soon)
        call = kit.backend.append([kit.new("orders")], kit.soon)
        assert done(wait) is True
        assert list(kit.read(queue, offset).offsets) == [offset]
        done(call)


def test_false_at_the_deadline_and_not_before(kit: Kit) -> None:
    kit.make("orders")
    start = time.monotonic()
    assert done(kit.backend.wait(kit.queue("orders"), 0, start + 0.05)) is False
    assert time.monotonic() - start >= 0.05


def test_deadlines_are_each_one_s_own(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    now = time.monotonic()
    early: list[float] = []
    waits = []
    for delay_s in (0.09, 0.03, 0.06):
        wait = kit.backend.wait(queue, 0, now + delay_s)
        wait.then(lambda _, due=now + delay_s: early.append(due) if time.monotonic() < due else None)
        waits.append(wait)
    assert [done(wait) for wait in waits] == [False] * 3
    assert early == []


def test_a_deadline_that_has_passed_settles_soon(kit: Kit) -> None:
    kit.make("orders")
    assert done(kit.backend.wait(kit.queue("orders"), 0, time.monotonic() - 1)) is False


def test_a_cancelled_wait_is_never_settled(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    by_data = kit.backend.wait(queue, 0, kit.soon)
    by_deadline = kit.backend.wait(queue, 5, time.monotonic() + 0.02)
    by_data.cancel()
    by_deadline.cancel()
    barrier = kit.backend.wait(queue, 0, kit.soon)
    kit.send("orders", b"a")
    assert done(barrier) is True
    assert done(kit.backend.wait(queue, 5, time.monotonic() + 0.06)) is False
    assert not by_data.done
    assert not by_deadline.done


def test_cancelling_what_is_settled_is_harmless(kit: Kit) -> None:
    kit.make("orders")
    kit.send("orders", b"a")
    wait = kit.backend.wait(kit.queue("orders"), 0, kit.soon)
    assert done(wait) is True
    wait.cancel()
    assert wait.value is True


def test_into_is_what_a_wait_settles(kit: Kit) -> None:
    class Parked(Wait):
        pass

    kit.make("orders")
    parked = Parked()
    assert kit.backend.wait(kit.queue("orders"), 0, kit.soon, parked) is parked
    kit.send("orders", b"a")
    assert done(parked) is True


def test_no_wake_up_is_lost_however_append_and_wait_fall(kit: Kit) -> None:
    """A reader that waits, reads and waits again meets appends that start from its own callbacks."""
    queue = kit.make_queue("orders")
    finished: Completion[int] = Completion()
    rounds = 300

    def read_on(wait: Completion[bool]) -> None:
        assert wait.result() is True
        kit.backend.read(queue, state["offset"], 10, 1000).then(wait_next)

    def wait_next(answer: Completion) -> None:  # type: ignore[type-arg]
        state["offset"] = offset = answer.result().next_offset
        if offset >= rounds:
            finished.succeed(offset)
            return
        if offset % 2:
            kit.backend.wait(queue, offset, kit.soon).then(read_on)
        if offset == state["sent"]:
            state["sent"] += 1
            kit.backend.append([kit.new("orders")], kit.soon)
        if not offset % 2:
            kit.backend.wait(queue, offset, kit.soon).then(read_on)

    state = {"offset": 0, "sent": 1}
    kit.backend.append([kit.new("orders")], kit.soon)
    kit.backend.wait(queue, 0, kit.soon).then(read_on)
    assert done(finished) == rounds


def test_a_thousand_waits_on_many_queues(kit: Kit) -> None:
    kit.make("orders", 10)
    queues = kit.queues("orders")
    waits = [kit.backend.wait(queues[n % 10], 0, kit.soon) for n in range(1000)]
    kit.append(*(kit.new("orders", n) for n in range(10)))
    assert [done(wait) for wait in waits] == [True] * 1000


def test_the_end_of_a_topic_ends_its_waits(kit: Kit) -> None:
    """The wait ends with True or UnknownTopicError, so that the reader learns of the deletion."""
    queue = kit.make_queue("orders")
    parked = kit.backend.wait(queue, 0, kit.soon)
    done(kit.backend.delete_topic("orders", kit.soon))
    for wait in (parked, kit.backend.wait(queue, 0, kit.soon)):
        try:
            assert done(wait) is True
        except UnknownTopicError:
            pass
