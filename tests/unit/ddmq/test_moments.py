"""Moments as people write them."""

import pytest

from ddmq.moments import WALL_MS_MAX, format_age, format_moment, is_relative, read_moment

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "wall_ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("2026-11-21T12:00Z", 1_795_262_400_000),
        ("2026-11-21T13:00+01:00", 1_795_262_400_000),
        ("2026-11-21T12:00:00.250Z", 1_795_262_400_250),
        ("-2h", NOW - 7_200_000),
        ("-1d12h", NOW - 129_600_000),
        ("-90s", NOW - 90_000),
        ("-250ms", NOW - 250),
        ("-5m", NOW - 300_000),
        ("-999999999d", 0),
        ("+2h", NOW + 7_200_000),
        ("+1d12h", NOW + 129_600_000),
        ("+999999999d", WALL_MS_MAX),
        ("9999-12-31T23:59Z", WALL_MS_MAX),
        (str(WALL_MS_MAX), WALL_MS_MAX),
    ],
)
def test_what_is_a_moment(text: str, wall_ms: int) -> None:
    assert read_moment(text, NOW) == wall_ms


@pytest.mark.parametrize(
    "text",
    ["", "-", "+", "-2", "2h", "-2x", "+-2h", "-1h-2m", "yesterday", "tomorrow", "2026-13-01T00:00Z", "٣",
     "9" * 30, "9" * 15, "-2h "],
)  # fmt: skip
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: epoch milliseconds, a time like .*, or so far from now"):
        read_moment(text, NOW)


def test_a_zone_is_wanted_unless_this_machines_is_meant() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        read_moment("2026-11-21T12:00", NOW)
    assert abs(read_moment("2026-11-21T12:00", NOW, local=True) - 1_795_262_400_000) <= 14 * 3_600_000
    assert read_moment(format_moment(NOW), 0) == NOW
    assert format_moment(WALL_MS_MAX)
    assert format_moment(57_646_165_104_000_000) == "57646165104000000 ms since 1970"


def test_relative_ones_are_known() -> None:
    assert is_relative("-2h")
    assert is_relative("+2h")
    assert not is_relative("2026-11-21")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.34, "340 ms"),
        (12, "12.0 s"),
        (200, "3 m 20 s"),
        (14_700, "4 h 5 m"),
        (183_600, "2 d 3 h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert format_age(seconds) == text
