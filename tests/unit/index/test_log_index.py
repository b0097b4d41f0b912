"""Write, look up, seal, reopen, rebuild, drop; damage; failing writes."""

import errno
from pathlib import Path

import pytest

from backend.file_log.core.names import entries_name, sorted_name
from backend.file_log.index.entries import IndexDamage
from backend.file_log.index.log_index import LogIndex
from ddmq_common.errors import DamagedError
from tests.unit.index.files_for_index import OsStorage
from tests.unit.index.logs import PretendLog, add, fill_gaps, run, some_rows, stored_between

FAR = 1 << 40


class Opened:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = OsStorage()
        self.damages: list[IndexDamage] = []
        self.index = LogIndex(self.storage, str(folder), self.damages.append)


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    opened_index = Opened(tmp_path / "index")
    assert opened_index.index.recover_files([(0, 0)]) == []
    return opened_index


def filled(opened: Opened, segments: int = 3, commits: int = 40, rows: int = 60) -> PretendLog:
    log = PretendLog()
    for segment in range(segments):
        if segment:
            log.roll(opened.index)
        for commit in range(commits):
            log.commit(opened.index, some_rows(rows, segment * 1000 + commit), 10_000 * segment + 7 * commit)
            opened.index.write_blocks()
    return log


def check(log: PretendLog, opened: Opened) -> None:
    index = opened.index
    for topic in ("topic-0", "topic-1", "none"):
        for key in (b"key-1", b"key-7", b"other"):
            assert list(index.find_key(topic, key, 10_000)) == log.by_key(topic, key)
    for row in log.rows[:: max(1, len(log.rows) // 40)]:
        assert list(index.find_id(row.message_id, 10)) == [row.position]
    times = [row.stored_ms for row in log.rows]
    for low, high in (
        (0, FAR),
        (times[0], times[-1]),
        (times[len(times) // 3], times[len(times) // 2]),
        (5, 5),
    ):
        assert stored_between(opened.folder, index, low, high) == log.between(low, high)


def test_lookups_before_and_after_sealing(opened: Opened) -> None:
    log = filled(opened)
    check(log, opened)
    assert opened.index.list_unsealed() == log.starts[:-1]
    for segment_range in log.segment_ranges()[:-1]:
        run(opened.index.seal_steps(segment_range))
    assert opened.index.list_unsealed() == []
    check(log, opened)
    assert opened.damages == []


def test_results_stop_at_count_max_with_the_newest(opened: Opened) -> None:
    log = filled(opened)
    assert list(opened.index.find_key("topic-1", b"key-7", 2)) == log.by_key("topic-1", b"key-7")[:2]


def test_other_readers_of_the_files_find_what_is_written(opened: Opened) -> None:
    log = filled(opened, segments=2)
    reader = Opened(opened.folder)
    newest = log.rows[-1]
    assert list(opened.index.find_id(newest.message_id, 1)) == [newest.position]
    assert list(reader.index.find_id(newest.message_id, 1)) == [], "it is in memory alone"
    opened.index.flush()
    opened.index.write_blocks()
    check(log, reader)
    assert opened.damages == reader.damages == []


def test_a_popular_key_is_sorted_and_read_newest_first(opened: Opened) -> None:
    log = PretendLog()
    for commit in range(30):
        log.commit(opened.index, [("t", b"popular", some_rows(1, commit)[0][2])] * 400, commit)
    log.roll(opened.index)
    run(opened.index.seal_steps(log.segment_ranges()[0]))
    assert list(opened.index.find_key("t", b"popular", 1 << 20)) == log.by_key("t", b"popular")


def test_reopening_keeps_written_blocks_and_names_the_gaps(opened: Opened, tmp_path: Path) -> None:
    log = filled(opened)
    run(opened.index.seal_steps(log.segment_ranges()[0]))  # the second stays unsealed; the live tail is lost
    reopened = Opened(opened.folder)
    gaps = reopened.index.recover_files(log.segment_ranges())
    assert len(gaps) == 1
    assert log.starts[-1] < gaps[0][0] < gaps[0][1] == log.end
    fill_gaps(reopened.index, log, gaps)
    check(log, reopened)
    assert reopened.damages == []


def test_blocks_above_the_end_of_the_log_are_truncated(opened: Opened) -> None:
    log = filled(opened, segments=1)
    opened.index.close()
    cut_position = log.rows[len(log.rows) // 2].position
    log.rows = [row for row in log.rows if row.position < cut_position]
    log.end = cut_position
    reopened = Opened(opened.folder)
    gaps = reopened.index.recover_files(log.segment_ranges())
    assert gaps
    assert gaps[-1][1] == cut_position
    fill_gaps(reopened.index, log, gaps)
    log.commit(reopened.index, some_rows(5, 99), 1 << 20)
    check(log, reopened)


def test_files_of_unknown_segments_and_unfinished_ones_are_removed(opened: Opened) -> None:
    filled(opened, segments=2)
    (opened.folder / (sorted_name(0) + ".new")).write_bytes(b"half")
    reopened = Opened(opened.folder)
    assert reopened.index.recover_files([(0, 0)]) == []
    assert [path.name for path in opened.folder.iterdir()] == [entries_name(0)]


def test_missing_files_of_an_older_segment_are_rebuilt(opened: Opened) -> None:
    log = filled(opened)
    (opened.folder / entries_name(log.starts[1])).unlink()
    reopened = Opened(opened.folder)
    gaps = reopened.index.recover_files(log.segment_ranges())
    assert gaps[0] == log.segment_ranges()[1]
    assert reopened.index.damaged == {log.starts[1]}
    fill_gaps(reopened.index, log, gaps)
    check(log, reopened)
    assert reopened.index.damaged == set()


def test_a_table_out_of_date_is_not_believed(opened: Opened) -> None:
    log = filled(opened, segments=2)
    run(opened.index.seal_steps(log.segment_ranges()[0]))
    opened.index.close()
    path = opened.folder / entries_name(0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    reopened = Opened(opened.folder)
    gaps = reopened.index.recover_files(log.segment_ranges())
    assert gaps[0][1] == log.starts[1]
    fill_gaps(reopened.index, log, gaps)
    check(log, reopened)


def test_a_segment_that_starts_below_what_is_indexed(opened: Opened) -> None:
    """After a failed sync the log moves its unsynced end, with the same positions, to a new segment."""
    log = filled(opened, segments=1)
    cut_position = log.rows[-100].position
    log.starts.append(cut_position)
    opened.index.start_segment(cut_position)
    assert opened.index.writer.covered_to == cut_position
    for row in log.rows[-100:]:
        add(opened.index, [row], row.stored_ms, row.position)
    opened.index.add_many((), (), (), (), 0, log.end)
    opened.index.write_blocks()
    check(log, opened)
    run(opened.index.seal_steps(log.segment_ranges()[0]))
    check(log, opened)
    opened.index.close()
    reopened = Opened(opened.folder)
    assert reopened.index.recover_files(log.segment_ranges()) == []
    check(log, reopened)


def test_a_gap_that_was_left_is_filled_once_the_segment_is_full(opened: Opened) -> None:
    log = filled(opened, segments=1)
    opened.index.close()
    (opened.folder / entries_name(0)).unlink()
    reopened = Opened(opened.folder)
    assert reopened.index.recover_files(log.segment_ranges()) == log.segment_ranges()
    reopened.index.skip_to(log.end)
    old, log.rows = log.rows, []
    log.commit(reopened.index, some_rows(50, 9_999), 1 << 20)
    check(log, reopened)
    log.rows = old + log.rows
    log.roll(reopened.index)
    fill_gaps(reopened.index, log, [])
    check(log, reopened)
    assert reopened.index.damaged == set()


def test_sealing_incomplete_entries_is_rejected_and_repaired(opened: Opened) -> None:
    log = PretendLog()
    log.commit(opened.index, some_rows(2000, 1), 5)
    opened.index.write_blocks()
    log.commit(opened.index, some_rows(2000, 2), 6)
    opened.storage.fail_writes = True
    opened.index.write_blocks()
    opened.storage.fail_writes = False
    log.commit(opened.index, some_rows(2000, 3), 7)
    log.roll(opened.index)
    opened.index.write_blocks()
    assert opened.index.writer.blocks_dropped == 1
    with pytest.raises(DamagedError, match="ends at"):
        run(opened.index.seal_steps(log.segment_ranges()[0]))
    fill_gaps(opened.index, log, [])
    check(log, opened)
    assert opened.index.damaged == set()


def test_on_a_full_disk_stored_records_match_and_nothing_is_dropped(opened: Opened) -> None:
    log = PretendLog()
    opened.storage.fails_with = errno.ENOSPC
    for commit, full in enumerate((False, True, True, False, True)):
        log.commit(opened.index, some_rows(2000, commit), 5 + commit)
        opened.storage.fail_writes = full
        opened.index.write_blocks()
        assert bool(opened.index.writer.list_unsaved()) is full
        check(log, opened) if not full else check_all_match(log, opened)
    opened.storage.fail_writes = False
    opened.index.write_blocks()
    check(log, opened)
    assert (opened.index.writer.blocks_dropped, opened.damages) == (0, [])


def check_all_match(log: PretendLog, opened: Opened) -> None:
    for row in log.rows[::100]:
        assert list(opened.index.find_id(row.message_id, 10)) == [row.position]


def test_on_a_full_disk_nothing_of_a_segment_waits_that_is_to_be_sealed(opened: Opened) -> None:
    log = PretendLog()
    opened.storage.fails_with = errno.ENOSPC
    opened.storage.fail_writes = True
    log.commit(opened.index, some_rows(2000, 1), 5)
    log.roll(opened.index)
    log.commit(opened.index, some_rows(2000, 2), 6)
    opened.index.write_blocks()
    assert [start for start, _ in opened.index.writer.list_unsaved()] == [log.starts[1]]
    assert opened.index.writer.blocks_dropped == 1
    opened.storage.fail_writes = False
    with pytest.raises(DamagedError, match="ends at"):
        run(opened.index.seal_steps(log.segment_ranges()[0]))
    fill_gaps(opened.index, log, [])
    check(log, opened)
    assert opened.index.writer.list_unsaved() == []


def test_waiting_blocks_are_bounded(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.file_log.index.writer.UNWRITTEN_MAX", 2)
    log = PretendLog()
    for commit in range(5):
        log.commit(opened.index, some_rows(1100, commit), commit)
    assert opened.index.writer.blocks_dropped == 3
    assert len(opened.index.writer.list_unsaved()) == 2


def test_dropping_a_segment(opened: Opened) -> None:
    log = filled(opened)
    run(opened.index.seal_steps(log.segment_ranges()[0]))
    opened.index.drop_segment(0)
    log.rows = [row for row in log.rows if row.position >= log.starts[1]]
    log.starts.pop(0)
    check(log, opened)
    with pytest.raises(ValueError, match="live"):
        opened.index.drop_segment(log.starts[-1])


def test_store_times_never_go_back_and_may_be_years_apart(opened: Opened) -> None:
    log = PretendLog()
    year_ms = 365 * 86_400_000
    for stored_ms in (5, 6, year_ms, 2 * year_ms):
        log.commit(opened.index, some_rows(3, stored_ms), stored_ms)
    check(log, opened)
    opened.index.add_many([log.end], ["t"], [b"back"], [bytes(16)], 7, log.end + 100)
    assert stored_between(opened.folder, opened.index, 2 * year_ms, FAR)[-1] == log.end


def test_mismatched_arguments_are_rejected(opened: Opened) -> None:
    opened.index.add_many([0], ["t"], [b""], [bytes(16)], 1, 100)
    with pytest.raises(ValueError, match="do not fit behind 100"):
        opened.index.add_many([50], ["t"], [b""], [bytes(16)], 1, 90)
    with pytest.raises(ValueError, match="key is empty"):
        opened.index.find_key("t", b"", 1)
    with pytest.raises(ValueError, match="16 bytes"):
        opened.index.find_id(b"short", 1)
