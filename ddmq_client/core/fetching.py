"""The assignments of a low-level fetching client: the queues from each proxy, and its offset in each. Pure.

A queue belongs to the proxy that answered for it last. When a proxy no longer lists a queue, or is removed,
another consumer owns the queue, and this client forgets its offset. The new owner continues at the group's
stored offset.

All proxies are called at the same time, and a call may last longer than the fetch that started it. Messages
of one proxy do not wait until the other proxies have answered; a late answer belongs to the next fetch. An
offset advances when messages are returned to the application, not when they arrive. An answer that was never
returned, because the fetch was interrupted, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ddmq_client.core.instance_offsets import Offsets
from ddmq_client.errors import LoginError, OptionError, PullError
from ddmq_client.received import FetchedQueue, fetched_here, queue_number

_OFFSETS_ALLOWED = "allowed: {'TOPIC': {QUEUE_ID: OFFSET}}, the next offset of each queue"
Queue = tuple[str, str]  # topic, queue
SETTLE_S = 0.02  # a proxy that has messages answers within this time
GRACE_S = 0.25  # after the linger time, for proxies that answer later than requested
KEEP_S = 5.0  # an older answer that was not returned is dropped, and its messages are fetched again


class FetchAnswer(NamedTuple):
    """The outcome of one fetch call to one proxy."""

    proxy: str
    requested: Offsets
    max_messages: int
    started: float  # monotonic seconds, as `completed`
    completed: float
    outcome: Sequence[FetchedQueue] | Exception


class Round:
    """One fetch of the application over all proxies: decides which proxies to call, and how long to wait."""

    def __init__(
        self, assignments: Assignments, proxies: Iterable[str], max_messages: int, now: float, linger_s: float
    ) -> None:
        self._assignments = assignments
        self._open = set(proxies)
        self._unanswered = set(self._open)  # no answer in this round yet: their queues may have messages
        self._max_messages = max_messages
        self._started = now
        self._until = now + linger_s
        self._silent = True  # no proxy has answered
        self._rejection: PullError | None = None
        self._failure: Exception | None = None
        self._nonempty_answers: list[FetchAnswer] = []

    def select_proxies(self, under_way: Iterable[str]) -> set[str]:
        """Return the proxies to call now; those in `under_way` are being called."""
        return self._open - set(under_way)

    def linger_ms(self, now: float) -> int:
        """Return the linger time, in milliseconds, for a call that starts now."""
        return max(1, int((self._until - now) * 1000))

    def take_answer(self, answer: FetchAnswer, now: float) -> None:
        """Record the outcome of a call.

        After an empty answer to a call of an earlier round, that proxy is called again.
        """
        proxy, outcome = answer.proxy, answer.outcome
        self._unanswered.discard(proxy)
        if isinstance(outcome, PullError):
            outcome.proxy = proxy
            if isinstance(outcome, LoginError):
                self._assignments.drop_proxy(proxy)
            if answer.started >= self._started:
                self._rejection, self._silent = outcome, False
        elif isinstance(outcome, Exception):
            self._assignments.drop_proxy(proxy)
            self._failure = outcome
        elif answer.max_messages <= self._max_messages and now - answer.completed <= KEEP_S:
            self._silent = False
            if self._assignments.has_messages(outcome, answer.requested):
                self._nonempty_answers.append(answer)
                self._open.discard(proxy)
            else:
                self._assignments.apply_answer(answer, now)
        if answer.started >= self._started:
            self._open.discard(proxy)

    def wait_until(self, now: float, under_way: Mapping[str, float]) -> float | None:
        """Return the time (monotonic seconds) until which to wait for answers; None if all have come.

        `under_way`: when the call to each proxy began.
        """
        waited_for = self._unanswered if self._nonempty_answers else self._open
        since = [under_way[proxy] for proxy in waited_for]
        if not since:
            return None
        if self._nonempty_answers:
            until = max(since) + SETTLE_S
        elif self._silent and min(since) >= self._started:
            until = float("inf")  # their own time-outs end them
        else:
            until = self._until + (GRACE_S if max(since) >= self._started else 0.0)
        return until if now < until else None

    def collect_result(self, now: float) -> list[FetchedQueue]:
        """Return the messages of this round.

        Raises PullError if a proxy rejected the call, or the last error if none answered.
        """
        if self._nonempty_answers:
            return [
                queue
                for answer in self._nonempty_answers
                for queue in self._assignments.apply_answer(answer, now)
            ]
        if self._rejection is not None:
            raise self._rejection
        if self._silent and self._failure is not None and not self._open:
            raise PullError(f"no proxy answers: {self._failure}")
        return []


class Assignments:
    """The queues assigned to one client, by proxy. Callers hold a lock."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._owned: dict[str, dict[Queue, int]] = {}  # proxy → queue → next offset to fetch
        self._delivered: dict[Queue, int] = {}  # next offset after the messages returned to the application
        self._seeks: dict[Queue, int] = {}  # set by `seek`, not yet fetched

    def list_queues(self) -> list[Queue]:
        """Return all owned queues, sorted."""
        return sorted({queue for owned in self._owned.values() for queue in owned})

    def next_offsets(self, proxy: str) -> Offsets:
        """Return the offsets from which the next fetch from this proxy begins."""
        offsets = self._seeks | {
            queue: self._seeks.get(queue, offset) for queue, offset in self._owned.get(proxy, {}).items()
        }
        return by_topic(offsets)

    def has_messages(self, queues: Sequence[FetchedQueue], requested: Offsets) -> bool:
        """Return whether this answer has messages to return to the application."""
        return any(each.messages and not self._has_newer_seek(each, requested) for each in queues)

    def apply_answer(self, answer: FetchAnswer, now: float) -> list[FetchedQueue]:
        """Record the queues of an answer as owned, and their messages as returned.

        Return the queues with messages.
        """
        proxy, queues = answer.proxy, answer.outcome
        assert not isinstance(queues, Exception)
        owned: dict[Queue, int] = {}
        delivered: list[FetchedQueue] = []
        for each in queues:
            queue = (each.topic, each.queue)
            for other, theirs in self._owned.items():
                if other != proxy:
                    theirs.pop(queue, None)
            if self._has_newer_seek(each, answer.requested):
                owned[queue] = self._seeks[queue]
                continue
            owned[queue] = each.next_offset
            self._seeks.pop(queue, None)
            if each.messages:
                self._delivered[queue] = each.next_offset
                fetched_here(each, self._group, now)
                delivered.append(each)
        lost = self._owned.get(proxy, {}).keys() - owned.keys()
        self._owned[proxy] = owned
        self._forget_queues(lost)
        return delivered

    def drop_proxy(self, proxy: str) -> None:
        """Forget the queues of a proxy that does not answer, because other proxies take them over."""
        self._forget_queues(self._owned.pop(proxy, {}).keys())

    def seek(self, topic: str, queue: int | str, offset: int) -> None:
        """Let the next fetch of a queue begin at `offset`."""
        self._seeks[topic, self._name_of(topic, queue)] = offset

    def acks_by_proxy(
        self, offsets: Mapping[str, Mapping[int, int] | Mapping[str, int]] | None
    ) -> dict[str, Offsets]:
        """Return the offsets to acknowledge, by proxy.

        Without `offsets`, those after all returned messages. Raises OptionError for offsets of another form.
        """
        if offsets is None:
            next_offsets = dict(self._delivered)
        else:
            next_offsets = {
                (topic, self._name_of(topic, queue)): offset
                for topic, queue, offset in _list_offsets(offsets)
            }
        acks: dict[str, Offsets] = {}
        for proxy, owned in self._owned.items():
            mine = by_topic({queue: offset for queue, offset in next_offsets.items() if queue in owned})
            if mine:
                acks[proxy] = mine
        return acks

    def confirm_acks(self, offsets: Offsets) -> None:
        """Forget offsets that were to be acknowledged, because the proxy has stored them."""
        for topic, queues in offsets.items():
            for queue, offset in queues.items():
                if self._delivered.get((topic, queue)) == offset:
                    del self._delivered[topic, queue]

    def _name_of(self, topic: str, queue: int | str) -> str:
        """Return the name of a queue on the wire.

        Raises OptionError for the number of a queue that is not assigned to this client.
        """
        if isinstance(queue, str):
            return queue
        names = (name for of_topic, name in self.list_queues() if of_topic == topic)
        for name in names:
            if queue_number(name) == queue:
                return name
        raise OptionError(
            f"queue {queue!r} of topic {topic!r} is not assigned to this consumer; allowed: the queues of"
            " `assignments`, as of the last fetch"
        )

    def _has_newer_seek(self, each: FetchedQueue, requested: Offsets) -> bool:
        """Return whether `seek` was called after that fetch had started."""
        sought = self._seeks.get((each.topic, each.queue))
        return sought is not None and sought != requested.get(each.topic, {}).get(each.queue)

    def _forget_queues(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            self._delivered.pop(queue, None)
            self._seeks.pop(queue, None)


def _list_offsets(
    offsets: Mapping[str, Mapping[int, int] | Mapping[str, int]],
) -> Iterator[tuple[str, int | str, int]]:
    """Yield the topic, queue and offset of each offset. Raises OptionError for another form."""
    if not isinstance(offsets, Mapping):
        raise OptionError(f"offsets={offsets!r:.100}; {_OFFSETS_ALLOWED}")
    for topic, by_queue in offsets.items():
        if not isinstance(by_queue, Mapping):
            raise OptionError(f"offsets of topic {topic!r}: {by_queue!r:.100}; {_OFFSETS_ALLOWED}")
        for queue, offset in by_queue.items():
            if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
                raise OptionError(
                    f"offset of topic {topic!r}, queue {queue!r}: {offset!r}; {_OFFSETS_ALLOWED}"
                )
            yield topic, queue, offset


def by_topic(offsets: Mapping[Queue, int]) -> Offsets:
    """Convert offsets by queue into topic → queue → offset."""
    topics: Offsets = {}
    for (topic, queue), offset in offsets.items():
        topics.setdefault(topic, {})[queue] = offset
    return topics
