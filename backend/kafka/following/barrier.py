"""Barriers: asked now, settled once everything was followed that is answered by now. Belongs to the hub.

A mark is written to each partition, acknowledged by all that have a copy in sync; a barrier waits until it is
followed up to its marks. A broker that was deposed and has not heard of it answers as before when it is asked
where a partition ends, and lets who asks it read up to there; it cannot take a mark. Behind a transaction
that is still open, answered records may stand already, and these are what a barrier is for: it then waits
until the transaction has ended, or its owner was fenced. Calls that come while marks are being written wait
for the next ones.
"""

from __future__ import annotations

import _thread
import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, Producer

from backend.completion import Completion
from backend.kafka.following.thread import Place
from ddmq_common.errors import DrainingError, RemoteError

WRITE_MS = 5_000
MARK_KEY = b"barrier"  # of a record without a value, which whoever follows passes over
Ends = dict[Place, int]  # the offset behind a mark
Call = Callable[..., None]


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
