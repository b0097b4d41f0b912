"""How the Kafka engine is opened: connect, and wait until its state is known."""

from __future__ import annotations

import logging
import sys

import gevent

from backend.kafka.backend import KafkaBackend
from backend.kafka.options import KafkaOptions
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
LOOK_S, SAY_S = 0.01, 5.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(options: KafkaOptions, *, clock: Clock) -> KafkaBackend:
    """Return once the cluster answers and its state is known here; blocks the calling greenlet until then.

    A cluster that does not answer is waited for, and said every SAY_S.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    backend = KafkaBackend(options, clock)
    say_at = clock.monotonic() + SAY_S
    while not (health := backend.health()).ready:
        if clock.monotonic() >= say_at:
            say_at += SAY_S
            log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": health.reason})
        gevent.sleep(LOOK_S)
    return backend
