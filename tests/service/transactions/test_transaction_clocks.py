"""Clock steps, pauses and downtime: they end no transaction, and whoever polls is asked first."""

from __future__ import annotations

from typing import Any

import pytest

from ddmq_common.delivery import properties_of
from tests.service.transactions.transaction_rig import (
    COMMIT,
    COMMITTED,
    NOT_KNOWN_YET,
    SHARDS,
    TransactionRig,
    body,
)
from tests.support.waits import until

DAY_S, HOUR_S = 86_400.0, 3_600.0
STEPS = pytest.mark.parametrize("step_s", [2 * DAY_S, 2 * HOUR_S, -4 * HOUR_S, -2 * DAY_S])


def restarted(rig: TransactionRig) -> None:
    """All of them died, and others have read what is there."""
    for proxy in rig.proxies:
        proxy.kill()
    rig.proxies = []
    rig.proxy = rig.beside(served=False)
    rig.proxy.proxy.transactions.advertise("127.0.0.1:1")
    until(lambda: len(rig.proxy.shards) == SHARDS or rig.tick(), "all shards are owned")


def poll_checks(rig: TransactionRig) -> list[Any]:
    """What a member that polls now is asked."""
    poll = rig.proxy.polling(timeout=0)
    until(lambda: bool(poll.answers), "the poll ends")
    return list(poll.answer.checks)


def reasons(rig: TransactionRig) -> list[bytes]:
    names = [b"dead-letter-reason"]
    return [properties_of(bytes(one.delivery), names)[names[0]] for one in rig.dead()]


@STEPS
@pytest.mark.parametrize("down", [False, True])
def test_a_clock_step_decides_nothing_and_the_group_is_checked(
    rig: TransactionRig, step_s: float, *, down: bool
) -> None:
    decided, left = rig.begin(body(b"1")), rig.begin(body(b"2"))
    rig.clock.step_wall(step_s)
    if down:
        restarted(rig)
    rig.advance(1)
    assert rig.dead() == []
    assert rig.proxy.end(decided, COMMIT).outcome == COMMITTED
    rig.advance(60)
    (check,) = poll_checks(rig)
    assert (check.transactionId, check.check) == (left.decode(), 1)
    assert rig.proxy.end(left, COMMIT, check=1).outcome == COMMITTED
    assert sorted(rig.bodies()) == [b"1", b"2"]


@STEPS
def test_a_step_does_not_bring_its_checks_forward_or_put_them_off(rig: TransactionRig, step_s: float) -> None:
    rig.begin()
    rig.advance(50)
    rig.clock.step_wall(step_s)
    rig.advance(9)
    assert poll_checks(rig) == []
    rig.advance(1)
    assert len(poll_checks(rig)) == 1
    rig.clock.step_wall(-step_s)
    rig.advance(57)
    assert poll_checks(rig) == []
    rig.advance(3)
    assert [check.check for check in poll_checks(rig)] == [2]


@STEPS
def test_a_check_that_is_out_when_the_clock_steps_is_waited_for(rig: TransactionRig, step_s: float) -> None:
    """Also the last one."""
    transaction = rig.begin(body(b"x"))
    for number in range(1, 16):
        rig.advance(60)
        (check,) = poll_checks(rig)
        assert check.check == number
    rig.clock.step_wall(step_s)
    rig.advance(50)
    assert rig.dead() == []
    answer = rig.proxy.end(transaction, COMMIT, check=15)
    assert (answer.code, rig.bodies()) == (0, [b"x"])


@pytest.mark.parametrize("days", [1, 3, 30])
def test_after_days_of_downtime_a_group_that_polls_gets_its_checks(rig: TransactionRig, days: int) -> None:
    transaction = rig.begin(body(b"x"))
    rig.clock.advance(days * DAY_S)
    restarted(rig)
    rig.advance(HOUR_S / 2)  # its members take longer to come back than the server did
    assert rig.dead() == []
    (check,) = poll_checks(rig)
    assert (check.transactionId, check.check) == (transaction.decode(), 1)
    assert rig.proxy.end(transaction, NOT_KNOWN_YET, check=1).outcome == 6
    rig.advance(59)
    assert rig.dead() == []
    rig.advance(2)
    assert [check.check for check in poll_checks(rig)] == [2]
    assert rig.proxy.end(transaction, COMMIT, check=2).outcome == COMMITTED
    assert rig.bodies() == [b"x"]


def test_after_days_of_downtime_a_group_that_never_comes_has_a_dead_letter(rig: TransactionRig) -> None:
    rig.begin(body(b"x"))
    rig.clock.advance(3 * DAY_S)
    restarted(rig)
    rig.advance(HOUR_S - 60)
    assert rig.dead() == []
    rig.advance(HOUR_S)
    until(lambda: len(rig.dead()) == 1 or rig.advance(1), "nobody came for it")
    assert reasons(rig) == [b"too old"]


@pytest.mark.parametrize("offered", [False, True])
def test_a_pause_of_days_counts_as_seconds(rig: TransactionRig, *, offered: bool) -> None:
    """SIGSTOP, or a machine that was suspended: nobody could be asked."""
    transaction = rig.begin(body(b"x"))
    if offered:
        rig.advance(300)
    rig.clock.advance(2 * DAY_S)
    rig.advance(60)
    assert rig.dead() == []
    assert [check.transactionId for check in poll_checks(rig)] == [transaction.decode()]


@STEPS
def test_a_step_without_a_polling_group_leaves_the_rest_of_the_day(
    rig: TransactionRig, step_s: float
) -> None:
    rig.begin(body(b"x"))
    rig.advance(HOUR_S)
    rig.clock.step_wall(step_s)
    rig.advance(22 * HOUR_S)
    assert rig.dead() == []
    rig.advance(2 * HOUR_S)
    until(lambda: len(rig.dead()) == 1 or rig.advance(1), "it was open for a day")
    assert reasons(rig) == [b"too old"]


def test_a_check_says_when_it_was_prepared_by_the_stores_clock(rig: TransactionRig) -> None:
    at_ms = rig.backend.clock_ms()
    rig.begin(body(b"x"))
    rig.clock.step_wall(2 * DAY_S)
    rig.advance(60)
    assert poll_checks(rig)[0].preparedMs == at_ms
    assert rig.proxy.proxy.transactions.counts.oldest_ms.value > 2 * DAY_S * 1_000
