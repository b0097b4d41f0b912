"""kill -9 while messages move from step to step: each is in exactly one place, then and at the end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from backend.file_log import FileLog
from backend.progress.ack_map import AckMap
from backend.records import QueueRef, StoredRecord
from ddmq_common.delivery import decode
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC
from tests.crash.failing_process import GROUP, MESSAGES, PATIENCE_S, STEPS, TOPIC, opened
from tests.crash.kit.reading import read_records

REPOSITORY = Path(__file__).resolve().parents[2]
GROUP_OF = {TOPIC: GROUP, f"%RETRY%{GROUP}": GROUP, SCHEDULE_TOPIC: LEVELS_GROUP, f"%DLQ%{GROUP}": None}
KILLS = 6
KILLS_MAX = 40  # until one of them has met messages on their way


@contextmanager
def departing(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, ready; killed at the end."""
    command = [sys.executable, "-m", "tests.crash.failing_process", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def open_records(log: FileLog, topic: str, group: str | None) -> list[StoredRecord]:
    """What `group` has not finished of a topic; None: everything."""
    info = log.topic(topic)
    unfinished: list[StoredRecord] = []
    for number in range(info.queues if info is not None else 0):
        assert info is not None
        queue = QueueRef(topic, info.incarnation, number)
        done = AckMap()
        if group is not None:
            view = log.progress(group, [queue]).wait(PATIENCE_S)[0]
            done = AckMap(view.committed or 0)
            done.finish(view.finished)
        unfinished += [each for each in read_records(log, topic, number) if not done.is_finished(each.offset)]
    return unfinished


def everywhere(directory: Path) -> dict[str, list[StoredRecord]]:
    log = opened(directory)
    try:
        return {topic: open_records(log, topic, group) for topic, group in GROUP_OF.items()}
    finally:
        log.close()


@pytest.mark.slow
def test_each_message_is_in_exactly_one_topic_whenever_the_process_dies(tmp_path: Path) -> None:
    seed = 20_261_121
    random = Random(seed)
    under_way = 0
    for kill in range(KILLS_MAX):
        if kill >= KILLS and under_way:
            break
        longest_s = 0.4 + 0.05 * kill  # a busy machine takes longer to begin
        with departing(tmp_path / "log") as process, contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0.02, longest_s))
        records_of = everywhere(tmp_path / "log")
        copies = Counter(record.message_id for records in records_of.values() for record in records)
        assert (len(copies), copies.total()) == (MESSAGES, MESSAGES), f"seed {seed}"
        under_way += len(records_of[SCHEDULE_TOPIC]) + len(records_of[f"%RETRY%{GROUP}"])
    assert under_way, "the kills met messages on their way"
    with departing(tmp_path / "log") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"all dead\n"
    _check_letters(everywhere(tmp_path / "log"))


def _check_letters(records_of: dict[str, list[StoredRecord]]) -> None:
    letters = records_of.pop(f"%DLQ%{GROUP}")
    assert not any(records_of.values()), "everything is accounted for"
    assert sorted(letter.message_id for letter in letters) == [
        number.to_bytes(16, "big") for number in range(MESSAGES)
    ]
    for letter in letters:
        properties = decode(letter.delivery).properties
        number = int.from_bytes(letter.message_id, "big")
        assert properties[b"dead-letter-topic"] == TOPIC.encode()
        assert properties[b"dead-letter-queue"] == b"%d" % (number % 2)
        assert properties[b"dead-letter-offset"] == b"%d" % (number // 2)
        assert int(properties[b"dead-letter-attempts"]) >= 2 + STEPS
