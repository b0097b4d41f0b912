"""What the keyword arguments of a delayed send mean, and what does not fit together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_client import DelayStatus, OptionError, SendResult
from ddmq_client.delays import DelayResult, When, epoch_ms, outcome_of, to_datetime, when_of

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
NOON_MS = 1_795_348_800_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, None),
        ({"level": 3}, None),
        ({"delay": 90 * SECOND}, When(delay_ms=90_000)),
        ({"delay": timedelta(0)}, When(delay_ms=0)),
        ({"delay": timedelta(microseconds=1)}, When(delay_ms=1)),
        ({"deliver_at": NOON}, When(due_ms=NOON_MS)),
        ({"deliver_at": datetime(2026, 11, 22, 20, tzinfo=ZoneInfo("Asia/Shanghai"))}, When(due_ms=NOON_MS)),
        ({"cron": "0 9 * * 1-5"}, When(cron="0 9 * * 1-5")),
        (
            {"cron": "0 9 * * *", "zone": "Asia/Shanghai", "times": 3, "catch_up": "all"},
            When(cron="0 9 * * *", zone="Asia/Shanghai", occurrences_max=3, catch_up="all"),
        ),
        ({"every": MINUTE}, When(delay_ms=60_000, period_ms=60_000, repeat=-1)),
        ({"every": MINUTE, "times": 3}, When(delay_ms=60_000, period_ms=60_000, repeat=2)),
        ({"every": MINUTE, "delay": SECOND}, When(delay_ms=1_000, period_ms=60_000, repeat=-1)),
        ({"every": MINUTE, "deliver_at": NOON, "times": 1}, When(due_ms=NOON_MS, period_ms=60_000, repeat=0)),
        (
            {"cron": "0 9 * * *", "every": MINUTE, "times": 3},
            When(cron="0 9 * * *", period_ms=60_000, repeat=2),
        ),
    ],
)
def test_what_they_mean(arguments, expected):
    assert when_of(**arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "error_text"),
    [
        ({"deliver_at": datetime(2026, 11, 22, 12)}, "2026-11-22T12:00:00 has no time zone"),
        ({"deliver_at": "2026-11-22"}, "is str; allowed: a datetime with a time zone"),
        ({"deliver_at": 1_795_348_800}, "is int"),
        ({"delay": 90}, "delay=90 is int; allowed: a timedelta"),
        ({"delay": -SECOND}, "allowed: at least 0 ms"),
        ({"delay": SECOND, "deliver_at": NOON}, "delay and deliver_at are both set"),
        ({"delay": SECOND, "cron": "* * * * *"}, "delay and cron are both set"),
        ({"delay": SECOND, "level": 3}, "delay and level are both set"),
        ({"level": 3, "every": MINUTE}, "every is set beside level"),
        ({"zone": "Asia/Shanghai", "deliver_at": NOON}, "zone='Asia/Shanghai' without a cron"),
        ({"times": 3}, "times is set without a first delivery"),
        ({"catch_up": "all"}, "catch_up is set without a first delivery"),
        ({"times": 3, "delay": SECOND}, "times=3 without every or cron"),
        ({"times": 0, "every": MINUTE}, "times=0; allowed: a whole number from 1"),
        ({"times": True, "every": MINUTE}, "times=True"),
        ({"every": timedelta(0)}, "every=0:00:00 is 0 ms"),
        ({"every": MINUTE, "cron": "* * * * *"}, "without times"),
        ({"every": MINUTE, "catch_up": "never"}, "catch_up='never'; allowed: fire_once, all, skip"),
        ({"cron": " "}, "five fields"),
    ],
)
def test_what_does_not_fit_together(arguments, error_text):
    with pytest.raises(OptionError) as caught:
        when_of(**arguments)
    assert error_text in str(caught.value)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
)
def test_never_early(naive, minutes):
    value = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert timedelta(0) <= to_datetime(epoch_ms("deliver_at", value)) - value < timedelta(milliseconds=1)


def answer(outcome: int | None, **fields: int) -> DelayResult:
    result = DelayResult()
    result.code, result.text, result.outcome = 0, "OK", outcome
    for name, value in fields.items():
        setattr(result, name, value)
    return result


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (1, DelayStatus.RESCHEDULED),
        (2, DelayStatus.CANCELLED),
        (3, DelayStatus.FIRED),
        (4, DelayStatus.UNKNOWN),
        (5, DelayStatus.TOO_OLD),
        (6, DelayStatus.PENDING),
        (None, DelayStatus.PENDING),
        (77, DelayStatus.PENDING),
    ],
)
def test_outcomes(outcome, status):
    result = outcome_of(answer(outcome))
    assert (result.status, result.cancelled) == (status, outcome == 2)
    assert (result.fired_at, result.due_at, result.text) == (None, None, "")


def test_moments_of_an_outcome_are_in_utc():
    assert outcome_of(answer(3, fired_at_ms=NOON_MS)).fired_at == NOON
    assert outcome_of(answer(1, due_ms=NOON_MS + 1)).due_at == NOON + timedelta(milliseconds=1)


def test_an_answer_without_an_outcome_is_pending():
    assert outcome_of(SendResult()).status is DelayStatus.PENDING
