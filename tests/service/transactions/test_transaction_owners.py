"""Several proxies over one log: whichever is asked, the owner of the shard decides; it knows what its
predecessor knew."""

from __future__ import annotations

import pytest

from backend.records import AppendStatus, QueueRef
from ddmq_common.delivery import decode, properties_of
from ddmq_common.errors import BoundReachedError, RemoteError
from ddmq_common.names import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from tests.played_memory import PlayedMemory
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    DEAD_LETTER,
    NEVER_THERE,
    NO_LONGER_KNOWN,
    ROLLBACK,
    ROLLED_BACK,
    SHARDS,
    TransactionProxy,
    TransactionRig,
    body,
    prepare_request,
)
from tests.support.waits import until


def two(rig: TransactionRig) -> tuple[TransactionProxy, TransactionProxy]:
    """Two that serve, each with half of the shards."""
    rig.proxy.kill()
    rig.proxies.clear()
    first, second = rig.beside(), rig.beside()
    rig.proxy = first
    assert first.prepare(rig.new_id()).code == 0
    until(lambda: len(first.shards) == len(second.shards) == SHARDS // 2 or rig.tick(), "they share")
    return first, second


def owned_by(rig: TransactionRig, proxy: TransactionProxy) -> bytes:
    return rig.new_id(shard=min(proxy.shards))


def test_a_proxy_that_is_not_the_owner_forwards_the_end(rig: TransactionRig) -> None:
    first, second = two(rig)
    for owner, other in ((first, second), (second, first)):
        transaction = owned_by(rig, owner)
        prepared = [proxy.prepare(transaction, body(b"x")) for proxy in (owner, other)]
        through = max(one.throughOffset for one in prepared)
        answer = other.end(transaction, COMMIT, throughOffset=through)
        assert (answer.code, answer.outcome, len(answer.results)) == (0, COMMITTED, 2)
        assert answer.results[1].queueId == 0
        assert owner.end(transaction, COMMIT).outcome == COMMITTED
        refused = other.end(transaction, ROLLBACK)
        assert (refused.code, refused.outcome) == (11, COMMITTED)
    assert rig.bodies() == [b"x"] * 4


def test_a_forwarded_end_is_not_forwarded_twice(rig: TransactionRig) -> None:
    first, second = two(rig)
    call = first.ending(owned_by(rig, second), COMMIT, forwardedBy=b"127.0.0.1:1")
    assert call.answer.code == 15
    assert "two owners" in call.answer.msg


def test_a_prepare_at_another_proxy_belongs_to_it_without_a_stated_end(
    rig: TransactionRig,
) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, first)
    assert first.prepare(transaction, body(b"1")).code == 0
    assert second.prepare(transaction, body(b"2")).code == 0
    assert first.end(transaction, COMMIT).code == 0
    assert rig.bodies() == [b"1", b"2"]


def test_a_message_after_the_end_is_rejected_at_every_proxy(rig: TransactionRig) -> None:
    first, second = two(rig)
    for action, word in ((COMMIT, "committed"), (ROLLBACK, "rolled back")):
        transaction = owned_by(rig, first)
        assert second.prepare(transaction, body(b"1")).code == 0
        assert second.end(transaction, action).code == 0
        for proxy in (first, second):
            late = proxy.prepare(transaction, body(b"late"))
            assert late.code == 11
            assert f"was {word}" in str(late.msg)
    assert rig.bodies() == [b"1"]


def test_a_foreign_producer_group_is_rejected_at_every_proxy(rig: TransactionRig) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, first)
    assert second.prepare(transaction, body(b"ours")).code == 0
    for proxy in (first, second):
        refused = proxy.prepare(transaction, body(b"theirs"), group=b"thieves")
        assert refused.code == 11
        assert "thieves" in str(refused.msg)
    assert second.end(transaction, COMMIT).code == 0
    assert rig.bodies() == [b"ours"]


def test_a_forwarded_prepare_is_not_forwarded_twice(rig: TransactionRig) -> None:
    first, second = two(rig)
    refused = first.prepare(owned_by(rig, second), forwardedBy=b"127.0.0.1:1")
    assert refused.code == 20  # for the proxy that passed it on: to look again who owns the shard
    assert rig.unfinished() == 1


def test_a_prepare_whose_owner_is_away_must_be_resent(rig: TransactionRig) -> None:
    """In time, and never told as stored."""
    first, second = two(rig)
    transaction = owned_by(rig, second)
    assert second.server is not None
    second.server.close()
    call = first.call("sendPrepared", prepare_request(transaction, body(b"x"), timeout=4_000))

    def answered() -> bool:
        rig.clock.advance(0.1)
        first.proxy.transactions.retry_waiting()
        return bool(call.answers)

    until(answered, "it is answered")
    assert call.answer.code == 15
    assert "has no owner now; the message is not stored" in str(call.answer.msg)
    assert first.proxy.flow.inflight == 0
    assert rig.unfinished() == 1


def test_what_an_owner_of_before_stored_too_late_is_counted(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"1"))
    assert rig.proxy.end(transaction, ROLLBACK).code == 0
    rig.append_half(transaction, b"late")
    reason = {"reason": "half message: ended"}
    until(
        lambda: rig.proxy.counted("ddmq_transactions_refused_total", **reason) == 1 or rig.tick(), "counted"
    )
    until(lambda: rig.tick() or rig.unfinished() == 0, "it is finished")
    assert rig.bodies() == []


def test_an_earlier_commit_without_this_message_is_not_reported_as_done(rig: TransactionRig) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, first)
    through = first.prepare(transaction, body(b"1")).throughOffset
    assert first.end(transaction, COMMIT).code == 0  # an operator, say
    late = rig.append_half(transaction, b"2")
    for restarted in (False, True):
        if restarted:
            first.kill()
            rig.proxies.remove(first)
            rig.proxy = second
            rig.caught_up()
        refused = second.end(transaction, COMMIT, throughOffset=late)
        assert (refused.code, refused.outcome) == (11, COMMITTED)
        assert "was committed before" in str(refused.msg)
        assert second.end(transaction, COMMIT, throughOffset=through).code == 0
    assert rig.bodies() == [b"1"]


def test_resent_messages_count_once_for_the_limits() -> None:
    """Neither what was put off and sent again, nor what was stored before, at whichever proxy."""
    rig = TransactionRig(messages_max=3, bytes_max=1_000)
    owner, other = two(rig)
    transaction = owned_by(rig, owner)
    for _ in range(3):
        rig.memory.fail_next(BoundReachedError("too much waits"))
        assert other.prepare(transaction, body(b"x" * 240)).code == 15
    numbered = [body(b"%d" % n, producerId=b"p", sequence=n) for n in range(3)]
    for proxy in (other, owner, other):
        assert proxy.prepare(transaction, *numbered[:2]).code == 0
        assert proxy.prepare(transaction, numbered[2]).code == 0
        refused = proxy.prepare(transaction, body(b"1"))
        assert refused.code == 11
        assert "4 messages" in str(refused.msg)
    answer = owner.end(transaction, COMMIT, messages=3)
    assert (answer.code, len(answer.results)) == (0, 3)


def test_what_consecutive_owners_accepted_beyond_a_commit_becomes_dead_letters(
    rig: TransactionRig,
) -> None:
    """All of it, also what its own commit has no room for, and also when the owner dies in between."""
    rig.proxy.kill()
    rig.proxies.clear()
    owner = rig.proxy = TransactionProxy(rig, served=True, messages_max=2)
    rig.proxies.append(owner)
    transaction = rig.begin(body(b"0"))
    rig.caught_up()
    through = max(rig.append_half(transaction, b"%d" % number) for number in range(1, 9))
    answer = owner.end(transaction, COMMIT, throughOffset=through, messages=9)
    assert (answer.code, answer.outcome) == (11, DEAD_LETTER)
    assert "too large" in str(answer.msg)
    assert (len(rig.dead()), rig.unfinished()) == (4, 5)
    owner.kill()
    rig.proxies.clear()
    rig.proxy = rig.beside()
    until(lambda: rig.tick() or rig.unfinished() == 0, "the others follow")
    bodies = [decode(bytes(one.delivery)).value for one in rig.dead()]
    assert bodies == [b"%d" % number for number in range(9)]
    names = [b"dead-letter-transaction", b"dead-letter-reason"]
    facts = [properties_of(bytes(one.delivery), names) for one in rig.dead()]
    assert facts == [dict(zip(names, (transaction, b"too large"), strict=True))] * 9
    assert rig.bodies() == []


def test_checks_of_the_other_proxys_shards_come_here(rig: TransactionRig) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, second)
    assert first.prepare(transaction, group=b"shop").code == 0
    rig.tick()
    poll = first.polling(timeout=30_000, group=b"shop")
    rig.advance(60)
    until(lambda: bool(poll.answers) or rig.tick(), "the check comes")
    assert [check.transactionId for check in poll.answer.checks] == [transaction]
    assert first.end(transaction, COMMIT, group=b"shop", check=1).code == 0


def test_the_next_owner_restores_open_and_decided_transactions(rig: TransactionRig) -> None:
    first, second = two(rig)
    committed, rolled_back, left = (owned_by(rig, second) for _ in range(3))
    for one in (committed, rolled_back, left):
        assert second.prepare(one, body(one)).code == 0
    assert second.end(committed, COMMIT).code == 0
    assert second.end(rolled_back, ROLLBACK).code == 0
    second.kill()
    until(lambda: len(first.shards) == SHARDS or rig.tick(), "the first one has all")
    assert first.end(committed, COMMIT).outcome == COMMITTED
    assert first.end(rolled_back, ROLLBACK).outcome == ROLLED_BACK
    assert first.end(left, COMMIT).outcome == COMMITTED
    assert first.end(owned_by(rig, first), COMMIT).outcome == NEVER_THERE
    assert rig.bodies() == [committed, left]


def test_a_proxy_that_drains_gives_its_shards_up(rig: TransactionRig) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, second)
    assert second.prepare(transaction, body(b"x")).code == 0
    poll = second.polling()
    drained = second.proxy.drain(rig.clock.monotonic() + 10)
    assert second.timer.sweep is None or second.timer.sweep() is None
    until(lambda: drained.done, "it is drained")
    assert poll.answer.code == 20
    assert second.prepare(transaction).code == second.ending(transaction, COMMIT).answer.code == 20
    until(lambda: len(first.shards) == SHARDS or rig.tick(), "the first one has all")
    assert first.end(transaction, COMMIT).outcome == COMMITTED


@pytest.mark.parametrize("stored", [True, False])
def test_the_outcome_of_an_uncertain_end_is_looked_up(memory: TransactionRig, *, stored: bool) -> None:
    backend = memory.backend
    assert isinstance(backend, PlayedMemory)
    transaction = memory.begin(body(b"x"))
    backend.fail_next(RemoteError("no answer"), AppendStatus.UNKNOWN, stored=stored)
    call = memory.proxy.ending(transaction, COMMIT)
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 15
    answer = memory.proxy.end(transaction, COMMIT)
    assert (answer.code, answer.outcome) == (0, COMMITTED)
    assert memory.bodies() == [b"x"]
    assert len(memory.ops()) == 1


def test_a_stopping_owner_is_no_reason_to_switch_proxies(rig: TransactionRig) -> None:
    first, second = two(rig)
    transaction = owned_by(rig, second)
    assert second.prepare(transaction, body(b"x")).code == 0
    second.proxy.flow.draining = True
    call = first.ending(transaction, COMMIT)
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 15
    second.proxy.flow.draining = False
    assert first.end(transaction, COMMIT).outcome == COMMITTED


def test_a_deposed_owner_decides_nothing(memory: TransactionRig) -> None:
    backend = memory.backend
    assert isinstance(backend, PlayedMemory)
    transaction = memory.begin(body(b"x"))
    backend.pause_writes()
    call = memory.proxy.ending(transaction, COMMIT, throughOffset=0)
    backend.depose(TRANSACTION_GROUP, HALF_TOPIC)
    backend.resume_writes()
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code in (0, 15)
    assert memory.proxy.end(transaction, COMMIT).outcome == COMMITTED
    assert memory.bodies() == [b"x"]
    assert len(memory.ops()) == 1


def test_a_shard_is_released_after_what_is_under_way(memory: TransactionRig) -> None:
    backend = memory.backend
    assert isinstance(backend, PlayedMemory)
    transaction = memory.begin(body(b"x"))
    backend.pause_writes()
    call = memory.proxy.ending(transaction, COMMIT, throughOffset=0)
    backend.revoke(TRANSACTION_GROUP, HALF_TOPIC, memory.clock.monotonic() + 30)
    memory.settle()
    assert not call.answers
    backend.resume_writes()
    until(lambda: bool(call.answers), "it is answered")
    assert (call.answer.code, call.answer.outcome) == (0, COMMITTED)
    assert memory.bodies() == [b"x"]


def test_what_is_no_longer_remembered_is_looked_up(rig: TransactionRig) -> None:
    rig.proxy.kill()
    few = TransactionProxy(rig, served=False, outcomes_max=2)
    rig.proxies.append(few)
    rig.proxy = few
    shard = 1
    ids = []
    for _ in range(5):
        ids.append(rig.new_id(shard))
        assert few.prepare(ids[-1]).code == 0
        rig.clock.advance(1)
        assert few.end(ids[-1], COMMIT).code == 0
    old = rig.new_id(shard)
    rig.clock.advance(1)
    until(lambda: len(rig.backend.find(OP_TOPIC, message_id=bytes.fromhex(ids[0].decode())).wait(60)) == 1)
    assert few.end(ids[0], ROLLBACK).outcome == COMMITTED
    assert few.end(ids[0], COMMIT).code == 0
    assert few.end(old, COMMIT).outcome == NEVER_THERE


def test_what_retention_deleted_is_no_longer_reported(memory: TransactionRig) -> None:
    memory.proxy.kill()
    few = TransactionProxy(memory, served=False, outcomes_max=2)
    memory.proxies.append(few)
    ids = [memory.new_id(1) for _ in range(4)]
    for one in ids:
        assert few.prepare(one).code == 0
        memory.clock.advance(10)
        assert few.end(one, COMMIT).code == 0
    info = memory.backend.topic(OP_TOPIC)
    assert info is not None
    memory.memory.expire(QueueRef(OP_TOPIC, info.incarnation, 1), 2)
    answer = few.end(ids[0], COMMIT)
    assert (answer.code, answer.outcome) == (11, NO_LONGER_KNOWN)
    memory.clock.advance(3_600)  # which clocks may be apart
    assert few.end(memory.new_id(1), COMMIT).outcome == NEVER_THERE
    memory.memory.expire(QueueRef(OP_TOPIC, info.incarnation, 1), 4)
    few.kill()
    later = TransactionProxy(memory, served=False, outcomes_max=2)
    memory.proxies.append(later)
    assert later.prepare(memory.new_id(1)).code == 0
    for one in ids:
        assert later.end(one, COMMIT).outcome == NO_LONGER_KNOWN


def test_a_damaged_decision_is_not_reported_as_a_missing_transaction(memory: TransactionRig) -> None:
    """Whoever is told so does the work once more."""
    ids = [memory.new_id(shard=1) for _ in range(3)]
    for one in ids:
        assert memory.proxy.prepare(one).code == 0
        memory.caught_up()
        assert memory.proxy.end(one, COMMIT).outcome == COMMITTED
    for lost in (0, 2):
        op = next(one for one in memory.ops() if one.message_id.hex() == ids[lost].decode())
        info = memory.backend.topic(OP_TOPIC)
        assert info is not None
        memory.memory.lose(QueueRef(OP_TOPIC, info.incarnation, 1), op.offset)
        memory.proxy.kill()
        memory.proxy = memory.beside(served=False)
        assert memory.proxy.end(ids[lost], COMMIT).outcome == NO_LONGER_KNOWN
    assert memory.proxy.end(ids[1], COMMIT).outcome == COMMITTED
    memory.clock.advance(2 * 3_600)
    assert memory.proxy.end(memory.new_id(shard=1), ROLLBACK).outcome == NEVER_THERE


def damaged_and_moved(memory: TransactionRig, *bodies: bytes) -> bytes:
    """A transaction whose first message is damaged when another proxy takes its shard over."""
    transaction = memory.begin(*map(body, bodies))
    half = memory.everything(HALF_TOPIC)[0]
    info = memory.backend.topic(HALF_TOPIC)
    assert info is not None
    memory.memory.lose(QueueRef(HALF_TOPIC, info.incarnation, half.queue_id), half.offset)
    owner = memory.beside(served=False)  # it has no copy of the messages in its memory
    memory.proxy.kill()
    memory.proxy = owner
    assert owner.end(memory.begin(body(b"other")), COMMIT, messages=1).code == 0
    return transaction


def test_a_message_that_is_damaged_makes_a_dead_letter_of_the_rest(memory: TransactionRig) -> None:
    """Who commits says how many there are; nothing else tells the new owner that there was one more."""
    transaction = damaged_and_moved(memory, b"one", b"two", b"three")
    answer = memory.proxy.end(transaction, COMMIT, messages=3)
    assert (answer.code, answer.outcome) == (11, DEAD_LETTER)
    assert "damaged" in answer.msg
    assert memory.bodies() == [b"other"], "a part is never seen"
    assert len(memory.dead()) == 2
    assert memory.proxy.end(transaction, COMMIT, messages=3).outcome == DEAD_LETTER


@pytest.mark.parametrize("messages", [None, -7, 0, 1])
def test_who_counts_fewer_or_none_commits_what_is_there(memory: TransactionRig, messages: int | None) -> None:
    transaction = damaged_and_moved(memory, b"one", b"two")
    assert memory.proxy.end(transaction, COMMIT, messages=messages).code == 0
    assert memory.bodies() == [b"other", b"two"]


def test_the_proxy_that_passes_an_end_on_passes_its_count_on(memory: TransactionRig) -> None:
    first, second = two(memory)
    transaction = owned_by(memory, first)
    assert first.prepare(transaction, body(b"1")).code == 0
    answer = second.end(transaction, COMMIT, messages=2)
    assert (answer.code, answer.outcome) == (11, DEAD_LETTER)


def test_it_costs_nothing_where_there_are_no_transactions(memory: TransactionRig) -> None:
    served = memory.beside()
    memory.settle()
    assert served.tick_timer.sweep is None
    assert memory.proxy.tick_timer.sweep is None
    assert memory.backend.topic(HALF_TOPIC) is None
    served.prepare(memory.new_id())
    assert served.tick_timer.sweep is not None
    until(lambda: len(served.shards) == SHARDS or served.tick(), "it owns all shards")


def test_a_transaction_that_two_owners_accepted_is_checked_at_the_other(memory: TransactionRig) -> None:
    first, second = two(memory)
    transaction = owned_by(memory, first)
    for _ in range(2):
        assert second.prepare(transaction, body(b"x" * 2_000_000)).code == 0
        memory.append_half(transaction, b"x" * 2_000_000)
    memory.tick()
    memory.pass_time(60)
    polls = [second.polling(timeout=30_000)]

    def messages() -> int:
        """Of the largest check that has come: there is another transaction, which comes first or last."""
        memory.advance(1)
        if polls[-1].answers:
            polls.append(second.polling(timeout=30_000))
        return max(
            [len(check.messages) for poll in polls for call in poll.answers for check in call.checks] or [0]
        )

    until(lambda: messages() == 4, "its check has come")
