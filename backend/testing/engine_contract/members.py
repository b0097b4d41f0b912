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
    until(lambda: sorted(member.owned) == kit.queues("orders"), "all queues granted")
    for queue, epoch in member.owned.items():
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

    def all_owned_once() -> bool:
        queues = [queue for member in members for queue in member.owned]
        assert len(queues) == len(set(queues)), queues
        return sorted(queues) == kit.queues("orders")

    until(all_owned_once, "every queue owned")
    while members:
        members.pop(0).leave()
        if members:
            until(all_owned_once, "every queue owned by the remaining members")


def test_a_queue_that_moves_gets_a_higher_epoch_and_fences_the_old_one(kit: Kit) -> None:
    kit.make("orders", 2)
    first = Member(kit, "billing", "orders")
    until(lambda: len(first.owned) == 2, "granted to the first")
    before = dict(first.owned)
    first.leave()
    second = Member(kit, "billing", "orders")
    until(lambda: len(second.owned) == 2, "granted to the second")
    for queue in kit.queues("orders"):
        assert second.owned[queue] > before[queue]
        with pytest.raises(FencedError):
            kit.commit(progress=[ProgressDelta("billing", queue, before[queue], 0, ((0, 5),))])
        kit.commit(progress=[ProgressDelta("billing", queue, second.owned[queue], 0, ((0, 1),))])
        assert kit.progress("billing", queue).committed == 1


def test_a_grant_shows_in_the_progress_and_keeps_it(kit: Kit) -> None:
    queue = kit.make_queue("orders")
    kit.commit(progress=[ProgressDelta("billing", queue, 17, 0, ((0, 4), (6, 7)), ((5, 2),))])
    member = Member(kit, "billing", "orders")
    until(lambda: member.owned, "granted")
    assert member.owned[queue] > 17
    view = kit.progress("billing", queue)
    assert (view.committed, view.finished, view.attempts) == (4, ((6, 7),), {5: 2})
    assert view.epoch == member.owned[queue]


def test_groups_do_not_mind_each_other(kit: Kit) -> None:
    kit.make("orders", 2)
    billing, audit = Member(kit, "billing", "orders"), Member(kit, "audit", "orders")
    until(lambda: len(billing.owned) == len(audit.owned) == 2, "both have all")


def test_topics_do_not_mind_each_other(kit: Kit) -> None:
    kit.make("orders")
    kit.make("bills")
    orders, bills = Member(kit, "billing", "orders"), Member(kit, "billing", "bills")
    until(lambda: list(orders.owned) == kit.queues("orders"), "orders granted")
    until(lambda: list(bills.owned) == kit.queues("bills"), "bills granted")


def test_a_waiting_member_gets_the_queue_when_its_owner_leaves(kit: Kit) -> None:
    kit.make("orders")
    first = Member(kit, "billing", "orders", sharing=Sharing.WHOLE_TOPIC)
    until(lambda: first.owned, "granted to the first")
    second = Member(kit, "billing", "orders", sharing=Sharing.WHOLE_TOPIC)
    first.leave()
    until(lambda: second.owned, "granted to the second")
    first.leave()
    assert not first.owned


def test_who_left_before_hearing_never_hears(kit: Kit) -> None:
    kit.make("orders")
    departed = Member(kit, "billing", "orders")
    departed.leave()
    other = Member(kit, "billing", "orders")
    until(lambda: other.owned, "granted to the other")
    assert departed.granted == []


def test_a_topic_that_comes_later_is_granted_then(kit: Kit) -> None:
    member = Member(kit, "billing", "orders")
    kit.make("orders", 2)
    until(lambda: sorted(member.owned) == kit.queues("orders"), "granted once it exists")


def test_queues_that_are_added_are_granted(kit: Kit) -> None:
    info = kit.make("orders", 1)
    member = Member(kit, "billing", "orders")
    until(lambda: len(member.owned) == 1, "granted")
    done(kit.backend.put_topic(replace(info, queues=3), kit.soon))
    until(lambda: sorted(member.owned) == kit.queues("orders"), "the new ones granted")
    for queue, epoch in member.owned.items():
        kit.commit(progress=[ProgressDelta("billing", queue, epoch, 0, ((0, 1),))])


def test_a_deleted_topic_is_lost_and_the_new_one_granted(kit: Kit) -> None:
    old = kit.make_queue("orders")
    member = Member(kit, "billing", "orders")
    until(lambda: member.owned, "granted")
    done(kit.backend.delete_topic("orders", kit.soon))
    until(lambda: old not in member.owned, "lost")
    kit.make("orders")
    until(lambda: list(member.owned) == kit.queues("orders"), "the new incarnation granted")


def test_epochs_of_many_queues_are_read_at_once(kit: Kit) -> None:
    kit.make("orders", 3)
    member = Member(kit, "billing", "orders")
    until(lambda: len(member.owned) == 3, "granted")
    queues = kit.queues("orders")
    assert epochs_of(kit, "billing", queues) == [member.owned[queue] for queue in queues]
