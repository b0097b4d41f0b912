"""Joining a group: each queue has one holder, each grant a higher epoch, older ones are fenced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.port import Sharing
from backend.records import ProgressDelta, QueueRef
from backend.testing.kit import Kit, Member
from backend.testing.waits import done, until
from ddmq_common.errors import FencedError


def epochs_of(kit: Kit, group: str, queues: list[QueueRef]) -> list[int]:
    return [view.epoch for view in done(kit.backend.progress(group, queues))]


def test_the_only_member_gets_every_queue(kit: Kit) -> None:
    kit.make("orders", 3)
    member = Member(kit, "billing", "orders")
    until(lambda: sorted(member.held) == kit.queues("orders"), "all queues granted")
    for queue, epoch in member.held.items():
        assert epoch >= 1
        kit.commit(progress=[ProgressDelta("billing", queue, epoch, 0, ((0, 1),))])


def test_nothing_is_granted_inside_the_call(kit: Kit) -> None:
    kit.make("orders")
    member = Member(kit, "billing", "orders")
    assert member.granted == []
    until(lambda: member.granted, "granted")


def test_members_never_share_a_queue(kit: Kit) -> None:
    kit.make("orders", 4)
    members = [Member(kit, "billing", "orders") for _ in range(3)]

    def all_held_once() -> bool:
        queues = [queue for member in members for queue in member.held]
        assert len(queues) == len(set(queues)), queues
        return sorted(queues) == kit.queues("orders")

    until(all_held_once, "every queue held")
    while members:
        members.pop(0).leave()
        if members:
            until(all_held_once, "every queue held by who is left")


def test_a_queue_that_moves_gets_a_higher_epoch_and_fences_the_old_one(kit: Kit) -> None:
    kit.make("orders", 2)
    first = Member(kit, "billing", "orders")
    until(lambda: len(first.held) == 2, "granted to the first")
    before = dict(first.held)
    first.leave()
    second = Member(kit, "billing", "orders")
    until(lambda: len(second.held) == 2, "granted to the second")
    for queue in kit.queues("orders"):
        assert second.held[queue] > before[queue]
        with pytest.raises(FencedError):
            kit.commit(progress=[ProgressDelta("billing", queue, before[queue], 0, ((0, 5),))])
        kit.commit(progress=[ProgressDelta("billing", queue, second.held[queue], 0, ((0, 1),))])
        assert kit.progress("billing", queue).committed == 1


def test_a_grant_shows_in_the_progress_and_keeps_it(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[ProgressDelta("billing", queue, 17, 0, ((0, 4), (6, 7)), ((5, 2),))])
    member = Member(kit, "billing", "orders")
    until(lambda: member.held, "granted")
    assert member.held[queue] > 17
    view = kit.progress("billing", queue)
    assert (view.committed, view.finished, view.attempts) == (4, ((6, 7),), {5: 2})
    assert view.epoch == member.held[queue]


def test_groups_do_not_mind_each_other(kit: Kit) -> None:
    kit.make("orders", 2)
    billing, audit = Member(kit, "billing", "orders"), Member(kit, "audit", "orders")
    until(lambda: len(billing.held) == len(audit.held) == 2, "both have all")


def test_topics_do_not_mind_each_other(kit: Kit) -> None:
    kit.make("orders")
    kit.make("bills")
    orders, bills = Member(kit, "billing", "orders"), Member(kit, "billing", "bills")
    until(lambda: list(orders.held) == kit.queues("orders"), "orders granted")
    until(lambda: list(bills.held) == kit.queues("bills"), "bills granted")


def test_who_waits_gets_it_when_the_holder_leaves(kit: Kit) -> None:
    kit.make("orders")
    first = Member(kit, "billing", "orders", sharing=Sharing.WHOLE_TOPIC)
    until(lambda: first.held, "granted to the first")
    second = Member(kit, "billing", "orders", sharing=Sharing.WHOLE_TOPIC)
    first.leave()
    until(lambda: second.held, "granted to the second")
    first.leave()
    assert not first.held


def test_who_left_before_hearing_never_hears(kit: Kit) -> None:
    kit.make("orders")
    departed = Member(kit, "billing", "orders")
    departed.leave()
    other = Member(kit, "billing", "orders")
    until(lambda: other.held, "granted to the other")
    assert departed.granted == []


def test_a_topic_that_comes_later_is_granted_then(kit: Kit) -> None:
    member = Member(kit, "billing", "orders")
    kit.make("orders", 2)
    until(lambda: sorted(member.held) == kit.queues("orders"), "granted once it exists")


def test_queues_that_are_added_are_granted(kit: Kit) -> None:
    info = kit.make("orders", 1)
    member = Member(kit, "billing", "orders")
    until(lambda: len(member.held) == 1, "granted")
    done(kit.backend.put_topic(replace(info, queues=3), kit.soon))
    until(lambda: sorted(member.held) == kit.queues("orders"), "the new ones granted")
    for queue, epoch in member.held.items():
        kit.commit(progress=[ProgressDelta("billing", queue, epoch, 0, ((0, 1),))])


def test_a_deleted_topic_is_lost_and_the_new_one_granted(kit: Kit) -> None:
    old = kit.make_queue("orders")
    member = Member(kit, "billing", "orders")
    until(lambda: member.held, "granted")
    done(kit.backend.delete_topic("orders", kit.soon))
    until(lambda: old not in member.held, "lost")
    kit.make("orders")
    until(lambda: list(member.held) == kit.queues("orders"), "the new incarnation granted")


def test_epochs_are_seen_in_bulk(kit: Kit) -> None:
    kit.make("orders", 3)
    member = Member(kit, "billing", "orders")
    until(lambda: len(member.held) == 3, "granted")
    queues = kit.queues("orders")
    assert epochs_of(kit, "billing", queues) == [member.held[queue] for queue in queues]
