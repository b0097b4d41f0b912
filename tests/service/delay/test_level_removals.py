"""Messages removed from a delay level before they are due, over the memory engine: each leaves it once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from backend.completion import Completion, failed
from backend.internal_topics import dead_record, real_record
from backend.records import AppendStatus, NewRecord, StoredRecord
from ddmq_common.delivery import decode
from ddmq_common.errors import BoundReachedError, CallerError, RemoteError, TryLaterError
from ddmq_common.names import SCHEDULE_TOPIC
from delay_service.levels.removal import LEFT, MISSING, ORDERS_MAX, RemovalOrder
from tests.service.delay.levels_rig import LevelsRig
from tests.support.waits import until

DEAD = "%DLQ%g"
LEVEL = 5  # a minute


def bodies(rig: LevelsRig, topic: str = "orders") -> list[bytes]:
    return [decode(record.delivery).value for record in rig.stored(topic)]


def fire_now(record: StoredRecord, bare: bool) -> NewRecord:
    return real_record(record)


def bury(record: StoredRecord, bare: bool) -> NewRecord:
    return dead_record(DEAD, record, {"dead-letter-reason": "skipped"}, {}, bare=bare)


def remove(
    rig: LevelsRig,
    offsets: Sequence[int],
    build: Callable[[StoredRecord, bool], NewRecord | str] = fire_now,
    level: int = LEVEL,
) -> Completion[dict[int, str]]:
    order = RemovalOrder(offsets, build, DEAD if build is bury else "")
    done = rig.service.remove_messages(level, order)
    rig.settle()
    return done


def fill(rig: LevelsRig, count: int = 5) -> None:
    rig.send(LEVEL, [b"%d" % number for number in range(count)])


def test_removed_messages_go_elsewhere_now_and_the_others_fire_when_they_are_due(rig: LevelsRig) -> None:
    fill(rig)
    assert remove(rig, [3, 1]).result() == {1: "", 3: ""}
    assert bodies(rig) == [b"1", b"3"]
    assert remove(rig, [0], bury).result() == {0: ""}
    assert bodies(rig, DEAD) == [b"0"]
    assert (rig.position(LEVEL), rig.value("ddmq_levels_removed_total", level=str(LEVEL))) == (2, 3)
    rig.check_alarm.ring()
    rig.settle()
    assert rig.value("ddmq_levels_pending", level=str(LEVEL)) == 2
    rig.advance(59.9)
    assert bodies(rig) == [b"1", b"3"]
    rig.advance(0.1)
    assert bodies(rig) == [b"1", b"3", b"2", b"4"]
    assert (rig.position(LEVEL), rig.value("ddmq_levels_pending", level=str(LEVEL))) == (5, 0)


def test_what_has_left_the_level_is_not_removed_again(rig: LevelsRig) -> None:
    fill(rig, 3)
    remove(rig, [1])
    assert remove(rig, [1, 2, 99, 10**18], bury).result() == {1: LEFT, 2: "", 99: MISSING, 10**18: MISSING}
    rig.advance(60)
    assert remove(rig, [0, 1], bury).result() == {0: LEFT, 1: LEFT}
    assert (bodies(rig), bodies(rig, DEAD)) == ([b"1", b"0"], [b"2"])


def test_a_restarted_or_another_owner_does_not_fire_what_was_removed(rig: LevelsRig) -> None:
    fill(rig)
    remove(rig, [2, 4])
    rig.service.close()
    rig.start()
    assert remove(rig, [2, 3], bury).result() == {2: LEFT, 3: ""}
    rig.memory.depose(SCHEDULE_TOPIC, SCHEDULE_TOPIC)
    until(lambda: rig.service.owned_count == 18, "granted again")
    rig.advance(60)
    assert bodies(rig) == [b"2", b"4", b"0", b"1"]
    assert bodies(rig, DEAD) == [b"3"]


def test_a_removal_waits_for_a_fire_in_flight_and_finds_what_it_left(rig: LevelsRig) -> None:
    fill(rig)
    rig.memory.pause_writes()
    rig.advance(60)
    order = remove(rig, [0, 4], bury)
    assert not order.done
    rig.memory.resume_writes()
    until(lambda: order.done, "it has ended")
    assert order.result() == {0: LEFT, 4: LEFT}
    assert bodies(rig) == [b"0", b"1", b"2", b"3", b"4"]
    assert rig.stored(DEAD) == []


def test_a_fire_waits_for_a_removal_in_flight_and_leaves_out_what_it_took(rig: LevelsRig) -> None:
    fill(rig)
    rig.advance(55)
    rig.memory.pause_writes()
    order = remove(rig, [0, 2], fire_now)
    rig.advance(5)  # all are due, and the removal still has time
    assert not order.done
    rig.memory.resume_writes()
    until(lambda: len(rig.stored()) == 5, "the others are fired")
    assert bodies(rig) == [b"0", b"2", b"1", b"3", b"4"]


@pytest.mark.parametrize("stored", [True, False])
def test_an_uncertain_removal_is_neither_lost_nor_done_twice(rig: LevelsRig, stored: bool) -> None:
    rig.make(DEAD)
    fill(rig)
    rig.memory.fail_next(RemoteError("nobody knows"), AppendStatus.UNKNOWN, stored=stored)
    order = remove(rig, [1, 2], bury)
    with pytest.raises(RemoteError, match="nobody knows"):
        order.result()
    until(lambda: rig.service.owned_count == 18, "the levels are claimed again")
    rig.settle()
    repeated = remove(rig, [1, 2], bury).result()
    assert repeated == ({1: LEFT, 2: LEFT} if stored else {1: "", 2: ""})
    rig.advance(60)
    assert (bodies(rig), bodies(rig, DEAD)) == ([b"0", b"3", b"4"], [b"1", b"2"])


def test_a_removal_that_is_not_stored_changes_nothing(rig: LevelsRig) -> None:
    rig.make(DEAD)
    fill(rig, 2)
    rig.memory.fail_next(BoundReachedError("full"), AppendStatus.NOT_STORED)
    with pytest.raises(TryLaterError, match="full"):
        remove(rig, [0], bury).result()
    rig.advance(60)
    assert (bodies(rig), bodies(rig, DEAD)) == ([b"0", b"1"], [])


def test_a_record_that_the_engine_rejects_stays_and_the_others_are_removed(rig: LevelsRig) -> None:
    fill(rig)
    commit = rig.backend.commit

    def picky(batch, deadline, into=None):  # type: ignore[no-untyped-def]
        values = [decode(record.delivery) for record in batch.records if record.topic == DEAD]
        if any(each.value == b"1" or (each.value == b"2" and len(each.properties) > 1) for each in values):
            return failed(CallerError("too large"), into)
        return commit(batch, deadline, into)

    rig.backend.commit = picky  # type: ignore[method-assign]
    outcome = remove(rig, [0, 1, 2, 3], bury).result()
    assert outcome == {0: "", 1: "it is rejected: too large", 2: "", 3: ""}
    assert bodies(rig, DEAD) == [b"0", b"2", b"3"]
    assert [len(decode(each.delivery).properties) for each in rig.stored(DEAD)] == [2, 1, 2], "one is bare"
    rig.advance(60)
    assert bodies(rig) == [b"1", b"4"]


def test_a_message_can_stay_for_a_reason_of_the_order(rig: LevelsRig) -> None:
    fill(rig, 2)
    order = remove(
        rig, [0, 1], lambda record, _: "not this one" if not record.offset else real_record(record)
    )
    assert order.result() == {0: "not this one", 1: ""}
    rig.advance(60)
    assert bodies(rig) == [b"1", b"0"]


def test_an_order_that_cannot_be_built_fails_alone(rig: LevelsRig) -> None:
    fill(rig, 2)

    def broken(record: StoredRecord, bare: bool) -> NewRecord:
        raise KeyError("x")

    with pytest.raises(KeyError):
        remove(rig, [0], broken).result()
    assert remove(rig, [0]).result() == {0: ""}


def test_orders_wait_for_each_other_and_their_number_is_limited(rig: LevelsRig) -> None:
    fill(rig, 40)
    rig.memory.pause_writes()
    orders = [remove(rig, [number]) for number in range(ORDERS_MAX + 1)]
    with pytest.raises(TryLaterError, match="delay level 5 has 16 orders to carry out"):
        orders[-1].result()
    rig.memory.resume_writes()
    until(lambda: all(order.done for order in orders), "all have ended")
    assert [order.result() for order in orders[:-1]] == [{number: ""} for number in range(ORDERS_MAX)]
    assert bodies(rig) == [b"%d" % number for number in range(ORDERS_MAX)]


def test_many_messages_are_removed_in_several_commits(rig: LevelsRig) -> None:
    rig.send(LEVEL, [b"%d" % number + bytes(300_000) for number in range(10)])
    commits = []
    commit = rig.backend.commit
    rig.backend.commit = lambda *terms, **rest: commits.append(terms) or commit(*terms, **rest)  # type: ignore
    assert remove(rig, range(10)).result() == dict.fromkeys(range(10), "")
    assert len(commits) > 1
    rig.advance(60)
    assert len(rig.stored()) == 10


def test_a_stop_ends_the_commit_in_flight_and_fails_the_other_orders(rig: LevelsRig) -> None:
    fill(rig)
    rig.memory.pause_writes()
    first, second = remove(rig, [0]), remove(rig, [1])
    drained = rig.service.drain(rig.clock.monotonic() + 10)
    rig.settle()
    assert (first.done, drained.done) == (False, False)
    with pytest.raises(TryLaterError, match="moves to another process"):
        second.result()
    rig.memory.resume_writes()
    drained.wait(5)
    assert first.result() == {0: ""}
    with pytest.raises(TryLaterError, match="does not own delay level 5"):
        remove(rig, [1]).result()
    rig.start()
    rig.advance(60)
    assert bodies(rig) == [b"%d" % number for number in range(5)]


def test_an_order_that_waits_too_long_changes_nothing(rig: LevelsRig) -> None:
    fill(rig, 2)
    rig.memory.pause_writes()
    first, second = remove(rig, [0]), remove(rig, [1])
    rig.clock.advance(11)
    until(lambda: first.done, "its deadline has passed")
    rig.memory.resume_writes()
    until(lambda: second.done and rig.service.owned_count == 18, "it has ended, too")
    with pytest.raises((TryLaterError, RemoteError)):
        second.result()
    rig.advance(60)
    until(lambda: len(rig.stored()) == 2, "both are delivered")
    assert sorted(bodies(rig)) == [b"0", b"1"]
