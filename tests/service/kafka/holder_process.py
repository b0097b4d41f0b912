"""A process that holds queues and finishes their offsets one after the other, until it is ended.

`python -m tests.service.kafka.holder_process OPTIONS_JSON PLAIN`: each offset is finished by a commit of its
own; unless PLAIN is 1, every second one with a record in `moved` that names queue, offset and epoch, as a
retry has one. It tells, in lines: `h QUEUE EPOCH COMMITTED` when it is given a queue, `l QUEUES` when it has
lost some, `f QUEUE OFFSET` for each that was answered, `x QUEUE OFFSET ERROR` for each that was refused.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence

import gevent

from backend.kafka.options import KafkaOptions
from backend.port import Assignment, Join
from backend.records import CommitBatch, NewRecord, ProgressDelta, QueueRef
from tests.service.kafka.process_kit import TOPICS, ProcessKit
from tests.support.waits import soon


class Finisher:
    """Holds what it is given; one commit a queue under way."""

    def __init__(self, kit: ProcessKit, plain: bool) -> None:
        self.kit = kit
        self.plain = plain
        self.owned: dict[QueueRef, int] = {}
        self.membership = kit.members.join(Join("g", "orders", address="child"), self)

    def assigned(self, assignment: Assignment) -> None:
        for queue in assignment.queues:
            self.owned[queue] = assignment.epoch
            committed = self.kit.state.progress.view(("g", queue)).committed or 0
            write_line(f"h {queue.queue_id} {assignment.epoch} {committed}")
            self.finish(queue, assignment.epoch, committed)

    def revoked(self, queues: Sequence[QueueRef], deadline: float) -> None:
        self.drop(queues)
        self.membership.release(queues)

    def lost(self, queues: Sequence[QueueRef]) -> None:
        self.drop(queues)

    def drop(self, queues: Sequence[QueueRef]) -> None:
        for queue in queues:
            self.owned.pop(queue, None)
        write_line("l " + " ".join(str(queue.queue_id) for queue in queues))

    def finish(self, queue: QueueRef, epoch: int, offset: int) -> None:
        if self.owned.get(queue) != epoch:
            return
        records = []
        if offset % 2 and not self.plain:
            records.append(NewRecord("moved", 0, bytes(16), 1, b"%d %d %d" % (queue.queue_id, offset, epoch)))
        delta = ProgressDelta("g", queue, epoch, 0, ((offset, offset + 1),))
        call = self.kit.commits.commit(CommitBatch(records, [delta]), soon())

        def answered(_: object) -> None:
            if call.error is None:
                write_line(f"f {queue.queue_id} {offset}")
                self.finish(queue, epoch, offset + 1)
            else:
                write_line(f"x {queue.queue_id} {offset} {type(call.error).__name__}")

        call.then(answered)


def write_line(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    kit = ProcessKit(KafkaOptions(**json.loads(sys.argv[1])), TOPICS)
    Finisher(kit, sys.argv[2] == "1")
    while True:
        gevent.sleep(0.5)


if __name__ == "__main__":
    main()
