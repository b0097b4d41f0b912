"""KafkaState: settings, progress and assignments as followed, on the hub, and the barrier `caught_up`.

It is what FollowerThread brings, applied.

Barriers: asked now, settled once everything was followed that is answered by now. Belongs to the hub.

A mark is written to each partition, acknowledged by all that have a copy in sync; a barrier waits until it is
followed up to its marks. A broker that was deposed and has not heard of it answers as before when it is asked
where a partition ends, and lets who asks it read up to there; it cannot take a mark. Behind a transaction
that is still open, answered records may stand already, and these are what a barrier is for: it then waits
until the transaction has ended, or its owner was fenced. Calls that come while marks are being written wait
for the next ones.
"""

from __future__ import annotations

import _thread
import logging
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from backend.completion import Completion
from backend.kafka.clients.admin import SystemTopics
from backend.kafka.clients.follower import FollowedRow, FollowerThread, Place
from backend.kafka.coordination.events import decode_event
from backend.kafka.coordination.table import CoordinationLog, PlacedEvent
from backend.kafka.options import KafkaOptions
from backend.kafka.state.tables import ProgressState, SettingsState
from ddmq_common.errors import DamagedError, DrainingError, RemoteError, StorageError
from ddmq_common.hub_timer import HubTimer

log = logging.getLogger(__name__)
Call = Callable[..., None]  # from any thread: run this on the hub, in order
RETRY_S = 0.3
TOLD_EVERY = 100_000  # records between two lines about the progress of the start


class KafkaState:
    """The state that was followed. `ready`: its first end was reached. `reason`: what is not right now."""

    def __init__(
        self,
        options: KafkaOptions,
        call: Call,
        *,
        on_setting_changed: Callable[[str], object],
        on_info_changed: Callable[[str], object],
        on_event: Callable[[PlacedEvent], object],
        on_log_truncated: Callable[[], object],
        on_ready: Callable[[], object],
    ) -> None:
        self.topics = SystemTopics.of(options)
        self._settings, self.progress = SettingsState(), ProgressState()
        self.coordination = CoordinationLog(0)
        self.ready = False
        self.reason = f"Kafka at {options.bootstrap} is being asked for the system topics"
        self.partitions = 0  # of the progress topic
        self.records = 0
        self._call = call
        self._on_setting_changed = on_setting_changed
        self._on_info_changed = on_info_changed
        self._on_event = on_event
        self._on_log_truncated = on_log_truncated
        self._on_ready = on_ready
        self._next: dict[Place, int] = {}
        self._closed = False
        client = options.client()
        self._barriers = Barriers(client, call, self._next)
        self._thread = FollowerThread(
            options,
            on_begun=lambda first: call(self._begun, first),
            on_rows=lambda rows: call(self._take, rows),
            on_truncated=lambda first: call(self._cut, first),
            on_trouble=lambda reason: call(self._trouble, reason),
        )

    @property
    def settings(self) -> Mapping[str, bytes]:
        """Key → value."""
        return self._settings.settings

    @property
    def topic_infos(self) -> Mapping[str, bytes]:
        """What was put under a topic's name."""
        return self._settings.topic_infos

    def stop(self, wait_s: float) -> None:
        """Follow no more; who waits is refused."""
        self._closed = True
        self._barriers.close()
        if not self._thread.stop(wait_s):
            log.warning("the thread that follows the system topics did not end in %g s", wait_s)

    # --- what this process wrote itself

    def wrote(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
        """A setting that was written and answered counts from now on."""
        if self._settings.followed.wrote(partition, offset, key):
            self._apply_setting(key, value)

    def holds_setting(self, key: bytes, value: bytes) -> bool:
        """Whether this is what the settings topic says under `key`."""
        return self._settings.holds(key, value)

    def caught_up(self) -> Completion[None]:
        """Settled once everything was followed that is answered by now."""
        return self._barriers.ask()

    # --- what the thread brings, on the hub

    def _begun(self, first: dict[Place, int]) -> None:
        self._next.update(first)
        self.partitions = sum(topic == self.topics.progress for topic, _ in first)
        self.coordination = CoordinationLog(first[self.topics.coordination, 0])
        self.caught_up().then(self._started)

    def _started(self, barrier: Completion[None]) -> None:
        if self._closed:
            return
        if barrier.error is not None:
            self._trouble(str(barrier.error))
            HubTimer(ref=False).once(RETRY_S, lambda: self.caught_up().then(self._started))
            return
        self.ready, self.reason = True, ""
        log.info("the system topics were followed to their end: %d records", self.records)
        self._on_ready()

    def _take(self, rows: list[FollowedRow]) -> None:
        self._thread.room.release()
        if self._closed:
            return
        for row in rows:
            if row.record:
                self._apply(row)
                self._next[row.topic, row.partition] = row.offset + 1
            else:
                self._next[row.topic, row.partition] = row.offset
        before, self.records = self.records, self.records + len(rows)
        if not self.ready and before // TOLD_EVERY != self.records // TOLD_EVERY:
            log.info("following the system topics: %d records so far", self.records)
        if self.ready:
            self.reason = ""
        self._barriers.go_on()

    def _apply(self, row: FollowedRow) -> None:
        if row.key == MARK_KEY:
            return
        if row.topic == self.topics.coordination:
            event = None if row.value is None else decode_event(row.value)
            if event is not None:
                self._on_event(PlacedEvent(row.offset, row.stamp_ms, event))
            return
        key = row.key or b""
        try:
            if row.topic == self.topics.progress:
                if self.progress.followed.passes(row.partition, row.offset, key):
                    self.progress.apply(key, row.value)
            elif self._settings.followed.passes(row.partition, row.offset, key):
                self._apply_setting(key, row.value)
        except (DamagedError, StorageError) as error:
            log.error("%s of %s, offset %d, is passed over: %s", row.topic, row.partition, row.offset, error)

    def _apply_setting(self, key: bytes, value: bytes | None) -> None:
        setting, topic = self._settings.apply(key, value)
        if setting is not None:
            self._on_setting_changed(setting)
        if topic is not None:
            self._on_info_changed(topic)

    def _cut(self, first: int) -> None:
        log.warning("the coordination topic begins at %d now: what was held is lost", first)
        self.coordination = CoordinationLog(first)
        self._next[self.topics.coordination, 0] = first
        self._on_log_truncated()

    def _trouble(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s", reason)
        self.reason = reason


WRITE_MS = 5_000
MARK_KEY = b"barrier"  # of a record without a value, which whoever follows passes over
Ends = dict[Place, int]  # the offset behind a mark


class _Marks:
    """The thread that writes them. `call`: from any thread, to the hub."""

    def __init__(self, client: Mapping[str, object], call: Call) -> None:
        self._config = {
            **client, "acks": "all", "enable.idempotence": False, "linger.ms": 0,
            "message.timeout.ms": WRITE_MS,
        }  # fmt: skip
        self._call = call
        self._jobs: queue.SimpleQueue[tuple[Sequence[Place], Call] | None] = queue.SimpleQueue()
        self._producer: Producer | None = None
        _thread.start_new_thread(self._run, ())

    def write(self, places: Sequence[Place], then: Call) -> None:
        """`then(ends, error)` follows on the hub; `error`: None, or why they are not all written."""
        self._jobs.put((places, then))

    def close(self) -> None:
        """What is under way ends by itself."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            places, then = job
            try:
                ends, error = self._written(places)
            except Exception as failed:  # whatever it was: who waits asks again
                ends, error = {}, str(failed)
            if error is not None:
                self._producer = None  # the next one asks anew who leads
            self._call(then, ends, error)

    def _written(self, places: Sequence[Place]) -> tuple[Ends, str | None]:
        if self._producer is None:
            self._producer = Producer(self._config)
        ends: Ends = {}
        errors: list[str] = []

        def reported(place: Place, error: KafkaError | None, message: Any) -> None:
            if error is None:
                ends[place] = message.offset() + 1
            else:
                errors.append(error.str())

        for place in places:
            topic, partition = place
            self._producer.produce(topic, None, MARK_KEY, partition, on_delivery=partial(reported, place))
        self._producer.flush(WRITE_MS / 1000 + 1)
        missing = [f"{topic} [{number}]" for topic, number in places if (topic, number) not in ends]
        return ends, None if not missing else f"{', '.join(errors) or 'no answer'} ({', '.join(missing)})"


class _Asked:
    """Calls that are settled together, once `left` is empty."""

    def __init__(self, waiting: list[Completion[None]]) -> None:
        self.waiting = waiting
        self.left: Ends = {}


class Barriers:
    """Over the partitions of `followed`. `call`: from any thread, to the hub.

    `client`: how librdkafka's clients are configured.
    """

    def __init__(self, client: Mapping[str, object], call: Call, followed: Mapping[Place, int]) -> None:
        self._marks = _Marks(client, call)
        self._followed = followed
        self._coming: list[Completion[None]] = []
        self._asking: _Asked | None = None
        self._asked: list[_Asked] = []
        self._closed = False

    def ask(self) -> Completion[None]:
        """Settled once everything was followed that is answered by now."""
        done: Completion[None] = Completion()
        if self._closed:
            done.fail(DrainingError("the Kafka engine was closed"))
        else:
            self._coming.append(done)
            self.go_on()
        return done

    def go_on(self) -> None:
        """Ask, when that is possible, and settle what was followed."""
        self._settle()
        if self._asking is not None or not self._coming or self._closed:
            return
        places = list(self._followed)
        if not places:
            return
        asked = self._asking = _Asked(self._coming)
        self._coming = []
        self._marks.write(places, partial(self._ends, asked))

    def close(self) -> None:
        """Who waits is refused."""
        self._closed = True
        self._marks.close()
        waiting = [*self._coming, *(self._asking.waiting if self._asking else [])]
        waiting += [each for asked in self._asked for each in asked.waiting]
        self._coming, self._asked, self._asking = [], [], None
        for completion in waiting:
            completion.fail(DrainingError("the Kafka engine was closed"))

    def _ends(self, asked: _Asked, ends: Ends, error: str | None) -> None:
        if self._asking is not asked:
            return
        self._asking = None
        if error is None:
            asked.left = ends
            self._asked.append(asked)
        else:
            for completion in asked.waiting:
                completion.fail(RemoteError(f"where the system topics end is not known: {error}"))
        self.go_on()

    def _settle(self) -> None:
        if not self._asked:
            return
        over = []
        for asked in self._asked:
            asked.left = {
                place: end for place, end in asked.left.items() if self._followed.get(place, 0) < end
            }
            if not asked.left:
                over.append(asked)
        self._asked = [asked for asked in self._asked if asked not in over]
        for asked in over:
            for completion in asked.waiting:
                completion.succeed(None)
