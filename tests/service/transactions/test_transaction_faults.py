"""What goes wrong inside: an engine that refuses or is silent; records that do not parse; late polls."""

from __future__ import annotations

import pytest

from backend.completion import Completion, relay
from backend.records import AppendResult, CommitBatch, NewRecord
from ddmq_common.delivery import encode, properties_of
from ddmq_common.errors import BoundReachedError, CallerError, StorageError
from ddmq_common.names import HALF_TOPIC
from ddmq_common.send_identity import IDENTITY
from proxy_producer.transactions.codec import TRANSACTION
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    DEAD_LETTER,
    GROUP,
    ROLLBACK,
    SHARDS,
    S,
    TransactionRig,
    body,
)
from tests.support.waits import until


def test_a_commit_that_the_engine_never_accepts_becomes_one_dead_letter(memory: TransactionRig) -> None:
    transaction = memory.begin(body(b"one"), body(b"two"))
    memory.memory.fail_next(CallerError("no such message is ever taken"))
    answer = memory.proxy.end(transaction, COMMIT)
    assert (answer.code, answer.outcome) == (11, DEAD_LETTER)
    assert "refused" in answer.msg
    facts = [properties_of(bytes(one.delivery), [b"dead-letter-error"]) for one in memory.dead()]
    assert facts == [{b"dead-letter-error": b"no such message is ever taken"}] * 2
    assert memory.bodies() == []
    assert memory.unfinished() == 0


def test_an_engine_that_is_full_or_broken_keeps_it_open(memory: TransactionRig) -> None:
    transaction = memory.begin(body(b"x"))
    for error in (BoundReachedError("too much waits"), StorageError("the disk is gone")):
        memory.memory.fail_next(error)
        call = memory.proxy.ending(transaction, COMMIT)
        until(lambda: bool(call.answers), "it is answered")  # noqa: B023
        assert call.answer.code == 15
        assert str(error) in call.answer.msg
    assert memory.proxy.end(transaction, ROLLBACK).code == 0
    assert memory.bodies() == []


def test_a_prepare_that_is_not_stored_does_not_belong_to_the_transaction(memory: TransactionRig) -> None:
    transaction = memory.begin(body(b"first"))
    memory.memory.fail_next(BoundReachedError("too much waits"))
    refused = memory.proxy.prepare(transaction, body(b"second"))
    assert (refused.code, refused.throughOffset) == (15, None)
    memory.memory.fail_next(BoundReachedError("too much waits"))
    refused = memory.proxy.prepare(transaction, body(b"third"), body(b"fourth"))
    assert (refused.code, len(refused.results)) == (15, 2)
    assert memory.proxy.end(transaction, COMMIT).outcome == COMMITTED
    assert memory.bodies() == [b"first"]


def test_half_messages_that_do_not_parse_are_dead_letters(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"sound"))
    malformed = encode(b"k", b"odd", b"", None)
    records = [
        NewRecord(
            HALF_TOPIC,
            queue_id,
            bytes(16),
            0,
            malformed,
            system={TRANSACTION: "?", IDENTITY: f"s{n:02x}.0.0"},
        )
        for n, queue_id in enumerate(range(SHARDS))
    ]
    rig.backend.append(records, rig.clock.monotonic() + 60).wait(60)
    until(lambda: len(rig.dead()) == SHARDS or rig.tick(), "all of them are dead letters")
    assert {bytes(one.delivery) for one in rig.dead()} == {malformed}
    assert rig.dead()[0].system["dead-letter-reason"] == "unreadable"
    reason = {"reason": "half message: unreadable"}
    assert rig.proxy.counted("ddmq_transactions_refused_total", **reason) == SHARDS
    assert rig.unfinished() == 1
    assert rig.proxy.end(transaction, COMMIT).code == 0
    assert rig.bodies() == [b"sound"]


def test_a_dead_letter_that_cannot_be_stored_is_retried(memory: TransactionRig) -> None:
    memory.begin(body(b"x"))
    memory.advance(86_399)
    memory.memory.fail_next(BoundReachedError("too much waits"), times=2)
    memory.advance(1)
    memory.settle()
    until(lambda: len(memory.dead()) == 1 or memory.advance(1), "it is a dead letter at last")
    assert memory.unfinished() == 0


def test_a_check_for_a_disconnected_client_goes_to_the_next(memory: TransactionRig) -> None:
    memory.begin(body(b"x"))
    abandoned = memory.proxy.polling(timeout=30_000)
    memory.pass_time(60)
    memory.memory.pause_writes()
    memory.proxy.tick()  # the attempt is on its way
    assert abandoned.on_abandoned is not None
    abandoned.on_abandoned(abandoned)
    memory.memory.resume_writes()
    memory.settle()
    poll = memory.proxy.polling(timeout=0)
    until(lambda: bool(poll.answers), "the poll is answered")
    assert [check.check for check in poll.answer.checks] == [1]
    assert not abandoned.answers


def test_answers_are_built_a_few_at_a_time(memory: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups have something to be asked about: each answer may have megabytes."""
    monkeypatch.setattr("proxy_producer.transactions.polls.HANDOUTS_MAX", 3)
    groups = [b"g%d" % number for number in range(10)]
    for group in groups:
        assert memory.proxy.prepare(memory.new_id(), group=group).code == 0
    memory.caught_up()
    polls = [memory.proxy.polling(timeout=200_000, group=group) for group in groups]
    memory.memory.pause_writes()
    memory.pass_time(60)
    memory.proxy.tick()
    waiting_polls = memory.proxy.proxy.transactions.polls.waiting
    assert sum(waiting_polls.find_unserved(group.decode()) is None for group in groups) == 3
    memory.memory.resume_writes()
    until(lambda: memory.settle() or all(call.answers for call in polls), "all are asked")
    assert [len(call.answer.checks) for call in polls] == [1] * 10


def test_a_read_that_fails_at_once_is_not_tried_without_end(memory: TransactionRig) -> None:
    memory.begin(body(b"x"))
    for owned in memory.proxy.proxy.transactions.list_ready_shards():
        for offset in range(10):
            owned.shard.recent.drop(offset)
    reads = memory.backend.start_read
    failed = []

    def read(call: object, completion: object) -> None:
        failed.append(call)
        assert len(failed) < 100
        completion.fail(StorageError("the disk is gone"))  # type: ignore[attr-defined]

    memory.backend.start_read = read  # type: ignore[method-assign, assignment]
    memory.advance(59)
    call = memory.proxy.polling(timeout=30_000)
    memory.advance(1)
    assert failed
    assert not call.answers
    memory.backend.start_read = reads  # type: ignore[method-assign]
    memory.advance(1)
    until(lambda: bool(call.answers), "it is asked at the next look")


def test_a_shard_that_cannot_be_read_is_claimed_later(memory: TransactionRig) -> None:
    transaction = memory.begin(body(b"x"))
    memory.proxy.kill()
    reads = memory.backend.start_read
    failing = [True]

    def read(call: object, completion: object) -> None:
        if failing[0]:
            completion.fail(StorageError("the disk is gone"))  # type: ignore[attr-defined]
        else:
            reads(call, completion)  # type: ignore[arg-type]

    memory.backend.start_read = read  # type: ignore[method-assign, assignment]
    memory.proxy = memory.beside(served=False)
    call = memory.proxy.ending(transaction, COMMIT)
    until(lambda: bool(call.answers), "it is answered")
    assert call.answer.code == 15
    memory.tick()
    assert memory.proxy.shards == set()
    failing[0] = False
    until(lambda: len(memory.proxy.shards) == SHARDS or memory.tick(), "all shards are read")
    assert memory.proxy.end(transaction, COMMIT).code == 0
    assert memory.bodies() == [b"x"]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("stored", [True, False])
def test_a_message_that_arrives_during_the_commit_is_not_committed(
    memory: TransactionRig, *, count: int, stored: bool
) -> None:
    """Its sender is answered when that is decided: it is a part of what stays open, and of nothing else."""
    transaction = memory.begin(body(b"first"))
    memory.memory.pause_writes()
    messages = [body(b"late %d" % number) for number in range(count)]
    request = S.PrepareRequest(transactionId=transaction, producerGroup=GROUP, messages=messages)
    late = memory.proxy.call("sendPrepared", request)
    commit, commits = memory.backend.commit, []
    answer: Completion[list[AppendResult]] = Completion()

    def hold_commit(batch: CommitBatch, deadline: float) -> Completion[list[AppendResult]]:
        commits.append((batch, deadline))
        return answer

    memory.backend.commit = hold_commit  # type: ignore[method-assign, assignment]
    end = memory.proxy.ending(transaction, COMMIT, throughOffset=0)
    until(lambda: bool(commits), "the commit is under way")
    memory.memory.resume_writes()
    memory.settle()
    assert not late.answers
    memory.backend.commit = commit  # type: ignore[method-assign]
    if stored:
        relay(commit(*commits[0]), answer)
    else:
        answer.fail(BoundReachedError("too much waits"))
    until(lambda: bool(late.answers and end.answers), "both are answered")
    if stored:
        assert (end.answer.code, end.answer.outcome) == (0, COMMITTED)
        assert late.answer.code == 11
        assert "has ended" in late.answer.msg
        assert memory.bodies() == [b"first"]
    else:
        assert (end.answer.code, late.answer.code) == (15, 0)
        assert memory.proxy.end(transaction, COMMIT).outcome == COMMITTED
        assert memory.bodies() == [b"first", *(b"late %d" % number for number in range(count))]
    memory.tick()
    until(lambda: memory.unfinished() == 0, "what came too late is finished")
