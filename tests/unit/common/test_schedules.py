"""What of a schedule is refused at the edge, and that what is accepted is cheap to follow."""

import pytest

from ddmq_common.delays.command import Schedule
from ddmq_common.delays.schedules import (
    ScheduleLimits,
    cron_delivery_after,
    find_schedule_error,
    first_due_ms,
)

NOW = 1_795_289_273_000
LIMITS = ScheduleLimits(delay_ms_max=86_400_000, occurrences_max=1_000, period_ms_min=500)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (Schedule(delay_ms=-1), "the delay is -1ms; allowed: 0 to 1d"),
        (Schedule(delay_ms=86_400_001), "the delay is 1d1ms; allowed: 0 to 1d"),
        (Schedule(repeat=-2, period_ms=500), "repeat is -2"),
        (Schedule(repeat=1_001, period_ms=500), "repeat is 1001"),
        (Schedule(repeat=1, period_ms=499), "the period is 499ms; allowed: 500ms to 1d between deliveries"),
        (Schedule(repeat=-1), "the period is 0s"),
        (Schedule(period_ms=-1), "the period is -1ms"),
        (Schedule(repeat=1, period_ms=86_400_001), "the period is 1d1ms"),
        (Schedule(occurrences_max=-1), "the occurrences are -1"),
        (Schedule(occurrences_max=1_001), "the occurrences are 1001"),
        (Schedule(catch_up="later"), "catch-up is 'later'; allowed: fire_once, all, skip"),
        (Schedule(cron="0 0 30 2 *"), "day-of-month"),
        (Schedule(cron="* * * * *", zone="Nowhere"), "'Nowhere'"),
        (Schedule(cron="* * * * *", repeat=-1, period_ms=500), "beside a cron"),
        (Schedule(cron="* * * * *", repeat=481, period_ms=1_000), "lasts 8m1s; allowed: at most 8m,"),
    ],
)
def test_invalid_schedules_are_rejected(schedule, words):
    error = find_schedule_error(schedule, LIMITS, NOW)
    assert error is not None
    assert words in error
    assert "; allowed: " in error


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(),
        Schedule(delay_ms=86_400_000),
        Schedule(period_ms=1),
        Schedule(repeat=-1, period_ms=500),
        Schedule(repeat=1_000, period_ms=86_400_000, occurrences_max=1_000, catch_up="all"),
        Schedule(cron="* * * * *", repeat=480, period_ms=1_000),
        Schedule(cron="0 0 1 1 *", zone="Asia/Shanghai", catch_up="skip"),
    ],
)
def test_what_is_accepted(schedule):
    assert find_schedule_error(schedule, LIMITS, NOW) is None


def test_the_first_delivery():
    assert first_due_ms(Schedule(delay_ms=250), NOW) == NOW + 250
    minute = NOW - NOW % 60_000 + 60_000
    assert first_due_ms(Schedule(delay_ms=250, cron="* * * * *"), NOW) == minute + 250


def test_series_of_before_the_send_do_not_exist():
    """The first series starts at 11:00; that of 10:00 would have a delivery at 11:15."""
    hour = 3_600_000
    schedule = Schedule(0, 25 * 60_000, 3, "0 * * * *")
    assert cron_delivery_after(schedule, 11 * hour, 11 * hour) == 11 * hour + 25 * 60_000
    assert cron_delivery_after(schedule, 11 * hour, 12 * hour) == 12 * hour + 15 * 60_000
