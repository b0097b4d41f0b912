"""Barriers: asked now, settled once everything was followed up to where it ends now. Belongs to the hub.

The end that is asked for is that of everything written, not of what is committed: behind a transaction that
is still open, answered records may stand already, and these are what a barrier is for. It then waits until
the transaction has ended, or its owner was fenced. Calls that come while the ends are being asked for wait
for the next question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from backend.completion import Completion
from backend.kafka.following.thread import Place
from ddmq_common.errors import DrainingError, RemoteError

ASK_S = 5.0


class _Asked:
    """Calls that are settled together, once `left` is empty."""

    def __init__(self, waiting: list[Completion[None]]) -> None:
        self.waiting = waiting
        self.left: dict[Place, int] = {}


class Barriers:
    """Over the partitions of `followed`. `call`: from any thread, to the hub.

    `client`: how librdkafka's clients are configured.
    """

    def __init__(
        self,
        client: Mapping[str, object],
        call: Callable[..., None],
        followed: Mapping[Place, int],
    ) -> None:
        self._client = dict(client)
        self._admin = AdminClient(self._client)  # type: ignore[arg-type]
        self._call = call
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
        latest: Any = OffsetSpec
        wanted = {TopicPartition(*place): latest.latest() for place in places}
        answers = self._admin.list_offsets(wanted, request_timeout=ASK_S)
        ends: dict[Place, int] = {}
        errors: list[str] = []

        def answered(place: Place, answer: Future[Any]) -> None:
            """In the admin client's thread."""
            error = answer.exception()
            if error is None:
                ends[place] = answer.result().offset
            else:
                errors.append(str(error))
            if len(ends) + len(errors) == len(places):
                self._call(self._ends, asked, ends, errors[0] if errors else None)

        for partition, answer in answers.items():
            answer.add_done_callback(partial(answered, (partition.topic, partition.partition)))

    def close(self) -> None:
        """Who waits is refused."""
        self._closed = True
        waiting = [*self._coming, *(self._asking.waiting if self._asking else [])]
        waiting += [each for asked in self._asked for each in asked.waiting]
        self._coming, self._asked, self._asking = [], [], None
        for completion in waiting:
            completion.fail(DrainingError("the Kafka engine was closed"))

    def _ends(self, asked: _Asked, ends: dict[Place, int], error: str | None) -> None:
        if self._asking is not asked:
            return
        self._asking = None
        if error is None:
            asked.left = ends
            self._asked.append(asked)
        else:
            # One that asked with an old leader epoch does so again: it has not looked who leads since.
            self._admin = AdminClient(self._client)  # type: ignore[arg-type]
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
