"""OffsetMirror: the committed offset of each group, written as Kafka's own, for other tools.

It follows the commits, once a second and at the end, for the queues that this process holds. Nothing reads
the mirrored offsets back. Kafka rejects them for a group that has consumers of its own. Offsets that no
broker took at that moment are written again, later each time and one such group at a time, so that they delay
no other group. If an offset that is not marked as ours exists on any partition of a topic, the group belongs
to another program there, even while that program is stopped: nothing is written for it. The reason is logged
once.

One native thread commits the offsets, with a consumer for each group that never joins it. The admin client's
own call is not used: librdkafka 2.16 ends the process by an assertion when the group's coordinator goes away
during the call (its issue 3663).
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from backend.kafka.errors import is_temporary
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.progress.group_progress import Key
from ddmq_common.errors import StorageError
from ddmq_common.hub_timer import HubTimer
from ddmq_common.names import SENDS_GROUP

log = logging.getLogger(__name__)
EVERY_S = 1.0
RETRY_S_MAX = 60.0  # a group that failed is left alone for a second, twice as long each time, up to this
GROUPS_AT_ONCE = 64
CONSUMERS_MAX = 16  # that stay open, each with its threads and connections,
UNUSED_S = 10.0  # so long after they were used at most
CLOSE_S = 2.0
REQUEST_S = 10.0
MARK = "ddmq"  # the metadata of each offset that ddmq commits
Offsets = list[TopicPartition]


class _MirrorFailure(NamedTuple):
    """The last failure to commit the offsets of one group.

    `is_temporary`: no coordinator could be reached; the next attempt is at `until` (monotonic seconds),
    `pause_s` after the failure. Otherwise Kafka rejected the offsets.
    """

    is_temporary: bool
    pause_s: float
    until: float


class _OffsetCommitter:
    """The native thread that commits offsets to Kafka.

    It calls `on_done(group, error)` after each commit; None is success.
    """

    def __init__(self, options: KafkaOptions, on_done: Callable[[str, Exception | None], object]) -> None:
        self._options = options
        self._on_done = on_done
        self._requests: queue.SimpleQueue[tuple[str, Offsets] | None] = queue.SimpleQueue()
        # With the time when each was used; the one used last is the last.
        self._consumers: OrderedDict[str, tuple[Consumer, float]] = OrderedDict()
        self._checked_topics: dict[
            str, set[str]
        ] = {}  # of those that are open: topics without an offset of others
        self._thread = threading.Thread(target=self._run, name="kafka-mirror", daemon=True)
        self._thread.start()

    def commit_later(self, group: str, offsets: Offsets) -> None:
        self._requests.put((group, offsets))

    def close(self) -> None:
        """Commit the requested offsets, for at most CLOSE_S."""
        self._requests.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=UNUSED_S if self._consumers else None)
                if request is None:
                    break
                self._commit(*request)
            except queue.Empty:
                pass
            self._close_unused(time.monotonic() - UNUSED_S)
        self._close_unused(math.inf)

    def _commit(self, group: str, offsets: Offsets) -> None:
        try:
            consumer = self._open_consumer(group)
            self._check_owner(consumer, self._checked_topics.setdefault(group, set()), offsets)
            consumer.commit(offsets=offsets, asynchronous=False)
        except Exception as error:  # whatever it was costs this one only
            self._on_done(group, error)
        else:
            self._on_done(group, None)

    def _check_owner(self, consumer: Consumer, checked: set[str], offsets: Offsets) -> None:
        """Raise StorageError if another program committed an offset on any partition of these topics."""
        for topic in sorted({at.topic for at in offsets} - checked):
            partitions = consumer.list_topics(topic, REQUEST_S).topics[topic].partitions
            for committed in consumer.committed(
                [TopicPartition(topic, each) for each in partitions], REQUEST_S
            ):
                if committed.offset >= 0 and committed.metadata != MARK:
                    position = f"offset {committed.offset} of {committed.topic} [{committed.partition}]"
                    raise StorageError(f"{position} was committed by another program")
            checked.add(topic)

    def _open_consumer(self, group: str) -> Consumer:
        consumer, _ = self._consumers.pop(group, (None, 0.0))
        if consumer is None:
            if len(self._consumers) >= CONSUMERS_MAX:
                oldest, (unused, _) = self._consumers.popitem(last=False)
                self._checked_topics.pop(oldest, None)
                unused.close()
            name = self._options.names.to_kafka_group(group)
            settings = self._options.client_settings(group_id=name, enable_auto_commit=False)
            consumer = Consumer(settings)  # nobody polls it; `commit` tells its errors
        self._consumers[group] = consumer, time.monotonic()
        return consumer

    def _close_unused(self, since: float) -> None:
        while self._consumers:
            group, (consumer, used) = next(iter(self._consumers.items()))
            if used > since:
                break
            del self._consumers[group]
            self._checked_topics.pop(group, None)
            try:
                consumer.close()
            except Exception as error:  # whatever it was, it is not used any more
                log.debug("the consumer for the offsets of group %s: %s", group, error)


class OffsetMirror:
    """Copies the committed offsets of this process's queues to Kafka's consumer groups.

    `holds`: whether this process holds a queue for a group. `call` runs a function on the hub, from any
    thread.
    """

    def __init__(
        self,
        options: KafkaOptions,
        state: KafkaState,
        holds: Callable[[Key], bool],
        kafka_name: Callable[[str], str],
        call: Callable[..., object],
    ) -> None:
        self._state = state
        self._holds = holds
        self._kafka_name = kafka_name
        self._call = call
        self._changed: dict[str, dict[Key, None]] = {}  # by group
        self._in_flight: dict[str, Iterable[Key]] = {}  # by group
        self._failures: dict[str, _MirrorFailure] = {}
        self._committer = _OffsetCommitter(options, self._on_done)
        self._timer = HubTimer(ref=False)

    @property
    def is_idle(self) -> bool:
        """Whether every committed offset was copied, or rejected by Kafka."""
        return not self._changed and not self._in_flight

    def on_progress(self, keys: Iterable[Key]) -> None:
        """Mark the progress of these groups and queues as changed."""
        for key in keys:
            if self._holds(key) and key[0] != SENDS_GROUP:  # whose progress is no offset
                self._changed.setdefault(key[0], {})[key] = None
        if self._changed and not self._timer.active:
            self._timer.once(EVERY_S, self._write)

    def close(self) -> None:
        """Commit the changed offsets and wait for them, at most CLOSE_S."""
        self._timer.stop()
        for group, keys in self._changed.items():
            self._commit_group(group, keys)
        self._changed = {}
        self._holds = lambda key: False
        self._committer.close()

    def _write(self) -> None:
        now = time.monotonic()
        has_failed = any(map(self._has_failed_temporarily, self._in_flight))
        for group in list(self._changed):
            if len(self._in_flight) >= GROUPS_AT_ONCE:
                break
            passing = self._has_failed_temporarily(group)
            if group in self._in_flight or (passing and (has_failed or self._failures[group].until > now)):
                continue
            has_failed = has_failed or passing
            self._commit_group(group, [key for key in self._changed.pop(group) if self._holds(key)])
        if self._changed:
            self._timer.once(EVERY_S, self._write)

    def _has_failed_temporarily(self, group: str) -> bool:
        """Return whether the group's coordinator could not be reached at the last attempt."""
        return group in self._failures and self._failures[group].is_temporary

    def _commit_group(self, group: str, keys: Iterable[Key]) -> None:
        offsets = []
        for key in keys:
            try:
                progress = self._state.progress.get(key)
            except StorageError:
                continue
            if progress is not None and progress.started:
                queue = key[1]
                name = self._kafka_name(queue.topic)
                offsets.append(TopicPartition(name, queue.queue_id, progress.acks.committed, MARK))
        if not offsets:
            return
        self._in_flight[group] = keys
        self._committer.commit_later(group, offsets)

    def _on_done(self, group: str, error: Exception | None) -> None:
        """Pass the result of a group's commit to the hub; runs in the committer's thread."""
        self._call(self._on_committed, group, error)

    def _on_committed(self, group: str, error: Exception | None) -> None:
        keys = self._in_flight.pop(group, ())  # () where `close` asked once more
        failed = self._failures.pop(group, None)
        if error is None:
            return
        passes = is_temporary(error)
        if passes:
            pause_s = min(2 * failed.pause_s, RETRY_S_MAX) if failed and failed.is_temporary else EVERY_S
            self._failures[group] = _MirrorFailure(True, pause_s, time.monotonic() + pause_s)
            self.on_progress(keys)
        else:
            self._failures[group] = _MirrorFailure(False, 0.0, 0.0)
        if failed is None or failed.is_temporary != passes:
            log.info("the committed offsets of group %s are not mirrored to Kafka: %s", group, error)
