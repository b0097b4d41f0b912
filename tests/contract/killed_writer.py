"""A process that writes through the port until it is killed, and says what was answered.

`python -m tests.contract.killed_writer DIRECTORY SEED`: opens the file log and keeps several commits and
appends under way. Each answered one is told on standard output before anything follows from it, in lines:
`r QUEUE OFFSET DELIVERY` for a stored record, `s NUMBER` for a commit. A commit's number is the setting,
it finishes FINISHED_EACH offsets, and its records say how many they are. The parent kills the process
and compares what it finds with what was told.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import gevent

from backend.completion import Completion
from backend.file_log import FileLog, open_log
from backend.records import (
    AppendResult,
    AppendStatus,
    CommitBatch,
    NewRecord,
    ProgressDelta,
    QueueRef,
    TopicInfo,
)
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from tests.contract.contract_engines import LOG_OPTIONS
from tests.support.waits import done

UNDER_WAY = 16
DEADLINE_S = 600.0  # none passes on a slow machine: what is refused would be a gap
FINISHED_EACH = 5  # offsets per commit, so that progress and setting must agree
SETTING = "number"


class Writer:
    """Starts a new write whenever one was answered."""

    def __init__(self, log: FileLog, seed: int) -> None:
        self.log = log
        self.random = random.Random(seed)
        info = done(log.put_topic(TopicInfo("orders", 0, 3), time.monotonic() + DEADLINE_S))
        self.queues = [QueueRef("orders", info.incarnation, index) for index in range(3)]
        view = done(log.progress("billing", self.queues[:1]))[0]
        self.finished = view.committed or 0
        self.number = int(log.setting(SETTING) or b"0")
        self.serial = 0

    def start(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        count = self.random.choice([1, 1, 3, 20])
        if self.random.random() < 0.5:
            records = [self.record(b"a") for _ in range(count)]
            self.log.append(records, deadline).then(lambda answer: self.answered(answer, records, ""))
            return
        self.number += 1
        records = [self.record(b"c %d %d" % (self.number, count)) for _ in range(count)]
        first, self.finished = self.finished, self.finished + FINISHED_EACH
        delta = ProgressDelta("billing", self.queues[0], 0, 0, ((first, self.finished),))
        batch = CommitBatch(records, [delta], {SETTING: b"%d" % self.number})
        line = f"s {self.number}\n"
        self.log.commit(batch, deadline).then(lambda answer: self.answered(answer, records, line))

    def record(self, mark: bytes) -> NewRecord:
        self.serial += 1
        body = b"%b %d %d " % (mark, os.getpid(), self.serial) + b"x" * self.random.choice(
            [0, 10, 500, 30_000]
        )
        message_id = self.random.randbytes(16)
        return NewRecord("orders", self.random.randrange(3), message_id, 1, encode(b"", body, b"", None))

    def answered(self, answer: Completion[list[AppendResult]], records: list[NewRecord], more: str) -> None:
        lines = []
        for record, result in zip(records, answer.result(), strict=True):
            assert result.status is AppendStatus.STORED, result
            lines.append(f"r {record.queue_id} {result.offset} {record.delivery.hex()}\n")
        os.write(1, "".join([*lines, more]).encode())
        self.start()


def main() -> None:
    log = open_log(Path(sys.argv[1]), LOG_OPTIONS, clock=SystemClock(), metrics=Registry())
    writer = Writer(log, int(sys.argv[2]))
    for _ in range(UNDER_WAY):
        writer.start()
    while True:
        gevent.sleep(0.5)


if __name__ == "__main__":
    main()
