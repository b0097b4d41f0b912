"""Walks over stored records: every record once, over any number of requests, within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.records import NewRecord
from ddmq.server.admin.search import records
from ddmq.server.admin.search.records import RecordScan, ScannedRange, ScanPosition, read_cursor
from ddmq_common.delivery import encode
from ddmq_common.errors import CallerError
from tests.support.backend_rig import BackendRig
from tests.support.waits import done

QUEUES = 3


@pytest.fixture(scope="module")
def rig() -> BackendRig:
    built = BackendRig(None, None)
    built.make("t", QUEUES)
    for queue in range(QUEUES):
        for number in range(20):
            record = NewRecord("t", queue, built.next_id(), number, encode(b"", b"%d" % number, b"", None))
            done(built.backend.append([record], built.clock.monotonic() + 60))
    return built


@given(
    limits=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=3, max_size=3),
    finished=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=4),
    page=st.integers(1, 9),
    most=st.integers(1, 9),
)
def test_every_record_of_the_ranges_comes_once(
    rig: BackendRig, limits: list[tuple[int, int]], finished: list[tuple[int, int]], page: int, most: int
) -> None:
    refs = rig.backend.topic("t").refs()  # type: ignore[union-attr]
    done_ranges: list[tuple[int, int]] = []
    for start, length in sorted(finished):
        if not done_ranges or start > done_ranges[-1][1]:
            done_ranges.append((start, start + length))
    ranges = [ScannedRange(0, ref, *limits[ref.queue_id], done_ranges) for ref in refs]
    expected = [
        (ref.queue_id, offset)
        for ref in refs
        for offset in range(*limits[ref.queue_id])
        if not any(start <= offset < end for start, end in done_ranges)
    ]
    seen: list[tuple[int, int]] = []
    after: ScanPosition | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "SCANNED_MAX", most)
        for _ in range(500):
            scan = RecordScan(rig.backend, rig.clock, ranges, after)
            for shown, record in enumerate(scan.walk_records(), 1):
                seen.append((record.queue_id, record.offset))
                if shown == page:
                    scan.stop()
            if scan.next is None:
                break
            after = read_cursor(str(scan.next))
        else:
            pytest.fail("it does not end")
    assert seen == expected


def test_a_walk_ends_in_time(rig: BackendRig) -> None:
    ranges = [ScannedRange(0, ref, 0, 20) for ref in rig.backend.topic("t").refs()]  # type: ignore[union-attr]
    scan = RecordScan(rig.backend, rig.clock, ranges, None)
    seen = 0
    for _ in scan.walk_records():
        seen += 1
        rig.clock.advance(records.SEARCH_S)
    assert (seen, scan.next) == (20, ScanPosition(0, 1, 0)), "the batch that was read is examined"


@pytest.mark.parametrize("text", ["", "1", "1.2", "1.2.x", "1.2.3.4", "1.2.-3", "٣.1.1", "1.1." + "9" * 40])
def test_a_cursor_that_cannot_be_read_is_rejected(text: str) -> None:
    with pytest.raises(CallerError, match="allowed: the `next` of an earlier answer"):
        read_cursor(text)
