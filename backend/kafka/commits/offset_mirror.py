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

from backend.kafka.errors import is_passing
from backend.kafka.options import KafkaOptions
from backend.kafka.state.followed import KafkaState
from backend.progress.group_progress import Key
from ddmq_common.errors import StorageError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
EVERY_S = 1.0
AGAIN_S_MAX = 60.0  # a group that failed is left alone for a second, twice as long each time, up to this
GROUPS_AT_ONCE = 64
CONSUMERS_MAX = 16  # that stay open, each with its threads and connections,
UNUSED_S = 10.0  # so long after they were used at most
CLOSE_S = 2.0
LOOK_S = 10.0
OURS = "ddmq"  # stands with each offset
Offsets = list[TopicPartition]


class _Failed(NamedTuple):
    """Of one group. `passes`: no coordinator could be asked, and it is not before `until` (monotonic),
    `pause_s` after that; else it was refused."""

    passes: bool
    pause_s: float
    until: float


class _Committer:
    """The thread. `told` is called there with the group and what went wrong, None for nothing."""

    def __init__(self, options: KafkaOptions, told: Callable[[str, Exception | None], object]) -> None:
        self._options = options
        self._told = told
        self._asked: queue.SimpleQueue[tuple[str, Offsets] | None] = queue.SimpleQueue()
        # With the time when each was used; the one used last is the last.
        self._open: OrderedDict[str, tuple[Consumer, float]] = OrderedDict()
        self._seen: dict[str, set[str]] = {}  # of those that are open: topics without an offset of others
        self._thread = threading.Thread(target=self._run, name="kafka-mirror", daemon=True)
        self._thread.start()

    def ask(self, group: str, offsets: Offsets) -> None:
        self._asked.put((group, offsets))

    def close(self) -> None:
        """What was asked is carried out, as far as that takes no longer than CLOSE_S."""
        self._asked.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while True:
            try:
                asked = self._asked.get(timeout=UNUSED_S if self._open else None)
                if asked is None:
                    break
                self._commit(*asked)
            except queue.Empty:
                pass
            self._close_unused(time.monotonic() - UNUSED_S)
        self._close_unused(math.inf)

    def _commit(self, group: str, offsets: Offsets) -> None:
        try:
            consumer = self._consumer(group)
            self._look(consumer, self._seen.setdefault(group, set()), offsets)
            consumer.commit(offsets=offsets, asynchronous=False)
        except Exception as error:  # whatever it was costs this one only
            self._told(group, error)
        else:
            self._told(group, None)

    def _look(self, consumer: Consumer, seen: set[str], offsets: Offsets) -> None:
        """Raises StorageError where another program's offset stands, on any partition of these topics."""
        for topic in sorted({at.topic for at in offsets} - seen):
            partitions = consumer.list_topics(topic, LOOK_S).topics[topic].partitions
            for found in consumer.committed([TopicPartition(topic, each) for each in partitions], LOOK_S):
                if found.offset >= 0 and found.metadata != OURS:
                    place = f"offset {found.offset} of {found.topic} [{found.partition}]"
                    raise StorageError(f"{place} was committed by another program")
            seen.add(topic)

    def _consumer(self, group: str) -> Consumer:
        consumer, _ = self._open.pop(group, (None, 0.0))
        if consumer is None:
            if len(self._open) >= CONSUMERS_MAX:
                oldest, (unused, _) = self._open.popitem(last=False)
                self._seen.pop(oldest, None)
                unused.close()
            settings = self._options.client(group_id=group, enable_auto_commit=False)
            consumer = Consumer(settings)  # nobody polls it; `commit` tells its errors
        self._open[group] = consumer, time.monotonic()
        return consumer

    def _close_unused(self, since: float) -> None:
        while self._open:
            group, (consumer, used) = next(iter(self._open.items()))
            if used > since:
                break
            del self._open[group]
            self._seen.pop(group, None)
            try:
                consumer.close()
            except Exception as error:  # whatever it was, it is not used any more
                log.debug("the consumer for the offsets of group %s: %s", group, error)


class OffsetMirror:
    """`holds`: whether this process holds a queue for a group. `call`: from any thread, to the hub."""

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
        self._under_way: dict[str, Iterable[Key]] = {}  # by group
        self._failed: dict[str, _Failed] = {}
        self._committer = _Committer(options, self._answered)
        self._timer = HubTimer(ref=False)

    @property
    def idle(self) -> bool:
        """Whether everything that was committed stands there, or was refused."""
        return not self._changed and not self._under_way

    def on_progress(self, keys: Iterable[Key]) -> None:
        """These groups have committed on these queues."""
        for key in keys:
            if self._holds(key):
                self._changed.setdefault(key[0], {})[key] = None
        if self._changed and not self._timer.active:
            self._timer.once(EVERY_S, self._write)

    def close(self) -> None:
        """Write what has changed since; it is waited for, CLOSE_S at most."""
        self._timer.stop()
        for group, keys in self._changed.items():
            self._ask(group, keys)
        self._changed = {}
        self._holds = lambda key: False
        self._committer.close()

    def _write(self) -> None:
        now = time.monotonic()
        again = any(map(self._passing, self._under_way))
        for group in list(self._changed):
            if len(self._under_way) >= GROUPS_AT_ONCE:
                break
            passing = self._passing(group)
            if group in self._under_way or (passing and (again or self._failed[group].until > now)):
                continue
            again = again or passing
            self._ask(group, [key for key in self._changed.pop(group) if self._holds(key)])
        if self._changed:
            self._timer.once(EVERY_S, self._write)

    def _passing(self, group: str) -> bool:
        """Whether its coordinator could not be asked the last time."""
        return group in self._failed and self._failed[group].passes

    def _ask(self, group: str, keys: Iterable[Key]) -> None:
        offsets = []
        for key in keys:
            try:
                progress = self._state.progress.get(key)
            except StorageError:
                continue
            if progress is not None and progress.started:
                queue = key[1]
                name = self._kafka_name(queue.topic)
                offsets.append(TopicPartition(name, queue.queue_id, progress.acks.committed, OURS))
        if not offsets:
            return
        self._under_way[group] = keys
        self._committer.ask(group, offsets)

    def _answered(self, group: str, error: Exception | None) -> None:
        """In the committer's thread."""
        self._call(self._over, group, error)

    def _over(self, group: str, error: Exception | None) -> None:
        keys = self._under_way.pop(group, ())  # () where `close` asked once more
        failed = self._failed.pop(group, None)
        if error is None:
            return
        passes = is_passing(error)
        if passes:
            pause_s = min(2 * failed.pause_s, AGAIN_S_MAX) if failed and failed.passes else EVERY_S
            self._failed[group] = _Failed(True, pause_s, time.monotonic() + pause_s)
            self.on_progress(keys)
        else:
            self._failed[group] = _Failed(False, 0.0, 0.0)
        if failed is None or failed.passes != passes:
            log.info("the committed offsets of group %s do not stand as Kafka's own: %s", group, error)
