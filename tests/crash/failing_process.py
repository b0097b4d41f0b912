"""A process that fails every message it gets, until it is killed or all are dead: for test_retries_killed.

`python -m tests.crash.failing_process DIRECTORY` opens the log there with a consumer proxy and the delay
levels (whose waits are milliseconds here), sends MESSAGES once, and says `ready` when it begins to fail them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from backend.file_log import FileLog, FileLogOptions, open_log
from backend.records import NewRecord, QueueRef, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from delay_service.config import DelayConfig
from delay_service.levels.service import LevelService
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.service.consumer.consumer_rig import IDL, METHODS, FakeCall
from tests.support.constants import build_options
from tests.support.waits import until

MESSAGES = 200
STEPS = 3
GROUP, TOPIC = "G", "T"
WAITS = tuple(f"{5 * number}ms" for number in range(1, 19))
DELAY = build_options(DelayConfig, levels=WAITS, pause_ms_min=1)
CONFIG = SubscriptionDefaults(start="first", retry_intervals_ms=(1,), retry_steps=STEPS, batch_max=20)
PATIENCE_S = 60.0


def opened(directory: Path) -> FileLog:
    """The log, with segments so small that there are several."""
    options = FileLogOptions(segment_bytes=256 * 1024, allocate_bytes=64 * 1024, checkpoint_bytes=64 * 1024)
    return open_log(directory, options, clock=SystemClock(), metrics=Registry())


def send_once(log: FileLog) -> None:
    """Topic and messages, unless they are there."""
    clock = SystemClock()
    info = log.put_topic(TopicInfo(TOPIC, 0, 2), clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)
    queues = [QueueRef(info.name, info.incarnation, number) for number in range(2)]
    if any(bounds is None or bounds.next for bounds in log.bounds(queues).wait(PATIENCE_S)):
        return
    records = [
        NewRecord(
            TOPIC, number % 2, number.to_bytes(16, "big"), 1, encode(b"%d" % number, b"body", b"", None)
        )
        for number in range(MESSAGES)
    ]
    log.append(records, clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)


def dead_letters(log: FileLog) -> int:
    """How many there are."""
    info = log.topic(f"%DLQ%{GROUP}")
    if info is None:
        return 0
    (bounds,) = log.bounds([QueueRef(info.name, info.incarnation, 0)]).wait(PATIENCE_S)
    return 0 if bounds is None else bounds.next


def fail_everything(log: FileLog, service: ConsumerService) -> None:
    """Until all of them are dead letters."""
    handlers = service.service().handlers
    while True:
        request = IDL.PullRequest(groupId=GROUP.encode(), topic=TOPIC.encode(), maxLingerTime=100)
        pull = FakeCall("pull", METHODS["pull"].args[0](request=request))
        handlers["pull"](pull)
        until(lambda: pull.answered)  # noqa: B023
        if not pull.result.messages:
            if dead_letters(log) >= MESSAGES:
                print("all dead", flush=True)
                return
            continue
        failed = IDL.ConsumeResult(context=pull.result.context, successOffsets=[], failOffsets=pull.offsets)
        submit = FakeCall("submit", METHODS["submit"].args[0](result=failed))
        handlers["submit"](submit)
        until(lambda: submit.answered)  # noqa: B023


def main(directory: Path) -> None:
    log, clock, metrics = opened(directory), SystemClock(), Registry()
    send_once(log)
    levels = LevelService(log, DELAY, metrics, clock)
    levels.start()
    service = ConsumerService(log, ConsumerConfig(), metrics, clock, Random(), levels=DELAY.table)
    service.start()
    service.subscribe(GROUP, TOPIC, CONFIG).wait(PATIENCE_S)
    print("ready", flush=True)
    fail_everything(log, service)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
