"""A few rounds on three real brokers, and proof that the account notices each kind of broken promise.

The long run: `python -m tests.crash.kafka_rounds --seed 1 --rounds 200 --brokers 3`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ddmq.trial.cluster import wait_for_command_line
from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError
from tests.crash import kafka_rounds
from tests.crash.kafka_rounds_load import ORDERED, Account, Stored


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
def test_three_rounds_on_three_brokers(tmp_path: Path) -> None:
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    said: list[str] = []
    broken = kafka_rounds.run(tmp_path, seed=3, rounds=3, brokers=3, say=said.append)
    assert broken == [], "\n".join(said)


def stored(offset: int, body: bytes = b"", at_ms: int = 0) -> Stored:
    return Stored((ORDERED, 0, offset), body or b"k/%d" % offset, b"k", at_ms)


def finished(*offsets: int) -> Account:
    """Messages of one key that were given and done, in this order."""
    account = Account()
    for time, offset in enumerate(offsets):
        account.began[ORDERED, 0, offset] = float(time)
        account.ended[ORDERED, 0, offset] = time + 0.5
    return account


def test_all_is_well() -> None:
    account = finished(1, 2, 3)
    account.acknowledged[b"k/2"] = ORDERED
    assert account.judge([stored(1), stored(2), stored(3)]) == []


def test_acknowledged_and_not_stored() -> None:
    account = finished(1)
    account.acknowledged[b"k/2"] = ORDERED
    assert account.judge([stored(1)]) == ["LOST: b'k/2' was acknowledged, not stored"]


def test_stored_and_never_done() -> None:
    (fault,) = finished(1).judge([stored(1), stored(2)])
    assert fault.startswith("LOST")
    assert "never done" in fault


def test_a_later_one_of_the_key_first() -> None:
    (fault,) = finished(2, 1).judge([stored(1), stored(2)])
    assert fault.startswith("ORDER")


def test_a_second_copy() -> None:
    (fault,) = finished(1, 2).judge([stored(1, b"same"), stored(2, b"same")])
    assert fault.startswith("TWICE")


def test_stored_before_it_was_due() -> None:
    account = finished(1)
    account.due_ms[b"k/1"] = 100
    assert account.judge([stored(1, at_ms=100)]) == []
    assert account.judge([stored(1, at_ms=99)])[0].startswith("EARLY")


def test_a_broker_just_started_is_seen_to_run() -> None:
    for _ in range(30):
        with subprocess.Popen(["sleep", "60"], start_new_session=True) as started:
            wait_for_command_line(started)
            seen = Path(f"/proc/{started.pid}/cmdline").read_bytes()
            started.kill()
        assert seen == b"sleep\x0060\x00"
