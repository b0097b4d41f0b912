"""When orders fire again, by examples: the wire's formulas, caps, late starts, ids."""

import time
from itertools import pairwise

import pytest

from ddmq_common.delays.command import ADD, EXPONENTIAL, LOOP, ONCE, SCHEDULE, DelayCommand, Schedule
from ddmq_common.errors import DamagedError
from delay_service.core.occurrences import (
    Next,
    delivered_before,
    due_ms,
    next_after,
    occurrence_id,
    to_fire,
)

UUID = "a4207970-e5e1-11f1-a4e0-02fc00000001"
T0 = 1_700_000_000
T0_MS = T0 * 1_000
DAY_MS = 86_400_000


def order(kind, interval=0, times=0, lasts=10**9, first=T0):
    return DelayCommand(
        ADD, UUID, "t", kind, first * 1_000, first, first + lasts, interval, times, 7
    )  # fmt: skip


def scheduled(schedule, due=T0_MS):
    return DelayCommand(ADD, UUID, "t", SCHEDULE, due, due // 1_000, shard=7, schedule=schedule)


def dues(command, count, now_ms=0):
    """Seconds after the first, as many as there are."""
    offsets_s, occurrence = [0], 0
    while len(offsets_s) < count and (following := next_after(command, occurrence, now_ms)):
        occurrence = following.occurrence
        offsets_s.append((following.due_ms - command.due_ms) // 1_000)
    return offsets_s


def test_once_is_once():
    command = order(ONCE, lasts=172_800)
    assert next_after(command, 0, T0_MS) is None
    assert due_ms(command, 0) == T0_MS
    assert occurrence_id(command, 0) == f"{T0}-2-{T0 + 172_800}-0-0-0-7-{UUID}"


def test_a_loop_adds_its_interval():
    assert dues(order(LOOP, 10, 5), 9) == [0, 10, 20, 30, 40]


def test_a_loop_with_base_3_adds_3_9_27():
    assert dues(order(EXPONENTIAL, 3, 100), 5) == [0, 3, 12, 39, 120]


def test_a_distance_grows_to_a_day_and_no_more():
    offsets_s = dues(order(EXPONENTIAL, 2, 100), 20)
    steps = [later - earlier for earlier, later in pairwise(offsets_s)]
    assert steps == [*[2**k for k in range(1, 17)], 86_400, 86_400, 86_400]
    assert dues(order(EXPONENTIAL, 10**18, 4), 9) == [0, 86_400, 172_800, 259_200]


def test_expire_is_included():
    assert dues(order(LOOP, 10, 100, lasts=30), 9) == [0, 10, 20, 30]
    assert dues(order(LOOP, 10, 100, lasts=29), 9) == [0, 10, 20]
    assert dues(order(EXPONENTIAL, 3, 100, lasts=39), 9) == [0, 3, 12, 39]


def test_a_single_occurrence_is_the_last():
    assert next_after(order(LOOP, 10, 1), 0, T0_MS) is None


def test_an_occurrence_carries_its_own_timestamp_and_number():
    command = order(LOOP, 10, 5, lasts=1_000)
    assert occurrence_id(command, 3) == f"{T0 + 30}-3-{T0 + 1_000}-5-3-10-7-{UUID}"


def test_milliseconds_of_the_first_shift_all():
    command = DelayCommand(ADD, UUID, "t", LOOP, T0_MS + 250, T0, T0 + 1_000, 10, 5)
    assert next_after(command, 0, 0) == Next(1, T0_MS + 10_250)
    assert occurrence_id(command, 1).startswith(f"{T0 + 10}-")
    assert next_after(command, 0, T0_MS + 10_249, 1) == Next(1, T0_MS + 10_250)
    assert next_after(command, 0, T0_MS + 20_249, 1) == Next(1, T0_MS + 10_250)
    assert next_after(command, 0, T0_MS + 20_250, 1) == Next(2, T0_MS + 20_250)


@pytest.mark.parametrize(
    "command",
    [
        order(LOOP, 3, 10**9, lasts=9_999_999_999, first=1_000_000_000),
        order(EXPONENTIAL, 2, 10**9, lasts=9_999_999_999, first=1_000_000_000),
        scheduled(Schedule(0, 1, -1, catch_up="all"), 1_000_000_000_000),
        scheduled(Schedule(0, 1_000, -1), 1_000_000_000_000),
        scheduled(Schedule(0, 1_000, 30, "* * * * *", "Europe/Berlin"), 1_000_000_020_000),
        scheduled(Schedule(0, 1_000, 30, "* * * * *", "UTC", catch_up="all"), 1_000_000_020_000),
        scheduled(Schedule(0, 1_000, 690_000, "0 0 * * *", "UTC", catch_up="all"), 1_000_080_000_000),
        scheduled(Schedule(0, 0, 0, "* * * * *", "Australia/Lord_Howe", catch_up="skip"), 1_000_000_020_000),
    ],
)
def test_a_loop_that_started_in_2001_costs_no_walk(command):
    now, began = 1_800_000_000_000, time.thread_time()
    following = next_after(command, 0, now)
    assert time.thread_time() - began < 5.0, "of work, however busy the machine is"
    assert following is not None
    assert following.due_ms >= due_ms(command, 0) + 20 * 1_000
    assert now - DAY_MS * 1_000 < following.due_ms


def test_2001_every_3_seconds_fires_the_last_thousand():
    command = order(LOOP, 3, 10**9, lasts=9_999_999_999, first=1_000_000_000)
    now = 1_800_000_000_000
    following = next_after(command, 0, now)
    passed_over = 800_000_000 // 3 - 1_000
    assert following == Next(passed_over + 1, 1_000_000_000_000 + (passed_over + 1) * 3_000)
    assert next_after(command, following.occurrence, now) == Next(
        following.occurrence + 1, following.due_ms + 3_000
    )


def test_a_loop_whose_end_is_long_past_fires_its_last_deliveries_and_ends():
    command = order(LOOP, 3, 2_000, lasts=9_999)
    following = next_after(command, 0, 1_800_000_000_000)
    assert following == Next(1_000, T0_MS + 3_000_000)
    assert next_after(command, 1_999, 1_800_000_000_000) is None


# --- schedules


def test_repeat_n_is_n_more():
    assert dues(scheduled(Schedule(30_000, 10_000, 9)), 99) == [10 * k for k in range(10)]


def test_a_cap_counts_deliveries():
    assert dues(scheduled(Schedule(0, 10_000, -1, occurrences_max=4)), 99) == [0, 10, 20, 30]
    daily = scheduled(Schedule(cron="0 0 * * *", occurrences_max=3), 1_700_006_400_000)
    assert dues(daily, 99) == [0, 86_400, 172_800]


def test_a_cron_starts_the_series_at_each_of_its_times():
    hourly = scheduled(Schedule(1_000, 1_000, 9, "0 * * * *"), 1_700_002_801_000)
    assert dues(hourly, 12) == [*range(10), 3_600, 3_601]


def test_series_that_overlap_run_beside_each_other():
    every_minute = scheduled(Schedule(0, 40_000, 3, "* * * * *"), 1_700_000_040_000)
    assert dues(every_minute, 12) == [0, 40, 60, 80, 100, 120, 140, 160, 180, 200, 220, 240]


def test_weekdays_at_nine_in_shanghai():
    command = scheduled(Schedule(cron="0 9 * * MON-FRI", zone="Asia/Shanghai"), 1_699_578_000_000)  # a Friday
    assert dues(command, 4) == [0, 3 * 86_400, 4 * 86_400, 5 * 86_400]


def test_due_time_and_count_follow_from_the_number():
    """Whoever knows only the order and the number of the last one fired goes on rightly."""
    command = scheduled(Schedule(500, 1_000, 2, "*/5 * * * *"), 1_700_000_100_500)
    occurrence = 0
    for fired in range(30):
        assert delivered_before(command, occurrence) == fired
        following = next_after(command, occurrence, 0)
        assert due_ms(command, following.occurrence) == following.due_ms
        occurrence = following.occurrence


LATE = T0_MS + 65_000  # 6 more were due by then, the last 5,000 ms ago


@pytest.mark.parametrize(
    ("catch_up", "fires"),
    [("fire_once", [0, 70]), ("all", [0, 10, 20, 30, 40, 50, 60, 70]), ("skip", [60, 70])],
)
def test_a_late_schedule_follows_its_catch_up_rule(catch_up, fires):
    command, occurrence, fired = scheduled(Schedule(0, 10_000, 7, catch_up=catch_up)), 0, []
    while True:
        at = max(LATE, due_ms(command, occurrence))
        following = to_fire(command, occurrence, at)
        if following is not None and following.occurrence == occurrence:
            fired.append((due_ms(command, occurrence) - T0_MS) // 1_000)
            following = next_after(command, occurrence, at)
        if following is None:
            break
        occurrence = following.occurrence
    assert fired == fires


def test_skip_lets_a_single_delivery_fire_however_late():
    command = scheduled(Schedule(catch_up="skip"))
    assert to_fire(command, 0, T0_MS + DAY_MS) == Next(0, T0_MS)


def test_skip_of_the_last_one_ends_the_schedule():
    command = scheduled(Schedule(0, 10_000, 1, catch_up="skip"))
    assert to_fire(command, 0, T0_MS + DAY_MS) is None


def test_skip_goes_by_the_time_it_was_rescheduled_to():
    command = scheduled(Schedule(0, 10_000, 9, catch_up="skip"))
    later = T0_MS + 30_000
    assert to_fire(command, 0, later, later) == Next(0, later)


@pytest.mark.parametrize("catch_up", ["fire_once", "skip"])
def test_a_missing_time_zone_is_damage(catch_up):
    command = scheduled(Schedule(cron="0 9 * * *", zone="Moon/Sea", catch_up=catch_up))
    with pytest.raises(DamagedError, match=r"Moon/Sea"):
        next_after(command, 0, T0_MS)
    if catch_up == "skip":
        with pytest.raises(DamagedError, match=r"Moon/Sea"):
            to_fire(command, 0, T0_MS + DAY_MS)


def test_a_schedule_fired_early_continues_after_that_delivery():
    hourly = scheduled(Schedule(cron="0 * * * *"), 1_700_002_800_000)
    assert next_after(hourly, 0, 1_700_000_000_000) == Next(3_600_000 << 20 | 1, 1_700_006_400_000)
