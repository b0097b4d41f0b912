"""A process that fails every message it gets, whose keys park themselves: for test_parking_killed.

`python -m tests.crash.parking_process DIRECTORY` opens the log there with a consumer proxy, sends MESSAGES of
KEYS keys once, and then pulls a batch and fails it for each line it reads, or without waiting once its input
has ended. It says `next` before it reads a line, one line for each delivery (`N ATTEMPT`), and `parked` when
nothing comes any more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from backend.file_log import FileLog
from backend.records import NewRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delivery import encode
from ddmq_common.metrics.registry import Registry
from proxy_consumer.config import ConsumerConfig, SubscriptionDefaults
from proxy_consumer.service import ConsumerService
from tests.crash.failing_process import GROUP, PATIENCE_S, TOPIC, opened
from tests.service.consumer.consumer_rig import IDL, METHODS, FakeCall
from tests.support.waits import until

KEYS = 20
MESSAGES = 3 * KEYS
DELIVERIES_MAX = 3
BATCH_MAX = 5
CONFIG = SubscriptionDefaults(
    start="first", order_key="KEY", retry_intervals_ms=(1,), ordered_interval_ms=1, batch_max=BATCH_MAX,
    ordered_deliveries_max=DELIVERIES_MAX, on_dead_letter="park",
)  # fmt: skip
QUIET = 5  # pulls that bring nothing, one after the other


def send_once(log: FileLog) -> None:
    """Topic and messages, unless they are there: the first KEYS are the heads of their keys."""
    clock = SystemClock()
    info = log.put_topic(TopicInfo(TOPIC, 0, 2), clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)
    if any(bounds is None or bounds.next for bounds in log.bounds(info.refs()).wait(PATIENCE_S)):
        return
    records = []
    for number in range(MESSAGES):
        key = b"k%d" % (number % KEYS)
        delivery = encode(key, b"%d" % number, b"", None)
        records.append(NewRecord(TOPIC, number % 2, number.to_bytes(16, "big"), 1, delivery, key))
    log.append(records, clock.monotonic() + PATIENCE_S).wait(PATIENCE_S)


def fail_everything(service: ConsumerService) -> None:
    """Until nothing comes."""
    handlers = service.service().handlers
    quiet = 0
    while quiet < QUIET:
        print("next", flush=True)
        sys.stdin.readline()
        request = IDL.PullRequest(
            groupId=GROUP.encode(), topic=TOPIC.encode(), maxLingerTime=100, clientId=b"me"
        )
        pull = FakeCall("pull", METHODS["pull"].args[0](request=request))
        handlers["pull"](pull)
        until(lambda: pull.answered)  # noqa: B023
        quiet = 0 if pull.result.messages else quiet + 1
        for message in pull.result.messages:
            print(message.value.decode(), message.attempt, flush=True)
        if pull.result.messages:
            failed = IDL.ConsumeResult(context=pull.result.context, failOffsets=pull.offsets)
            submit = FakeCall("submit", METHODS["submit"].args[0](result=failed))
            handlers["submit"](submit)
            until(lambda: submit.answered)  # noqa: B023
    print("parked", flush=True)


def main(directory: Path) -> None:
    log = opened(directory)
    send_once(log)
    service = ConsumerService(log, ConsumerConfig(), Registry(), SystemClock(), Random())
    service.start()
    service.subscribe(GROUP, TOPIC, CONFIG).wait(PATIENCE_S)
    fail_everything(service)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
