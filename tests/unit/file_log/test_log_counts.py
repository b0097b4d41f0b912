"""What the log counts about its group commits, and the store times that its batches tell."""

from __future__ import annotations

from pathlib import Path

from ddmq_common.metrics import catalogue
from tests.support.waits import done
from tests.unit.file_log.log_rig import LogRig


def test_the_sizes_of_group_commits_are_observed(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log")
    rig.make()
    records = rig.metrics.histogram(catalogue.LOG_COMMIT_RECORDS)
    sizes = rig.metrics.histogram(catalogue.LOG_COMMIT_BYTES)
    before, bytes_before = sum(records.counts), sizes.total
    first = rig.append_blocked(b"one")
    rest = [rig.append(b"two" * 100), rig.append(b"three" * 100)]
    rig.storage.unblock()
    assert done(first)[0].offset == 0
    assert [done(one)[0].offset for one in rest] == [1, 2]
    assert sum(records.counts) - before == 2
    assert (records.counts[1], records.counts[2]) == (before + 1, 1)
    assert records.total == rig.metrics.cell(catalogue.LOG_RECORDS).value
    assert 806 < sizes.total - bytes_before < 2_000


def test_a_batch_has_store_times_until_its_segment_is_deleted(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "log")
    ref = rig.make()
    started = rig.clock.wall_ms()
    done(rig.append(b"a"))
    rig.clock.advance(7)
    done(rig.append(b"b"))
    batch = done(rig.log.read(ref, 0, 10, 1 << 20))
    assert [batch.stored_ms(at) for at in range(2)] == [started, started + 7_000]
    assert [batch.record(at).stored_ms for at in range(2)] == [started, started + 7_000]
    rig.log._opened.segments.close()
    assert batch.stored_ms(0) == 0
