"""Who left a transaction undecided is asked about it: a minute after it began, each minute, fifteen times."""

from __future__ import annotations

from typing import Any

from ddmq_common.delivery import decode, properties_of
from ddmq_common.names import SCHEDULE_TOPIC
from proxy_producer.transactions.check_back import POLL_BYTES_MAX
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    DEAD_LETTER,
    GROUP,
    NOT_KNOWN_YET,
    ROLLBACK,
    S,
    TransactionRig,
    body,
)
from tests.support.waits import until
from tests.unit.producer.producer_rig import Args, FakeCall, Wire


def checks(rig: TransactionRig, call: Any) -> list[Any]:
    until(lambda: bool(call.answers) or rig.settle(), "the poll is answered")
    assert call.answer.code == 0, call.answer
    return list(call.answer.checks)


def poll_checks(rig: TransactionRig, **fields: Any) -> list[Any]:
    """What a poll that does not wait is given."""
    return checks(rig, rig.proxy.polling(timeout=0, **fields))


def test_the_first_check_comes_after_a_minute(rig: TransactionRig) -> None:
    transaction = rig.begin(body(b"one", key=b"k1", tags=b"red", properties={b"a": b"b"}), body(b"two"))
    rig.advance(59)
    assert poll_checks(rig) == []
    rig.advance(1)
    (check,) = poll_checks(rig)
    assert (check.transactionId, check.check) == (transaction.decode(), 1)
    assert [message.body for message in check.messages] == [b"one", b"two"]
    first = check.messages[0]
    assert (first.topic, first.key, first.tags) == ("orders", b"k1", b"red")
    assert first.properties == {b"a": b"b"}
    answer = rig.proxy.end(transaction, COMMIT, check=1, throughOffset=check.throughOffset)
    assert (answer.code, answer.outcome) == (0, COMMITTED)
    assert sorted(rig.bodies()) == [b"one", b"two"]
    rig.advance(60)
    assert poll_checks(rig) == []


def test_a_poll_waits_for_a_check(rig: TransactionRig) -> None:
    transaction = rig.begin()
    poll = rig.proxy.polling(timeout=30_000)
    rig.advance(60)
    (check,) = checks(rig, poll)
    assert check.transactionId == transaction.decode()


def test_a_poll_ends_when_its_time_is_up(rig: TransactionRig) -> None:
    poll = rig.proxy.polling(timeout=500)
    rig.clock.advance(0.4)
    rig.proxy.proxy.transactions.on_tick()
    assert not poll.answers
    rig.clock.advance(0.1)
    rig.proxy.proxy.transactions.on_tick()
    assert poll.answer.checks == []


def test_the_sender_sets_the_time_of_the_first_check(rig: TransactionRig) -> None:
    sooner = rig.begin(checkAfterMs=5_000)
    by_property = rig.begin(body(b"x", properties={b"CHECK_IMMUNITY_TIME_IN_SECONDS": b"10"}))
    rig.advance(5)
    assert [check.transactionId for check in poll_checks(rig)] == [sooner.decode()]
    rig.advance(5)
    assert [check.transactionId for check in poll_checks(rig)] == [by_property.decode()]


def test_an_undecided_transaction_is_checked_fifteen_times_and_then_a_dead_letter(
    rig: TransactionRig,
) -> None:
    transaction = rig.begin(body(b"one"), body(b"two", topic=b"bills", key=b"kept"))
    for number in range(1, 16):
        rig.advance(60)
        (check,) = poll_checks(rig)
        assert check.check == number
        assert poll_checks(rig) == []
        assert rig.proxy.end(transaction, NOT_KNOWN_YET, check=number).outcome == 6
    rig.advance(59)
    assert rig.dead() == []
    rig.advance(1)
    until(lambda: len(rig.dead()) == 2, "both are dead letters")
    assert rig.unfinished() == 0
    assert rig.bodies() == []
    facts = properties_of(
        bytes(rig.dead()[1].delivery),
        [b"dead-letter-reason", b"dead-letter-topic", b"dead-letter-attempts", b"dead-letter-transaction"],
    )
    assert facts == {
        b"dead-letter-reason": b"unanswered",
        b"dead-letter-topic": b"bills",
        b"dead-letter-attempts": b"15",
        b"dead-letter-transaction": transaction,
    }
    assert decode(bytes(rig.dead()[1].delivery)).key == b"kept"
    late = rig.proxy.end(transaction, COMMIT)
    assert (late.code, late.outcome) == (11, DEAD_LETTER)
    assert rig.proxy.counted("ddmq_transactions_checks_total") == 15
    assert rig.proxy.counted("ddmq_transactions_ended_total", outcome="unanswered") == 1


def test_a_check_that_nobody_polls_for_is_not_counted(rig: TransactionRig) -> None:
    rig.begin()
    for _ in range(30):
        rig.advance(60)
    (check,) = poll_checks(rig)
    assert check.check == 1
    rig.advance(86_400)
    until(lambda: len(rig.dead()) == 1, "it was open for a day")
    facts = properties_of(bytes(rig.dead()[0].delivery), [b"dead-letter-reason"])
    assert facts == {b"dead-letter-reason": b"too old"}


def test_checks_are_for_the_group_that_prepared_it(rig: TransactionRig) -> None:
    transaction = rig.begin()
    rig.advance(60)
    assert poll_checks(rig, group=b"other") == []
    refused = rig.proxy.end(transaction, COMMIT, group=b"other")
    assert refused.code == 11
    assert refused.outcome is None
    refused = rig.proxy.end(transaction, COMMIT, check=1)
    assert refused.code == 11
    assert "check is 1" in refused.msg
    assert len(poll_checks(rig)) == 1
    refused = rig.proxy.end(transaction, COMMIT, group=b"other", check=1)
    assert refused.code == 11
    assert rig.bodies() == []
    assert rig.proxy.end(transaction, ROLLBACK, check=1).code == 0
    answer = rig.proxy.end(transaction, ROLLBACK, group=b"other")
    assert answer.code == 11
    assert answer.outcome is None


def test_each_check_goes_to_one_of_the_members(rig: TransactionRig) -> None:
    first, second = (rig.proxy.polling(timeout=30_000) for _ in range(2))
    rig.begin()
    rig.advance(60)
    assert len(checks(rig, first)) == 1
    assert not second.answers
    rig.advance(60)
    assert [check.check for check in checks(rig, second)] == [2]


def test_a_poll_of_a_disconnected_client_gets_nothing(rig: TransactionRig) -> None:
    abandoned, connected = (rig.proxy.polling(timeout=30_000) for _ in range(2))
    assert abandoned.on_abandoned is not None
    abandoned.on_abandoned(abandoned)
    rig.begin()
    rig.advance(60)
    assert len(checks(rig, connected)) == 1
    assert not abandoned.answers


def test_checks_survive_a_restart_of_the_proxy(rig: TransactionRig) -> None:
    transaction = rig.begin()
    for number in (1, 2):
        rig.advance(60)
        assert [check.check for check in poll_checks(rig)] == [number]
    rig.proxy.kill()
    rig.proxy = rig.beside(served=False)
    assert poll_checks(rig) == []
    until(lambda: len(rig.proxy.shards) == 4, "the shards are taken over")
    rig.advance(60)
    (check,) = poll_checks(rig)
    assert (check.transactionId, check.check) == (transaction.decode(), 3)


def test_a_large_poll_does_not_wait(rig: TransactionRig) -> None:
    """Its frame would count as in flight as long as it waits: some fifty of these, and nobody is read."""
    request = S.PollChecksRequest(producerGroup=GROUP, clientId=b"c" * 255, timeout=30_000)
    for size, waits in ((POLL_BYTES_MAX, True), (POLL_BYTES_MAX + 1, False)):
        call = FakeCall(Args(request=request), rig.clock.monotonic(), size, Wire.COMPACT, "poll")
        rig.proxy.handlers["pollTransactionChecks"](call)
        assert call.open is waits
    assert call.answer.code == 11
    assert f"a poll of {POLL_BYTES_MAX + 1} bytes" in call.answer.msg


def test_an_invalid_poll_gets_no_checks(rig: TransactionRig) -> None:
    for group in (b"", b"a/b", b"\xff", b"g" * 200, GROUP + b"\x00"):
        poll = rig.proxy.polling(group=group)
        assert poll.answer.code == 11
    rig.begin()
    rig.advance(60)
    for count in (-5, 0, None):
        request = S.PollChecksRequest(producerGroup=GROUP, clientId=None, countMax=count, timeout=-1)
        assert len(checks(rig, rig.proxy.call("pollTransactionChecks", request))) == 1
        rig.advance(60)
    assert rig.backend.topic(SCHEDULE_TOPIC) is None
