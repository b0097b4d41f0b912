"""How the Kafka engine is opened: connect, and wait until its state is known."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import gevent
from confluent_kafka import KafkaException

from backend.kafka.backend import KafkaBackend
from backend.kafka.options import KafkaOptions
from ddmq_common.clock import Clock
from ddmq_common.errors import ConfigError

log = logging.getLogger(__name__)
LOOK_S, SAY_S = 0.01, 10.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(
    options: KafkaOptions, *, clock: Clock, told: Callable[[str], object] = lambda reason: None
) -> KafkaBackend:
    """Return once the cluster answers and its state is known here; blocks the calling greenlet until then.

    A cluster that does not answer is waited for, and said every SAY_S; `told` hears the reason each time that
    it is looked at. Raises ConfigError for settings that librdkafka does not take.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    try:
        backend = KafkaBackend(options, clock)
    except KafkaException as error:
        said = options.masked(error.args[0].str())
        raise ConfigError(f"kafka: librdkafka does not take its settings: {said}") from error
    say_at = clock.monotonic() + SAY_S
    while not (health := backend.health()).ready:
        told(health.reason)
        if clock.monotonic() >= say_at:
            say_at += SAY_S
            log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": health.reason})
        gevent.sleep(LOOK_S)
    return backend
