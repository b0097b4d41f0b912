"""Cron expressions in time zones: what they mean, when clocks change too, and what is refused."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ddmq_common.delays.cron import Cron, CronError, find_cron_error

BERLIN, NEW_YORK, SHANGHAI, LORD_HOWE = (
    "Europe/Berlin", "America/New_York", "Asia/Shanghai", "Australia/Lord_Howe",
)  # fmt: skip


def times(expression, zone, after, count):
    """The next times as text with their offset from UTC."""
    cron, fire_times = Cron(expression, zone), []
    ms = int(datetime.fromisoformat(after).timestamp() * 1_000)
    for _ in range(count):
        ms = cron.next_ms(ms)
        fire_times.append(datetime.fromtimestamp(ms // 1_000, ZoneInfo(zone)).isoformat(timespec="minutes"))
    return fire_times


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # a plain weekday morning, where clocks never change
        (
            "0 9 * * MON-FRI", SHANGHAI, "2026-11-20T09:00+08:00",
            ["2026-11-23T09:00+08:00", "2026-11-24T09:00+08:00"],
        ),
        # a time that the clock jumps over: the first minute that exists
        (
            "30 2 * * *", BERLIN, "2026-03-28T02:30+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        ),
        (
            "30 2 * * *", NEW_YORK, "2026-03-07T12:00-05:00",
            ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
        ),
        (
            "15 2 * * *", LORD_HOWE, "2026-10-03T12:00+10:30",
            ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
        ),
        # several in one gap are one moment, and one with the time after the gap
        (
            "0,30 2,3 * * *", BERLIN, "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00", "2026-03-30T02:00+02:00"],
        ),
        # a time that comes twice: the first
        (
            "30 2 * * *", BERLIN, "2026-10-24T12:00+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
        ),
        (
            "30 1 * * *", NEW_YORK, "2026-10-31T12:00-04:00",
            ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
        ),
        (
            "45 1 * * *", LORD_HOWE, "2026-04-04T12:00+11:00",
            ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
        ),
        # asked from inside the hour that comes again: the first has passed
        ("45 2 * * *", BERLIN, "2026-10-25T02:30+01:00", ["2026-10-26T02:45+01:00"]),
        # every half hour of real time: nothing in a gap, twice in an hour that comes twice
        (
            "*/30 * * * *", BERLIN, "2026-10-25T02:00+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"],
        ),
        ("0 * * * *", BERLIN, "2026-03-29T00:30+01:00", ["2026-03-29T01:00+01:00", "2026-03-29T03:00+02:00"]),
        ("*/20 2 * * *", BERLIN, "2026-03-29T00:30+01:00", ["2026-03-30T02:00+02:00"]),
        (
            "*/15 * * * *", LORD_HOWE, "2026-04-05T01:45+11:00",
            ["2026-04-05T01:30+10:30", "2026-04-05T01:45+10:30", "2026-04-05T02:00+10:30"],
        ),
        # a midnight that does not exist has no minutes
        ("*/30 0 * * *", "Africa/Cairo", "2026-04-23T12:00+02:00", ["2026-04-25T00:00+03:00"]),
        # a day that does not begin at midnight begins with the first minute that there is
        (
            "*/30 * * * 5", "Africa/Cairo", "2026-04-23T22:00+02:00",
            ["2026-04-24T01:00+03:00", "2026-04-24T01:30+03:00"],
        ),
        # clocks that change at a quarter to the hour, back and forward
        (
            "*/15 2 * * *", "Pacific/Chatham", "2026-04-05T02:30+13:45",
            ["2026-04-05T02:45+13:45", "2026-04-05T02:45+12:45", "2026-04-06T02:00+12:45"],
        ),
        (
            "*/20 3 * * *", "Pacific/Chatham", "2026-04-05T03:20+13:45",
            ["2026-04-05T03:40+13:45", "2026-04-05T03:00+12:45", "2026-04-05T03:20+12:45"],
        ),
        ("*/50 3 * * *", "Pacific/Chatham", "2026-09-26T12:00+12:45", ["2026-09-27T03:50+13:45"]),
        # the calendar
        ("0 0 29 2 *", "UTC", "2026-11-22T00:00+00:00", ["2028-02-29T00:00+00:00", "2032-02-29T00:00+00:00"]),
        ("0 0 31 * *", "UTC", "2026-11-22T00:00+00:00", ["2026-12-31T00:00+00:00", "2027-01-31T00:00+00:00"]),
        ("0 0 L * *", "UTC", "2027-02-01T00:00+00:00", ["2027-02-28T00:00+00:00"]),
        ("0 12 * * mon#1", "UTC", "2026-11-22T00:00+00:00", ["2026-12-07T12:00+00:00"]),
        # both days restricted: either is enough; one open: the other holds
        ("0 0 13 * 5", "UTC", "2026-11-22T00:00+00:00", ["2026-11-27T00:00+00:00", "2026-12-04T00:00+00:00"]),
        ("0 0 * * 7", "UTC", "2026-11-22T00:00+00:00", ["2026-11-29T00:00+00:00"]),
    ],
)  # fmt: skip
def test_what_an_expression_means(expression, zone, after, expected):
    assert times(expression, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "words"),
    [
        ("0 0 30 2 *", "UTC", "day-of-month"),
        ("0 0 31 4,6 *", "UTC", "day-of-month"),
        ("0 0 */31 2 MON#2", "UTC", "no time within 10 years"),
        ("", "UTC", "has 0 fields"),
        ("* * * *", "UTC", "has 4 fields"),
        ("0 0 9 * * *", "UTC", "has 6 fields"),
        ("60 * * * *", "UTC", "minute"),
        ("* 24 * * *", "UTC", "hour"),
        ("* * 0 * *", "UTC", "day-of-month"),
        ("* * * 13 *", "UTC", "month"),
        ("* * * * 8", "UTC", "day-of-week"),
        ("*/0 * * * *", "UTC", "minute"),
        ("-1 * * * *", "UTC", "minute"),
        ("@daily", "UTC", "has 1 fields"),
        ("1," * 80 + "1 * * * *", "UTC", "characters"),
        ("* * * * *", "Mars/Olympus", "time zone 'Mars/Olympus' is not known"),
        ("* * * * *", "", "time zone '' is not known"),
        ("* * * * *", "../../etc/passwd", "not known"),
        ("* * * * *", "Europe", "not known"),
        ("* * * * *", "x" * 10_000, "not known"),
    ],
)
def test_invalid_expressions_are_rejected(expression, zone, words):
    error = find_cron_error(expression, zone, 1_795_289_273_000)
    assert error is not None
    assert words in error
    assert "allowed" in error
    assert len(error) < 400


@pytest.mark.parametrize(
    ("expression", "minutes"),
    [
        ("* * * * *", 1), ("*/7 * * * *", 4), ("0 * * * *", 60), ("0 9 * * *", 1_440), ("0 9,17 * * 1", 480),
        ("59 23 * * *", 1_440), ("0,59 0,23 * * *", 1),
    ],
)  # fmt: skip
def test_the_shortest_distance(expression, minutes):
    assert Cron(expression).gap_ms_min == minutes * 60_000


def test_looking_back():
    cron = Cron("0 * * * *")
    assert cron.back_ms(10 * 3_600_000 + 5, 1) == 10 * 3_600_000
    assert cron.back_ms(10 * 3_600_000, 1) == 10 * 3_600_000
    assert cron.back_ms(10 * 3_600_000 - 1, 3) == 7 * 3_600_000


def test_the_end_of_the_calendar_is_no_error():
    assert Cron("0 0 1 1 *").next_ms(253_402_300_799_000) is None
    assert Cron("0 0 1 1 *").next_ms(10**18) is None


def test_parsed_expressions_are_cached_and_bounded():
    assert Cron.from_expression("* * * * *", "UTC") is Cron.from_expression("* * * * *", "UTC")
    with pytest.raises(CronError):
        Cron.from_expression("x", "UTC")


@pytest.mark.parametrize(
    ("expression", "zone"),
    [("0 0 * 2 MON#5", "America/New_York"), ("0 0 29 2 *", "UTC"), ("*/5 * * * *", "UTC")],
)
def test_a_search_runs_once(expression: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that finds nothing, which costs most."""
    cron = Cron(expression, zone)
    searched: list[int] = []
    search = Cron._search_next
    monkeypatch.setattr(
        Cron, "_search_next", lambda self, after: searched.append(after) or search(self, after)
    )
    now = 1_790_000_000_000
    first = cron.next_ms(now)
    assert [cron.next_ms(now + later) for later in (0, 1, 59_999)] == [first] * 3
    assert len(searched) == 1
    later = now + 86_400_000 if first is None else first
    assert cron.next_ms(later) == search(cron, later)
    assert cron.next_ms(now) == first
    assert len(searched) == 3


def test_a_cron_that_fires_only_once_is_rejected() -> None:
    now_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
    error = find_cron_error("0 0 29 2 */7", "UTC", now_ms)
    assert error is not None
    assert "has no second time within 10 years of its first" in error
    assert find_cron_error("0 0 29 2 *", "UTC", now_ms) is None
