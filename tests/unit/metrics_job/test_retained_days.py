"""Which days are computed again: by what their files hold, not by how many there are."""

from __future__ import annotations

from datetime import date

import pytest

from ddmq_common.metrics.samples import SampleName, interval_name
from metrics_job.batch import DaySource, count_samples, sort_days

ONE, TWO = "1" * 16, "2" * 16
FIRST, SECOND, THIRD = (date(2026, 11, day) for day in (1, 2, 3))


def test_merging_changes_no_number() -> None:
    single = {str(interval_name(ONE, seq)): 10 + seq for seq in range(5)}
    merged = {str(SampleName(ONE, 0, 4, True)): 60}
    assert count_samples(single) == count_samples(single | merged) == count_samples(merged) == (5, 60)
    others = {
        str(interval_name(TWO, 7)): 1,
        "copy.jsonl": 2,
        f".{interval_name(ONE, 0)}.tmp": 4,
        "_x.jsonl": 8,
    }
    assert count_samples(single | others) == (7, 63)


@pytest.mark.parametrize(
    ("hours", "recompute", "where"),
    [
        ({"00": 6, "01": 6}, False, "unchanged"),
        ({"00": 6, "01": 6}, True, "compute"),
        ({"00": 6, "01": 9}, False, "compute"),
        ({"01": 6}, False, "lost"),
        ({"00": 5, "01": 6}, True, "lost"),
        ({"01": 6, "02": 9}, True, "lost"),
    ],
)
def test_a_day_that_lost_samples_keeps_its_tables(hours: dict[str, int], recompute: bool, where: str) -> None:
    earlier = {FIRST: DaySource({"00": 6, "01": 6}), SECOND: None, THIRD: DaySource({"00": 6})}
    now = {FIRST: DaySource(hours), SECOND: DaySource({"00": 1}), THIRD: DaySource({"00": 3})}
    sorted_days = sort_days([FIRST, SECOND, THIRD], earlier, now, THIRD, recompute)
    assert FIRST in getattr(sorted_days, where)
    assert {SECOND, THIRD} <= set(sorted_days.compute), "not made yet, and the newest, which goes on"


def test_the_newest_day_is_that_of_the_samples_not_of_the_range() -> None:
    sorted_days = sort_days(
        [FIRST], {FIRST: DaySource({"00": 6})}, {FIRST: DaySource({"00": 1})}, THIRD, True
    )
    assert sorted_days.lost == [FIRST]


@pytest.mark.parametrize(
    ("now", "where"),
    [
        ({"00": 60, "01": 60}, "unchanged"),
        ({"00": 60, "01": 90}, "compute"),  # a torn copy that was completed later, under the same name
        ({"00": 60, "01": 59}, "lost"),  # a file that is cut short since: the tables know more
        ({"01": 60}, "lost"),
    ],
)
def test_a_file_whose_length_changed_is_noticed(now: dict[str, int], where: str) -> None:
    hours = {"00": 6, "01": 6}
    earlier = {FIRST: DaySource(hours, bytes={"00": 60, "01": 60}), THIRD: DaySource(hours)}
    fresh = {FIRST: DaySource(hours, bytes=now), THIRD: DaySource(hours, bytes=now)}
    sorted_days = sort_days([FIRST, THIRD], earlier, fresh, THIRD, recompute=False)
    assert FIRST in getattr(sorted_days, where)
    assert THIRD in sorted_days.compute, "a note of before knew no bytes"


def test_changed_promises_are_judged_once_more() -> None:
    hours = {"00": 6}
    days, earlier = [FIRST, SECOND], {FIRST: DaySource(hours, promises=1), SECOND: DaySource(hours)}
    sorted_days = sort_days(
        days, earlier, {FIRST: DaySource(hours, promises=2), SECOND: DaySource(hours)}, SECOND, False
    )
    assert sorted_days.compute == [FIRST]
