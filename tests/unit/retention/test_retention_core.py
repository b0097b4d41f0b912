"""The decision as a table: which segments go, why, what a hold keeps, what the disk still takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.file_log.core.retention import (
    GIB,
    HOUR_MS,
    MIB,
    Deletion,
    DiskAdmission,
    Hold,
    LogDisk,
    Marks,
    OldSegment,
    Reason,
    RetentionMoment,
    RetentionOptions,
    apply_marks,
    decide_admission,
    describe_disk_shortage,
    plan_deletions,
)
from ddmq_common.errors import ConfigError

NOW = 1_000_000 * HOUR_MS
BIG = LogDisk(500 * GIB, 1000 * GIB)
ANY_HOUR = RetentionOptions(cleaning_hour=None)
AGE, SIZE, DISK = Reason.AGE, Reason.SIZE, Reason.DISK


def log_of(*ages_h: float) -> list[OldSegment]:
    """Segments of 1 GiB whose newest records are that old; the last one is live."""
    return [OldSegment(n * GIB, (n + 1) * GIB, GIB, int(NOW - age * HOUR_MS)) for n, age in enumerate(ages_h)]


def at(disk: LogDisk = BIG, hour: int = 4, settling: bool = False) -> RetentionMoment:
    return RetentionMoment(NOW, hour, disk, settling)


def reasons(deletions: list[Deletion]) -> list[tuple[int, Reason]]:
    return [(deletion.segment.start // GIB, deletion.reason) for deletion in deletions]


PLAIN, TWO_GIB = RetentionOptions(), RetentionOptions(log_bytes_max=2 * GIB)
LOW = LogDisk(18 * GIB, 1000 * GIB)
CASES = {
    "nothing is old": (log_of(71, 1, 0), at(), PLAIN, []),
    "old, in the hour": (log_of(100, 73, 1, 0), at(), PLAIN, [(0, AGE), (1, AGE)]),
    "exactly the age": (log_of(72, 0), at(), PLAIN, [(0, AGE)]),
    "old, another hour": (log_of(100, 73, 0), at(hour=5), PLAIN, []),
    "old, no hour set": (log_of(100, 1, 0), at(hour=5), ANY_HOUR, [(0, AGE)]),
    "the live one stays": (log_of(100), at(), PLAIN, []),
    "no segments": ([], at(), PLAIN, []),
    "old behind young": (log_of(1, 100, 0), at(), PLAIN, []),
    "above the size": (log_of(5, 4, 3, 0), at(hour=5), TWO_GIB, [(0, SIZE), (1, SIZE)]),
    "exactly the size": (log_of(5, 4), at(hour=5), TWO_GIB, []),
    "above the size and old": (log_of(99, 4, 0), at(hour=5), TWO_GIB, [(0, AGE)]),
    "size never takes the live one": (log_of(5), at(), RetentionOptions(log_bytes_max=1), []),
    "low disk": (log_of(5, 4, 3, 0), at(LOW, 5), PLAIN, [(0, DISK), (1, DISK)]),
    "low disk, old first": (log_of(99, 4, 3, 0), at(LOW, 5), PLAIN, [(0, AGE), (1, DISK)]),
    "low disk, settling": (log_of(99, 4, 0), at(LOW, 5, True), PLAIN, []),
    "settling, in the hour": (log_of(99, 4, 0), at(LOW, 4, True), PLAIN, [(0, AGE)]),
    "small disk, a quarter free": (log_of(9, 8, 0), at(LogDisk(10 * GIB, 40 * GIB)), PLAIN, []),
    "small disk, less": (log_of(9, 8, 0), at(LogDisk(10 * GIB - 1, 40 * GIB)), PLAIN, [(0, DISK)]),
    "empty keeps the live one": (log_of(9, 8, 0), at(LogDisk(0, 40 * GIB)), PLAIN, [(0, DISK), (1, DISK)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_goes(name: str) -> None:
    segments, moment, options, expected = CASES[name]
    deletions, blocked = plan_deletions(segments, moment, options, [])
    assert reasons(deletions) == expected
    assert blocked is None


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, []), (GIB - 1, []), (GIB, [0]), (2 * GIB, [0, 1]), (9 * GIB, [0, 1, 2])],
)
def test_a_hold_keeps_its_segment_and_all_after_it(position: int, expected: list[int]) -> None:
    holds = [Hold(8 * GIB, "snapshot"), Hold(position, "dead letters under 3 days")]
    for moment in (at(), at(LogDisk(0, GIB))):
        deletions, blocked = plan_deletions(log_of(100, 90, 80, 0), moment, RetentionOptions(), holds)
        assert [start for start, _ in reasons(deletions)] == expected
        if position < 3 * GIB:
            assert blocked is not None
            assert blocked.segment.start == len(expected) * GIB
            assert blocked.hold.reason == "dead letters under 3 days"
        else:
            assert blocked is None


def test_a_hold_that_retains_nothing_more_is_not_reported() -> None:
    assert plan_deletions(log_of(1, 0), at(), RetentionOptions(), [Hold(0, "x")]) == ([], None)


LETTERS = Hold(5, "dead letters under 3 days")


@pytest.mark.parametrize(
    ("lettered", "retained_letters", "expected"),
    [
        ({0}, set(), [(0, True), (1, False), (2, False), (3, False)]),
        ({1}, set(), [(0, False), (1, True), (2, False), (3, False)]),
        ({1, 2, 4}, set(), [(0, False), (1, True), (2, True), (3, False), (4, True), (5, False)]),
        ({0, 1, 2, 3, 4, 5}, set(), []),  # nothing would be won
        ({2, 3, 4, 5}, set(), [(0, False), (1, False)]),
        ({0, 1}, {0, 1}, [(2, False), (3, False), (4, False)]),
        ({1}, {0, 1}, [(0, False), (2, False), (3, False)]),
        (set(), {0, 1}, [(0, False), (1, False), (2, False)]),
    ],
)
def test_dead_letters_retain_only_their_own_segments(
    lettered: set[int], retained_letters: set[int], expected: list[tuple[int, bool]]
) -> None:
    segments = [
        one._replace(dead_letters_only=one.start // GIB in retained_letters)
        for one in log_of(6, 5, 4, 3, 2, 1, 0)
    ]
    small = RetentionOptions(log_bytes_max=4 * GIB)
    deletions, blocked = plan_deletions(
        segments, at(), small, [], lambda one: LETTERS if one.start // GIB in lettered else None
    )
    assert [(one.segment.start // GIB, one.keep) for one in deletions] == expected
    assert (blocked is not None) == bool(lettered), "what holds is told"


def test_retained_segments_are_deleted_once_their_letters_are_old() -> None:
    segments = [one._replace(dead_letters_only=one.start == 0) for one in log_of(6, 5, 0)]
    assert plan_deletions(segments, at(), PLAIN, [], lambda _: LETTERS) == ([], None)
    assert plan_deletions(segments, at(), PLAIN, [], lambda _: None) == ([Deletion(segments[0], AGE)], None)


def test_another_hold_stops_before_letters_retain_anything() -> None:
    segments = log_of(6, 5, 4, 0)
    deletions, blocked = plan_deletions(segments, at(), TWO_GIB, [Hold(GIB, "snapshot")], lambda _: LETTERS)
    assert deletions == []
    assert blocked is not None


def test_marks_are_the_smaller_of_bytes_and_share() -> None:
    assert apply_marks(RetentionOptions(), 1000 * GIB) == Marks(20 * GIB, 2 * GIB, 256 * MIB)
    assert apply_marks(RetentionOptions(), 10 * GIB) == Marks(10 * GIB // 4, GIB, 10 * GIB // 100)


@pytest.mark.parametrize(
    ("free", "before", "expected"),
    [
        (2 * GIB, DiskAdmission.OPEN, DiskAdmission.OPEN),
        (2 * GIB - 1, DiskAdmission.OPEN, DiskAdmission.CLIENTS_REFUSED),
        (2 * GIB + 1, DiskAdmission.CLIENTS_REFUSED, DiskAdmission.CLIENTS_REFUSED),
        (int(2.2 * GIB) + 1, DiskAdmission.CLIENTS_REFUSED, DiskAdmission.OPEN),
        (256 * MIB - 1, DiskAdmission.OPEN, DiskAdmission.ALL_REFUSED),
        (256 * MIB, DiskAdmission.CLIENTS_REFUSED, DiskAdmission.CLIENTS_REFUSED),
        (256 * MIB, DiskAdmission.ALL_REFUSED, DiskAdmission.ALL_REFUSED),
        (300 * MIB, DiskAdmission.ALL_REFUSED, DiskAdmission.CLIENTS_REFUSED),
        (3 * GIB, DiskAdmission.ALL_REFUSED, DiskAdmission.OPEN),
        (0, DiskAdmission.CLIENTS_REFUSED, DiskAdmission.ALL_REFUSED),
    ],
)
def test_the_gate(free: int, before: DiskAdmission, expected: DiskAdmission) -> None:
    assert decide_admission(LogDisk(free, 1000 * GIB), RetentionOptions(), before) is expected


def test_a_rejection_names_numbers_and_remedy() -> None:
    text = describe_disk_shortage(
        DiskAdmission.CLIENTS_REFUSED, LogDisk(GIB, 100 * GIB), RetentionOptions(), "/data", None
    )
    assert text == (
        "the disk of /data has 1.0 GiB free of 100.0 GiB, less than the 2.0 GiB below which client sends are "
        "refused, until 2.2 GiB are free: free space on it, or keep messages for less than 72 h"
    )
    _, blocked = plan_deletions(
        log_of(99, 0), at(), RetentionOptions(), [Hold(5, "dead letters under 3 days")]
    )
    text = describe_disk_shortage(
        DiskAdmission.ALL_REFUSED, LogDisk(MIB, 100 * GIB), RetentionOptions(), "/data", blocked
    )
    assert "less than the 256.0 MiB below which nothing is written" in text
    assert text.endswith("; segment 0 cannot go: dead letters under 3 days")


def test_watermarks_in_reverse_order_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"clean_free_bytes \(5\) must be at least refuse_free_bytes \(6\)"):
        RetentionOptions(clean_free_bytes=5, refuse_free_bytes=6, reserve_free_bytes=1)
    with pytest.raises(ConfigError, match="reserve_free_percent"):
        RetentionOptions(reserve_free_percent=11)


@given(
    ages=st.lists(st.integers(0, 200), max_size=8),
    free=st.integers(0, 40 * GIB),
    hour=st.integers(0, 23),
    limit=st.none() | st.integers(1, 9 * GIB),
    holds=st.lists(st.integers(0, 9 * GIB), max_size=3),
)
def test_always_a_prefix_below_every_hold(
    ages: list[int], free: int, hour: int, limit: int | None, holds: list[int]
) -> None:
    segments = log_of(*sorted(ages, reverse=True))
    options = RetentionOptions(log_bytes_max=limit)
    deletions, _ = plan_deletions(
        segments, at(LogDisk(free, 100 * GIB), hour), options, [Hold(p, "") for p in holds]
    )
    assert [deletion.segment for deletion in deletions] == segments[: len(deletions)]
    assert len(deletions) < max(len(segments), 1)
    assert all(deletion.segment.end <= position for deletion in deletions for position in holds)
