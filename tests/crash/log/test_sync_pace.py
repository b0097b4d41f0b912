"""How often a disk is asked: a sync of what was only written, and a rescue, each once a period."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.file_log import FileLog
from backend.records import AppendStatus, Durability, TopicInfo
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import new_record, open_story, soon, wait
from tests.crash.log.test_failed_sync import Failing
from tests.support.constants import replace_options
from tests.support.waits import until

APPENDS = 30
HOUR_MS = 3_600_000  # no timer of that length rings within the test


def _append(log: FileLog, number: int) -> AppendStatus:
    return wait(log.append([new_record("events", 0, b"%06d" % number)], soon()))[0].status


def _an_hour(writer: Any, period: str) -> None:
    """From its next start on, the timer that has rung after a moment until now rings after an hour."""
    writer._options = replace_options(writer._options, **{period: HOUR_MS})


def test_what_is_only_written_is_synced_once_a_period(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage = FaultyStorage(tmp_path / "live")
    log = open_story(tmp_path / "live", storage, written_sync_ms=1, segment_bytes=1 << 20)
    writer: Any = log._writer
    wait(log.put_topic(TopicInfo("events", 0, 1, Durability.WRITTEN), soon()))
    _append(log, 0)
    until(lambda: writer.durable == writer.written)
    _an_hour(writer, "written_sync_ms")
    before = len(storage.trace)
    for number in range(APPENDS):
        assert _append(log, number) is AppendStatus.STORED
    calls = [call.partition(" ")[2] for call in storage.trace[before:]]
    assert not [call for call in calls if call.startswith("sync commitlog")]
    assert writer.durable < writer.written
    log.close()


def test_a_disk_that_stays_broken_is_tried_once_a_period(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    storage = Failing(tmp_path / "live")
    log = open_story(tmp_path / "live", storage, recover_retry_ms=1)
    writer: Any = log._writer
    wait(log.put_topic(TopicInfo("events", 0, 1), soon()))
    storage.broken = ("write through", "create", "sync all")
    assert _append(log, 0) is AppendStatus.UNKNOWN
    tries = writer._rescues[0]
    until(lambda: tries.value > 2)
    first_tries = tries.value
    _an_hour(writer, "recover_retry_ms")
    until(lambda: tries.value > first_tries)  # the one that was under way, or soon to be
    for number in range(APPENDS):
        assert _append(log, number) is AppendStatus.REFUSED
        assert writer._job is None
    assert tries.value == first_tries + 1
    log.close()
