"""A few rounds on three real brokers, and proof that the account notices each kind of broken promise.

The long run: `python -m tests.crash.kafka_rounds --seed 1 --rounds 200 --brokers 3`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddmq.trial.cluster import wait_for_command_line
from ddmq.trial.jars import java
from ddmq_client import DelayStatus
from ddmq_common.errors import ConfigError
from tests.crash import kafka_rounds
from tests.crash.kafka.bare import longest_gap_s
from tests.crash.kafka.load import DEAD, DELAYED, EVERY_MS, ORDERED, RETRIED, RETRY, Account, Stored
from tests.crash.kit.key_order import KeyDelivery


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
def test_three_rounds_on_three_brokers(tmp_path: Path) -> None:
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    printed: list[str] = []
    broken = kafka_rounds.run(tmp_path, seed=3, rounds=3, brokers=3, print_line=printed.append)
    assert broken == [], "\n".join(printed)


def stored(offset: int, body: bytes = b"", at_ms: int = 0, topic: str = ORDERED, step: str = "") -> Stored:
    return Stored((topic, 0, offset), body or b"k/%d" % offset, b"k", at_ms, step)


def finished(*offsets: int) -> Account:
    """Messages of one key that were given and done, in this order."""
    account = Account()
    for time, offset in enumerate(offsets):
        account.began[ORDERED, 0, offset] = float(time)
        account.done_at[ORDERED, 0, offset] = time + 0.5
    return account


def test_all_is_well() -> None:
    account = finished(1, 2, 3)
    account.acknowledged[b"k/2"] = ORDERED
    assert account.judge([stored(1), stored(2), stored(3)]) == []


def test_an_acknowledged_message_that_is_not_stored_is_noticed() -> None:
    account = finished(1)
    account.acknowledged[b"k/2"] = ORDERED
    (violation,) = account.judge([stored(1)])
    assert violation.startswith("LOST: b'k/2', acknowledged")


def test_a_rejected_message_that_is_stored_is_noticed() -> None:
    account = finished(1)
    account.refused[b"k/1"] = ORDERED
    (violation,) = account.judge([stored(1)])
    assert violation.startswith("STORED: b'k/1', refused")


def test_a_stored_message_that_is_never_handled_is_noticed() -> None:
    (violation,) = finished(1).judge([stored(1), stored(2)])
    assert violation.startswith("LOST")
    assert "never done" in violation


def test_a_later_message_of_the_key_handled_first_is_noticed() -> None:
    (violation,) = finished(2, 1).judge([stored(1), stored(2)])
    assert violation.startswith("ORDER")


def test_a_message_handled_again_after_a_later_one_of_its_key_breaks_the_order() -> None:
    account = finished(1, 2)
    account.deliveries[0, b"k"] = [KeyDelivery(at, when, when + 0.5) for when, at in enumerate([1, 1, 2, 1])]
    (violation,) = account.judge([stored(1), stored(2)])
    assert violation.startswith("ORDER")


def test_a_second_copy_is_noticed() -> None:
    (violation,) = finished(1, 2).judge([stored(1, b"same"), stored(2, b"same")])
    assert violation.startswith("TWICE")


def test_a_message_stored_before_its_due_time_is_noticed() -> None:
    account = finished(1)
    account.due_ms[b"k/1"] = 100
    assert account.judge([stored(1, at_ms=100)]) == []
    assert account.judge([stored(1, at_ms=99)])[0].startswith("EARLY")


def repeated(account: Account) -> Account:
    account.acknowledged[b"r"] = DELAYED
    account.repeated.add(b"r")
    account.due_ms[b"r"] = 100
    return account


def test_each_delivery_of_a_series_is_required_once_and_not_early() -> None:
    account = repeated(finished(1, 2, 3))
    times = [stored(n, b"r", 100 + EVERY_MS * (n - 1)) for n in (1, 2, 3)]
    assert account.judge(times) == []
    assert [violation[:5] for violation in account.judge([*times[:2], stored(3, b"r", EVERY_MS + 101)])] == [
        "EARLY"
    ]
    assert [violation[:4] for violation in repeated(finished(1, 2)).judge(times[:2])] == ["LOST"]


@pytest.mark.parametrize(
    ("status", "copies", "violation"),
    [
        (DelayStatus.CANCELLED, 0, ""),
        (DelayStatus.CANCELLED, 1, "TWICE"),
        (DelayStatus.FIRED, 1, ""),
        (DelayStatus.FIRED, 0, "LOST"),
        (DelayStatus.PENDING, 1, ""),
        (DelayStatus.PENDING, 0, ""),
        (DelayStatus.UNKNOWN, 1, "b'k/1'"),
    ],
)
def test_a_wrong_answer_to_a_cancel_is_noticed(status: DelayStatus, copies: int, violation: str) -> None:
    account = finished(1)
    account.acknowledged[b"k/1"] = DELAYED
    account.cancels[b"k/1"] = status
    violations = account.judge([stored(1)][:copies])
    assert [each.partition(":")[0].partition(" ")[0] for each in violations] == [
        violation.replace("TWICE", "STORED")
    ][: bool(violation)]


def poisoned(*more: Stored) -> list[str]:
    """What is judged of one message that always fails."""
    account = Account()
    account.acknowledged[b"p/poison"] = RETRIED
    return account.judge([stored(1, b"p/poison", topic=RETRIED), *more])


def test_a_message_that_always_fails_is_one_dead_letter() -> None:
    once, redelivered = (stored(n, b"p/poison", topic=RETRY, step="1") for n in (1, 2))
    letter, another = (stored(n, b"p/poison", topic=DEAD) for n in (1, 2))
    assert poisoned(once, letter) == []
    assert [violation[:5] for violation in poisoned(once, redelivered, letter)] == ["TWICE"]
    assert [violation[:5] for violation in poisoned(once, letter, another)] == ["TWICE"]
    assert [violation[:4] for violation in poisoned(once)] == ["LOST", "LOST"]


def test_a_message_that_fails_sometimes_is_no_dead_letter() -> None:
    account = Account()
    account.acknowledged[b"k/1"] = RETRIED
    account.handled.add(b"k/1")
    copies = [stored(1, topic=RETRIED), stored(1, b"k/1", topic=RETRY, step="1")]
    assert account.judge(copies) == []
    (violation,) = account.judge([*copies, stored(1, b"k/1", topic=DEAD)])
    assert "dead letter" in violation


def test_waiting_for_a_started_process_sees_its_command_line() -> None:
    for _ in range(30):
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as started:
            wait_for_command_line(started)
            command_line = Path(f"/proc/{started.pid}/cmdline").read_bytes()
            started.kill()
        assert command_line == b"sleep\x0060\x00"


def test_the_longest_gap_counts_the_ends_of_the_window() -> None:
    assert longest_gap_s([], 0, 5_000) == 5.0
    assert longest_gap_s([1_000, 1_500, 9_000], 0, 5_000) == 3.5
    assert longest_gap_s([3_000], 0, 5_000) == 3.0
