"""What is remembered of acknowledgements that carried messages, and whose those are that others come with."""

from __future__ import annotations

from collections import deque
from typing import Any

from backend.records import ProgressView, QueueRef
from proxy_consumer.core import replying
from proxy_consumer.core.leases import Lease
from proxy_consumer.core.queue_feed import ReadPlan, Slice
from proxy_consumer.core.replying import Ack, RecordedReply, Replied, ReservationResult, reply_id
from proxy_consumer.core.retry_policy import RetryPolicy
from proxy_consumer.core.subscribed_queue import SubscribedQueue
from proxy_consumer.core.tally import Budget, Count, Tally

QUEUE = QueueRef("T", 3, 1)
ACK = Ack("G", QUEUE, 5, 7)


def leased_queue(budget: Budget) -> SubscribedQueue:
    """A queue of which a client has four messages of ten bytes."""
    view, plan = ProgressView(0, (), {}, 1, 0), ReadPlan(lambda count: (count, 1), 1)
    queue = SubscribedQueue(QUEUE, view, 0, RetryPolicy((), -1), budget, Tally(), plan, Count(), deque())
    batch: Any = None
    queue.lease(Slice(batch, range(4), [bytes(10)] * 4, range(4)), Lease(7, 100.0))
    return queue


def test_ids_are_the_same_each_time_and_no_others() -> None:
    others = QueueRef("T", 4, 1), QueueRef("U", 3, 1), QueueRef("T", 3, 2)
    acks = [ACK, ACK._replace(group="H"), ACK._replace(offset=6), ACK._replace(lease_id=8)]
    acks += [ACK._replace(queue=queue) for queue in others]
    ids = [reply_id(ack, index) for ack in acks for index in range(3)]
    assert len(set(ids)) == len(ids)
    assert {len(one) for one in ids} == {16}
    assert reply_id(ACK, 0) == ids[0]


def test_the_newest_are_remembered() -> None:
    replied = Replied(count_max=2)
    for offset in range(3):
        replied.record_reply(Ack("G", QUEUE, offset, 7), [offset])
    assert replied.earlier_reply(Ack("G", QUEUE, 0, 7)) is None
    assert replied.earlier_reply(Ack("G", QUEUE, 2, 9)) == RecordedReply(7, [2]), "under which lease it was"
    replied.record_reply(Ack("G", QUEUE, 2, 9), ["again"])
    assert replied.earlier_reply(Ack("G", QUEUE, 2, 9)) == RecordedReply(9, ["again"])
    assert replied.earlier_reply(Ack("G", QUEUE, 1, 7)) == RecordedReply(7, [1])
    assert replied.earlier_reply(Ack("H", QUEUE, 1, 7)) is None, "another group's"


def test_their_results_are_bounded_together() -> None:
    replied = Replied(results_max=10)
    for offset in range(4):
        replied.record_reply(Ack("G", QUEUE, offset, 7), ["x"] * 4)
    assert [replied.earlier_reply(Ack("G", QUEUE, offset, 7)) is not None for offset in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    replied.record_reply(Ack("G", QUEUE, 3, 8), ["x"] * 6)
    assert [replied.earlier_reply(Ack("G", QUEUE, offset, 7)) is not None for offset in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    replied.record_reply(Ack("G", QUEUE, 5, 8), ["x"] * 11)
    assert [replied.earlier_reply(Ack("G", QUEUE, offset, 7)) for offset in range(6)] == [None] * 6, (
        "it is found where it stands"
    )


def test_an_ack_without_a_lease_does_not_finish_a_reserved_message() -> None:
    one = leased_queue(Budget())
    one.delivered_until = 10  # handed out before the queue was lost, and came back
    assert replying.reserve_message(one, 2, 7) is ReservationResult.RESERVED
    assert one.finish_messages([2], None, 1.0) == 0
    assert one.finish_messages([0, 1, 2, 3, 4], None, 1.0) == 4
    assert not one.ack_map.is_finished(2)
    assert [run[:3] for run in one.leases.leased_runs()] == [(2, 3, 10)], "who has the queue next hears of it"
    assert replying.finish_reserved(one, 2).id == 7
    assert one.ack_map.committed == 5


def test_retention_may_finish_it_meanwhile() -> None:
    one = leased_queue(Budget())
    replying.reserve_message(one, 2, 7)
    one.expire_ranges([(0, 4)])
    assert replying.reserve_message(one, 2, 7) is ReservationResult.FINISHED
    replying.end_reservation(one, 2)
    assert (one.leases.lease_of(2), one.ack_map.committed) == (None, 4)


def test_a_queue_that_goes_leaves_nothing_in_the_budget() -> None:
    budget = Budget()
    one = leased_queue(budget)
    replying.reserve_message(one, 2, 7)
    assert (budget.leased, budget.leased_bytes) == (4, 40)
    one.release_all()
    assert (budget.leased, budget.leased_bytes) == (0, 0)
