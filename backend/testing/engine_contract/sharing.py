"""Queues shared among the members of a group: who gets which, and how they change hands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.port import Sharing
from backend.records import ProgressDelta, QueueRef
from backend.testing.kit import Kit, Member
from backend.testing.waits import done, until
from ddmq_common.errors import FencedError

WHOLE_TOPIC, WHOLE_GROUP = Sharing.WHOLE_TOPIC, Sharing.WHOLE_GROUP


def list_shares(*members: Member) -> list[list[int]]:
    return [member.numbers for member in members]


def come_to(expected: list[list[int]], *members: Member) -> None:
    until(lambda: list_shares(*members) == expected, f"{expected}")


def finish_one(kit: Kit, queue: QueueRef, epoch: int) -> None:
    kit.commit(progress=[ProgressDelta("billing", queue, epoch, 0, ((0, 1),))])


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        (Sharing.AVERAGELY, [[0, 1, 2], [3, 4], [5, 6]]),
        (Sharing.BY_CIRCLE, [[0, 3, 6], [1, 4], [2, 5]]),
        (Sharing.WHOLE_TOPIC, [[0, 1, 2, 3, 4, 5, 6], [], []]),
        (Sharing.WHOLE_GROUP, [[0, 1, 2, 3, 4, 5, 6], [], []]),
    ],
)
def test_three_members_share_as_requested(kit: Kit, sharing: Sharing, expected: list[list[int]]) -> None:
    kit.make("orders", 7)
    members = [Member(kit, "billing", "orders", sharing=sharing, address=f"h:{n}") for n in range(3)]
    come_to(expected, *members)
    for member in members:
        for queue, epoch in member.owned.items():
            finish_one(kit, queue, epoch)


def test_consistent_hash_moves_only_what_a_newcomer_takes(kit: Kit) -> None:
    kit.make("orders", 32)
    sharing = Sharing.CONSISTENT_HASH
    first = Member(kit, "billing", "orders", sharing=sharing, address="h:1")
    second = Member(kit, "billing", "orders", sharing=sharing, address="h:2")
    until(lambda: len(first.owned) + len(second.owned) == 32 and second.owned, "two share")
    before = {**first.owned, **second.owned}
    third = Member(kit, "billing", "orders", sharing=sharing, address="h:3")
    until(lambda: third.owned and sum(map(len, list_shares(first, second, third))) == 32, "three share")
    stayed = {**first.owned, **second.owned}
    assert stayed == {queue: before[queue] for queue in stayed}, "and what stays keeps its epoch"


def test_only_queues_that_move_are_revoked(kit: Kit) -> None:
    kit.make("orders", 4)
    first = Member(kit, "billing", "orders", address="h:1")
    come_to([[0, 1, 2, 3]], first)
    before = dict(first.owned)
    second = Member(kit, "billing", "orders", address="h:2")
    come_to([[0, 1], [2, 3]], first, second)
    assert [queue.queue_id for queue in first.revoked_queues] == [2, 3]
    assert first.owned == {queue: before[queue] for queue in first.owned}, "what stays keeps its epoch"
    assert first.lost_queues == []
    for queue, epoch in second.owned.items():
        assert epoch > before[queue]
        with pytest.raises(FencedError):
            finish_one(kit, queue, before[queue])
        finish_one(kit, queue, epoch)
    for queue, epoch in first.owned.items():
        finish_one(kit, queue, epoch)


def test_who_leaves_is_inherited_by_who_stays(kit: Kit) -> None:
    kit.make("orders", 4)
    first, second, third = (Member(kit, "billing", "orders", address=f"h:{n}") for n in range(3))
    come_to([[0, 1], [2], [3]], first, second, third)
    second.leave()
    come_to([[0, 1], [2, 3]], first, third)
    assert third.revoked_queues == []
    first.leave()
    come_to([[0, 1, 2, 3]], third)


def test_a_queue_is_granted_only_after_its_release(kit: Kit) -> None:
    kit.make("orders", 2)
    first = Member(kit, "billing", "orders", lazy=True, address="h:1")
    come_to([[0, 1]], first)
    second = Member(kit, "billing", "orders", address="h:2")
    until(lambda: first.revoked_queues, "asked to release")
    queue = first.revoked_queues[0]
    finish_one(kit, queue, first.owned[queue])  # what is finished until then still counts
    assert second.owned == {}
    assert list(done(kit.backend.holders("billing", "orders", kit.soon)).values()) == ["h:1"]
    epoch = first.owned.pop(queue)
    first.membership.release([queue])
    come_to([[0], [1]], first, second)
    assert second.owned[queue] > epoch
    assert kit.progress("billing", queue).committed == 1


@pytest.mark.slow
def test_who_does_not_release_in_time_has_lost_it(kit: Kit) -> None:
    kit.make("orders", 2)
    first = Member(kit, "billing", "orders", lazy=True, address="h:1")
    come_to([[0, 1]], first)
    before = dict(first.owned)
    second = Member(kit, "billing", "orders", address="h:2")
    come_to([[0], [1]], first, second)
    assert first.lost_queues == [kit.queue("orders", 1)]
    with pytest.raises(FencedError):
        finish_one(kit, kit.queue("orders", 1), before[kit.queue("orders", 1)])
    finish_one(kit, kit.queue("orders", 0), before[kit.queue("orders", 0)])


def test_a_topic_that_grows_is_rebalanced(kit: Kit) -> None:
    info = kit.make("orders", 2)
    first = Member(kit, "billing", "orders", sharing=Sharing.BY_CIRCLE, address="h:1")
    come_to([[0, 1]], first)
    second = Member(kit, "billing", "orders", sharing=Sharing.BY_CIRCLE, address="h:2")
    come_to([[0], [1]], first, second)
    done(kit.backend.put_topic(replace(info, queues=5), kit.soon))
    come_to([[0, 2, 4], [1, 3]], first, second)
    assert first.revoked_queues == [kit.queue("orders", 1)], "when the second came, and nothing since"
    assert second.revoked_queues == []


def test_members_get_only_queues_that_they_can_take(kit: Kit) -> None:
    kit.make("orders", 6)
    low = Member(kit, "billing", "orders", queues=frozenset({0, 1, 2}), address="h:1")
    even = Member(kit, "billing", "orders", queues=frozenset({0, 2, 4}), address="h:2")
    come_to([[0, 1], [2, 4]], low, even)
    assert set(done(kit.backend.holders("billing", "orders", kit.soon))) == {
        kit.queue("orders", number) for number in (0, 1, 2, 4)
    }
    low.leave()
    come_to([[0, 2, 4]], even)
    anybody = Member(kit, "billing", "orders", address="h:3")
    come_to([[0, 2], [1, 3, 4, 5]], even, anybody)


def test_an_undivided_topic_stays_with_its_owner(kit: Kit) -> None:
    info = kit.make("orders", 3)
    first = Member(kit, "billing", "orders", sharing=WHOLE_TOPIC, address="h:2")
    second = Member(kit, "billing", "orders", sharing=WHOLE_TOPIC, address="h:1")
    come_to([[0, 1, 2], []], first, second)
    done(kit.backend.put_topic(replace(info, queues=5), kit.soon))
    come_to([[0, 1, 2, 3, 4], []], first, second)
    assert first.revoked_queues == []
    first.leave()
    come_to([[0, 1, 2, 3, 4]], second)


def test_the_strictest_sharing_holds_for_all(kit: Kit) -> None:
    kit.make("orders", 4)
    first, second = (Member(kit, "billing", "orders", address=f"h:{n}") for n in range(2))
    come_to([[0, 1], [2, 3]], first, second)
    third = Member(kit, "billing", "orders", sharing=WHOLE_TOPIC, address="h:3")
    come_to([[0, 1, 2, 3], [], []], first, second, third)
    third.leave()
    come_to([[0, 1], [2, 3]], first, second)


def test_a_group_s_topics_go_to_one_member_also_those_that_come_later(kit: Kit) -> None:
    kit.make("orders", 2)
    kit.make("bills", 3)
    one = {"sharing": WHOLE_GROUP, "member": "one", "address": "h:1"}
    two = {"sharing": WHOLE_GROUP, "member": "two", "address": "h:2"}
    orders1 = Member(kit, "billing", "orders", **one)
    orders2 = Member(kit, "billing", "orders", **two)
    come_to([[0, 1], []], orders1, orders2)
    bills1 = Member(kit, "billing", "bills", **one)
    bills2 = Member(kit, "billing", "bills", **two)
    mails2 = Member(kit, "billing", "mails", **two)
    mails1 = Member(kit, "billing", "mails", **one)
    come_to([[0, 1], [0, 1, 2], [], []], orders1, bills1, orders2, bills2)
    kit.make("mails", 2)
    come_to([[0, 1], [0, 1]], orders1, mails1)
    assert [orders1.revoked_queues, bills1.revoked_queues, mails2.granted] == [[], [], []]
    for member in (orders1, bills1, mails1):
        member.leave()
    come_to([[0, 1], [0, 1, 2], [0, 1]], orders2, bills2, mails2)


def test_a_group_goes_to_the_member_that_is_in_more_of_its_topics(kit: Kit) -> None:
    kit.make("orders", 2)
    kit.make("bills", 2)
    orders1 = Member(kit, "billing", "orders", sharing=WHOLE_GROUP, member="one")
    come_to([[0, 1]], orders1)
    orders2 = Member(kit, "billing", "orders", sharing=WHOLE_GROUP, member="two")
    bills2 = Member(kit, "billing", "bills", sharing=WHOLE_GROUP, member="two")
    come_to([[], [0, 1], [0, 1]], orders1, orders2, bills2)


def test_a_new_group_holder_gets_nothing_before_the_old_one_releases(kit: Kit) -> None:
    kit.make("orders")
    kit.make("bills")
    orders1 = Member(kit, "billing", "orders", sharing=WHOLE_GROUP, member="one")
    bills1 = Member(kit, "billing", "bills", lazy=True, sharing=WHOLE_GROUP, member="one")
    come_to([[0], [0]], orders1, bills1)
    orders2 = Member(kit, "billing", "orders", sharing=WHOLE_GROUP, member="two")
    bills2 = Member(kit, "billing", "bills", sharing=WHOLE_GROUP, member="two")
    orders1.leave()
    until(lambda: bills1.revoked_queues, "the group moves")
    assert list_shares(orders2, bills2) == [[], []]
    bills1.owned.clear()
    bills1.membership.release(bills1.revoked_queues)
    come_to([[], [0], [0]], bills1, orders2, bills2)


def test_holders_are_reported_by_their_address(kit: Kit) -> None:
    kit.make("orders", 3)
    assert done(kit.backend.holders("billing", "orders", kit.soon)) == {}
    members = [Member(kit, "billing", "orders", address=f"h:{n}") for n in range(2)]
    come_to([[0, 1], [2]], *members)
    queues = kit.queues("orders")
    holders = done(kit.backend.holders("billing", "orders", kit.soon))
    assert holders == {queues[0]: "h:0", queues[1]: "h:0", queues[2]: "h:1"}
    assert done(kit.backend.holders("audit", "orders", kit.soon)) == {}
    members[0].leave()
    until(
        lambda: set(done(kit.backend.holders("billing", "orders", kit.soon)).values()) == {"h:1"},
        "who stays holds all",
    )
