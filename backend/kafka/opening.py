"""How the Kafka engine is opened: connect, and wait until its state is known."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import gevent

from backend.kafka.backend import KafkaBackend
from backend.kafka.checks.look import tell_findings
from backend.kafka.faults import client_settings
from backend.kafka.options import KafkaOptions
from ddmq_common.clock import Clock

log = logging.getLogger(__name__)
LOOK_S, SAY_S = 0.01, 10.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(
    options: KafkaOptions, *, clock: Clock, told: Callable[[str], object] = lambda reason: None
) -> KafkaBackend:
    """Return once the cluster answers and its state is known here; blocks the calling greenlet until then.

    A cluster that does not answer is waited for, and said every SAY_S; `told` hears the reason each time that
    it is looked at. What of the cluster's settings breaks a promise is told in the log, a moment later.
    Raises ConfigError for settings that librdkafka does not take.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    with client_settings(options):
        backend = KafkaBackend(options, clock)
    say_at = clock.monotonic() + SAY_S
    while not (health := backend.health()).ready:
        told(health.reason)
        if clock.monotonic() >= say_at:
            say_at += SAY_S
            log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": health.reason})
        gevent.sleep(LOOK_S)
    tell_findings(options, backend.parts.state.topic_infos)
    return backend
