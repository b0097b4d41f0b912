"""How the Kafka engine is opened: connect, and wait until its state is known."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import gevent

from backend.kafka.backend import KafkaBackend
from backend.kafka.checks.identity import SETTING, check_directory, check_settings, keep
from backend.kafka.checks.look import Look, tell_findings
from backend.kafka.following.system_topics import SystemTopics
from backend.kafka.options import KafkaOptions
from ddmq_common.clock import Clock
from ddmq_common.errors import RemoteError
from ddmq_common.native_threads import in_thread

log = logging.getLogger(__name__)
LOOK_S, PAUSE_S, SAY_S = 0.01, 0.5, 10.0
# A native thread with a report waits so long for a busy hub; Python's own is ten times that.
SWITCH_S = 0.0005


def open_kafka(
    options: KafkaOptions,
    *,
    clock: Clock,
    data_dir: Path | None = None,
    told: Callable[[str], object] = lambda reason: None,
) -> KafkaBackend:
    """Return once the cluster answers and its state is known here; blocks the calling greenlet until then.

    A cluster that does not answer is waited for, and said at once and then every SAY_S; `told` hears the
    reason each time that it is looked at. What of the cluster's settings breaks a promise is told in the log,
    a moment later. `data_dir`: what is kept on this machine belongs to one cluster. Raises ConfigError when
    that is another one, and for settings that librdkafka does not take.
    """
    sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
    cluster_id = _found(options, clock, told)
    if data_dir is not None:
        check_directory(data_dir, cluster_id, options.bootstrap)
    backend = KafkaBackend(options, clock)
    try:
        say_at = clock.monotonic() + SAY_S
        while not (health := backend.health()).ready:
            told(health.reason)
            if clock.monotonic() >= say_at:
                say_at += SAY_S
                _say(options, health.reason)
            gevent.sleep(LOOK_S)
        topic = SystemTopics.of(options).settings
        check_settings(backend.setting(SETTING), topic, cluster_id, options.bootstrap)
        keep(backend, clock, data_dir, cluster_id)
    except BaseException:
        backend.close()
        raise
    tell_findings(options, backend.parts.state.topic_infos)
    return backend


def _found(options: KafkaOptions, clock: Clock, told: Callable[[str], object]) -> str:
    """The id of the cluster, once it answers."""
    say_at = clock.monotonic()
    look = Look(options)
    while True:
        try:
            return in_thread(look.cluster_id)
        except RemoteError as error:
            reason = str(error)
        told(reason)
        if clock.monotonic() >= say_at:
            say_at = clock.monotonic() + SAY_S
            _say(options, reason)
        gevent.sleep(PAUSE_S)


def _say(options: KafkaOptions, reason: str) -> None:
    log.warning("waiting for Kafka", extra={"bootstrap": options.bootstrap, "reason": reason})
