"""The retention greenlet: order of release and removal, gate, counts, failures, late space."""

from collections.abc import Callable
from typing import cast

import pytest

from backend.engine import StoreClock
from backend.file_log.core.retention import (
    GIB,
    HOUR_MS,
    DiskAdmission,
    Hold,
    OldSegment,
    Reason,
    RetentionOptions,
)
from backend.file_log.retention import Retention, local_hour
from backend.file_log.storage import Space, Storage
from ddmq_common.clock import ManualClock
from ddmq_common.errors import StorageError
from ddmq_common.metrics.catalogue import (
    LOG_BYTES,
    LOG_RETENTION_FAILURES,
    LOG_SEGMENTS_DELETED,
    LOG_SEGMENTS_HELD,
)
from ddmq_common.metrics.registry import Registry
from tests.support.waits import until


class DiskOf(Storage):
    def __init__(self, house: "RetentionRig") -> None:
        self.house = house

    def space(self, folder: str) -> Space:
        assert folder == "/data"
        if self.house.broken:
            raise self.house.broken
        return Space(self.house.free, 1000 * GIB)


class RetentionRig:
    """A log of 1 GiB segments on a disk of 1,000 GiB."""

    def __init__(self, segments: int, options: RetentionOptions | None = None) -> None:
        self.clock = ManualClock()
        self.registry = Registry()
        self.free = 500 * GIB
        self.freeing = True
        self.broken: OSError | None = None
        self.unkeepable = False
        self.holds: list[Hold] = []
        self.letters: dict[int, Hold] = {}
        self.events: list[tuple[str, int]] = []
        now = self.clock.wall_ms()
        self.segments = [OldSegment(n * GIB, (n + 1) * GIB, GIB, now) for n in range(segments)]
        self.retention = Retention(
            DiskOf(self),
            "/data",
            options or RetentionOptions(cleaning_hour=None),
            lambda: self.segments,
            self.release,
            self.keep,
            lambda: self.holds,
            lambda: lambda segment: self.letters.get(segment.start // GIB),
            self.clock,
            StoreClock(self.clock, 0),
            self.registry,
            deleted=lambda segment, reason: self.events.append(
                (f"deleted {reason.name}", segment.start // GIB)
            ),
            hour=lambda _: 12,
        )

    def keep(self, segment: OldSegment) -> Callable[[], Callable[[], None]]:
        def rename() -> Callable[[], None]:
            if self.unkeepable:
                raise OSError("no")
            self.events.append(("renamed", segment.start // GIB))
            return record_retained

        def record_retained() -> None:
            at = self.segments.index(segment)
            self.segments[at] = segment._replace(dead_letters_only=True)
            self.events.append(("kept", segment.start // GIB))

        return rename

    def release(self, segment: OldSegment) -> Callable[[], None]:
        self.segments = [one for one in self.segments if one != segment]
        self.events.append(("released", segment.start // GIB))

        def remove() -> None:
            if self.broken:
                raise self.broken
            self.free += GIB if self.freeing else 0
            self.events.append(("removed", segment.start // GIB))

        return remove


def test_segments_are_released_on_the_hub_then_removed_then_reported() -> None:
    house = RetentionRig(3)
    house.clock.advance(73 * 3600)
    house.segments[-1] = house.segments[-1]._replace(newest_ms=house.clock.wall_ms())
    house.segments[1] = house.segments[1]._replace(newest_ms=house.clock.wall_ms() - 71 * HOUR_MS)
    done = house.retention.run_once()
    assert [(deletion.segment.start, deletion.reason) for deletion in done] == [(0, Reason.AGE)]
    assert house.events == [("released", 0), ("removed", 0), ("deleted AGE", 0)]
    assert house.registry.cell(LOG_SEGMENTS_DELETED, "age").value == 1
    assert house.retention.run_once() == []


def test_segments_of_dead_letters_are_retained_before_later_ones_are_deleted() -> None:
    house = RetentionRig(4, RetentionOptions(cleaning_hour=None, log_bytes_max=2 * GIB))
    house.letters[0] = Hold(5, "dead letters")
    house.unkeepable = True
    assert house.retention.run_once() == []
    assert house.events == [], "it could not be kept, so nothing goes"
    house.unkeepable = False
    house.retention.run_once()
    assert [event for event in house.events if "deleted" not in event[0]] == [
        ("renamed", 0), ("kept", 0), ("released", 1), ("removed", 1), ("released", 2), ("removed", 2),
    ]  # fmt: skip
    assert house.registry.cell(LOG_SEGMENTS_HELD).value == 1
    assert house.registry.cell(LOG_SEGMENTS_DELETED, "size").value == 2


def test_low_space_deletes_until_there_is_enough() -> None:
    house = RetentionRig(10)
    house.free = 17 * GIB
    assert len(house.retention.run_once()) == 3
    assert house.retention.run_once() == []
    assert house.registry.cell(LOG_SEGMENTS_DELETED, "disk").value == 3
    assert house.registry.cell(LOG_BYTES).value == 7 * GIB


def test_space_that_shows_late_does_not_delete_more() -> None:
    house = RetentionRig(10)
    house.free, house.freeing = 17 * GIB, False
    assert len(house.retention.run_once()) == 3
    house.clock.advance(29)
    assert house.retention.run_once() == []
    house.clock.advance(2)
    assert len(house.retention.run_once()) == 3
    house.free = 19 * GIB  # half of it has shown
    assert len(house.retention.run_once()) == 1


def test_the_gate_closes_and_reopens() -> None:
    house = RetentionRig(1)
    assert house.retention.send_error is None
    house.free = GIB
    house.retention.run_once()
    assert "1.0 GiB free" in str(house.retention.send_error)
    assert house.retention.write_error is None
    house.free = 100
    house.retention.run_once()
    assert house.retention.write_error is not None
    assert house.retention.admission is DiskAdmission.ALL_REFUSED
    house.free = 50 * GIB
    house.retention.run_once()
    assert house.retention.send_error is None
    assert house.retention.write_error is None


def test_a_hold_is_shown_until_it_ends() -> None:
    house = RetentionRig(3, RetentionOptions(log_bytes_max=1))
    house.holds = [Hold(GIB, "dead letters under 3 days")]
    assert len(house.retention.run_once()) == 1
    assert house.retention.blocked is not None
    assert house.registry.cell(LOG_SEGMENTS_HELD).value == 1
    house.holds = []
    assert len(house.retention.run_once()) == 1
    assert house.retention.blocked is None
    assert house.registry.cell(LOG_SEGMENTS_HELD).value == 0


def test_a_failed_removal_is_counted_and_ends_the_round() -> None:
    house = RetentionRig(4, RetentionOptions(log_bytes_max=1))

    def remove_fails(segment: OldSegment) -> Callable[[], None]:
        def remove() -> None:
            raise PermissionError(1, "Operation not permitted")

        return remove

    house.retention._release = remove_fails
    assert house.retention.run_once() == []
    assert house.registry.cell(LOG_RETENTION_FAILURES).value == 1
    house.retention._release = house.release
    assert len(house.retention.run_once()) == 3


def test_unreadable_free_space_is_counted_and_deletes_nothing() -> None:
    house = RetentionRig(4, RetentionOptions(log_bytes_max=1))
    house.broken = OSError(5, "Input/output error")
    assert house.retention.run_once() == []
    assert house.registry.cell(LOG_RETENTION_FAILURES).value == 1
    assert house.events == []


def test_it_runs_by_itself_until_stopped() -> None:
    house = RetentionRig(4, RetentionOptions(log_bytes_max=1))
    house.retention.start(interval_s=0.01)
    until(lambda: len(house.segments) <= 1)
    house.retention.stop()
    house.retention.stop()
    assert len(house.segments) == 1


def test_a_round_that_fails_in_an_unknown_way_is_not_the_last() -> None:
    house = RetentionRig(3)
    house.broken = cast(OSError, ValueError("segment 0 is live"))
    house.retention.start(interval_s=0.001)
    until(lambda: house.registry.cell(LOG_RETENTION_FAILURES).value >= 2)
    house.broken = None
    house.free = GIB
    until(lambda: len(house.segments) <= 1)
    house.retention.stop()


def test_local_hour() -> None:
    assert local_hour(0) in range(24)


def test_an_operator_deletes_what_is_older_than_a_time() -> None:
    house = RetentionRig(5)
    house.holds.append(Hold(3 * GIB + 5, "delay commands"))
    house.letters[1] = Hold(GIB, "dead letters")
    now = house.clock.wall_ms()
    house.segments = [one._replace(newest_ms=now - 1_000 + at) for at, one in enumerate(house.segments)]
    house.clock.advance(60)
    before_ms = now - 1_000 + 2
    plan = house.retention.clean(before_ms, dry_run=True)
    assert [segment.start // GIB for segment in plan] == [0]
    assert house.events == []
    plan = house.retention.clean(now, dry_run=True)
    assert [segment.start // GIB for segment in plan] == [0, 2], "3 is held, and 4 is live"
    assert house.retention.clean(now, dry_run=False) == plan
    assert [segment.start // GIB for segment in house.segments] == [1, 3, 4]
    assert house.segments[0].dead_letters_only
    assert house.registry.cell(LOG_SEGMENTS_DELETED, "age").value == 2


def test_the_state_says_what_keeps_each_segment() -> None:
    house = RetentionRig(4)
    house.holds.append(Hold(2 * GIB + 5, "delay commands"))
    house.letters[1] = Hold(GIB, "dead letters")
    state = house.retention.read_state()
    assert [segment.held_by for segment in state.segments] == ["", "dead letters", "delay commands", ""]
    assert (state.free_bytes, state.total_bytes, state.refuse_bytes) == (500 * GIB, 1000 * GIB, 2 * GIB)
    assert state.holds == [(2 * GIB + 5, "delay commands")]
    house.broken = OSError("gone")
    with pytest.raises(StorageError, match="gone"):
        house.retention.read_state()
