"""Our own words: deliver-at, deliver-after, deliver-cron and what goes with them (docs/delay.md)."""

from datetime import UTC, datetime

import pytest

from ddmq_common.delays.command import DelayCommand, Schedule
from ddmq_common.delays.schedules import ScheduleLimits
from proxy_producer.core.dialects import read_command, select_dialects

NOW = 1_795_289_273_456
DDMQ = select_dialects(["ddmq"])


def read(**properties):
    properties = {
        f"deliver-{name.replace('_', '-')}".encode(): str(value).encode()
        for name, value in properties.items()
    }
    return read_command(properties, DDMQ, NOW, ScheduleLimits())


@pytest.mark.parametrize(
    ("value", "due"),
    [
        ("1795289300", 1_795_289_300_000),
        ("1795289300.25", 1_795_289_300_250),
        ("1795289300.2501", 1_795_289_300_251),
        ("1795289300250", 1_795_289_300_250),
        ("1795289300250.5", 1_795_289_300_251),
        ("2026-11-22T20:00:00Z", 1_795_377_600_000),
        ("2026-11-22T21:00:00+01:00", 1_795_377_600_000),
        ("2026-11-22T20:00:00.000001+00:00", 1_795_377_600_001),
    ],
)
def test_a_moment_is_never_early(value, due):
    assert read(at=value).due_ms == due


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("250", 250),
        ("250ms", 250),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("1s5ms", 1_005),
    ],
)
def test_a_wait(value, wait):
    assert read(after=value).due_ms == NOW + wait


def test_weekdays_at_nine_in_shanghai():
    command = read(cron="0 9 * * MON-FRI", zone="Asia/Shanghai")
    assert datetime.fromtimestamp(command.due_ms // 1_000, UTC).isoformat() == "2026-11-23T01:00:00+00:00"


def test_everything_that_a_schedule_can_say():
    command = read(
        after="1s", period="10s", repeat=3, cron="0 * * * *", zone="UTC", occurrences=20, catch_up="skip"
    )
    assert command.schedule == Schedule(1_000, 10_000, 3, "0 * * * *", "UTC", 20, "skip")


def test_a_series_may_start_at_a_moment_or_now():
    assert read(at=NOW + 5_000, period="1m", repeat=2).due_ms == NOW + 5_000
    assert read(period="1m", repeat=2).due_ms == NOW


def test_what_has_passed_goes_at_once():
    assert read(at=1) is None
    assert read(at=NOW - 1) is None
    assert read(at=NOW).due_ms == NOW, "now is the end of a millisecond that is not over yet"
    assert read(after=0) is None


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"at": "tomorrow"}, "property deliver-at has the value 'tomorrow'; allowed: epoch seconds"),
        ({"at": "2026-12-24T18:00:00"}, "as in 2026-12-24T18:00:00+01:00"),
        ({"at": "-5"}, "deliver-at"),
        ({"at": "0001-01-01T00:00:00+00:00"}, "allowed: from 1970 on;"),
        ({"at": "0001-01-01T00:00:00+00:00", "period": "1d", "repeat": "-1"}, "from second 1000000000"),
        ({"at": "1700-01-01T00:00:00+00:00", "period": "1s", "repeat": "-1"}, "from second 1000000000"),
        ({"at": "999999999", "period": "1s", "repeat": "1"}, "from second 1000000000"),
        ({"at": NOW + 5, "after": "5s"}, "deliver-at stands beside"),
        ({"at": NOW + 5, "cron": "* * * * *"}, "deliver-at stands beside"),
        ({"after": "5 s"}, "parts in ms, s, m, h, d"),
        ({"after": "1.5h"}, "deliver-after has the value '1.5h'"),
        ({"after": "1s" * 40}, "deliver-after"),
        ({"zone": "UTC", "after": "5s"}, "without deliver-cron"),
        ({"cron": "0 9 * * *", "catch_up": "maybe"}, "catch-up is 'maybe'"),
        ({"cron": "0 9 * * *", "occurrences": "-1"}, "the occurrences are -1"),
    ],
)
def test_what_is_rejected(properties, words):
    rejection = read(**properties)
    assert not isinstance(rejection, DelayCommand)
    assert words in rejection.text
