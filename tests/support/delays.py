"""A delay service beside a producer proxy, which takes its time to come."""

from __future__ import annotations

from datetime import timedelta

from ddmq_client import Producer, SendError
from tests.support.waits import until


def wait_for_delays(address: str, topic: str) -> None:
    """Until a message with a delay is taken; its body is `first`, and it is due at once."""

    def is_accepted() -> bool:
        try:
            producer.send(topic, b"first", delay=timedelta(0))
        except SendError:
            return False
        return True

    with Producer(address, timeout_ms=60_000) as producer:
        until(is_accepted, "a delay service is there")
