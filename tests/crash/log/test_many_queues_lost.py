"""Power lost after a checkpoint of many queues: their consume queues are on the disk, synced either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.completion import Completion
from backend.file_log import FileLog
from backend.file_log.consume_queue import OTHERS_BYTES_MAX, SYNC_EACH_MAX
from backend.records import NewRecord, QueueRef, TopicInfo
from tests.crash.faulty_storage import FaultyStorage
from tests.crash.log.log_story import open_story, soon, wait

QUEUES = SYNC_EACH_MAX + 4


def _send(log: FileLog, body: bytes) -> None:
    records = [NewRecord("t", queue, body.ljust(16, b"."), 1, body) for queue in range(QUEUES)]
    wait(log.append(records, soon()))


def _checkpoint(log: FileLog) -> None:
    written: Completion[None] = Completion()
    log.write_checkpoint(lambda: written.succeed(None))
    wait(written)


@pytest.mark.parametrize("others", [0, 2 * OTHERS_BYTES_MAX])
def test_entries_of_many_queues_up_to_the_checkpoint_are_there(
    tmp_path: Path, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "live").mkdir()
    storage = FaultyStorage(tmp_path / "live")
    monkeypatch.setattr(storage, "dirty_bytes", lambda: others)
    log = open_story(tmp_path / "live", storage)
    info = wait(log.put_topic(TopicInfo("t", 0, QUEUES), soon()))
    for body in (b"first", b"second", b"third"):
        _send(log, body)
        _checkpoint(log)
    assert any("sync disk" in call for call in storage.trace) == (others == 0)
    storage.lost = True
    log.close()
    for name in ("checkpoint", "checkpoint.old"):
        image = storage.image(tmp_path / name)
        if name == "checkpoint.old":
            (image / "checkpoint").unlink()
        reopened = open_story(image)
        assert (reopened.recovered.rebuilt_queues, reopened.recovered.damaged_ranges) == (0, 0)
        for queue in range(QUEUES):
            read = reopened.read(QueueRef("t", info.incarnation, queue), 0, 10, 1 << 20)
            assert list(map(bytes, wait(read).deliveries)) == [b"first", b"second", b"third"]
        reopened.close()
