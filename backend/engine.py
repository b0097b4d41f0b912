"""What every engine does in the same way: what it refuses, whom it tells of changes, what time it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence

from backend.completion import Completion
from backend.records import CLUSTER_SETTINGS, Capabilities, Durability, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import (
    BoundReachedError,
    CallerError,
    FencedError,
    UnknownTopicError,
    UnsupportedError,
)
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.names import topic_fault

TopicAnswer = Completion[TopicInfo]
QUEUES_MAX = 65_536  # of one topic


def local_capabilities(engine: str, body_bytes_max: int, properties_bytes_max: int) -> Capabilities:
    """What an engine can do that keeps everything itself, under these bounds."""
    return Capabilities(
        engine=engine,
        atomic=True,
        idempotent=True,
        find_by_key=True,
        topic_order=True,
        durability=frozenset((Durability.WRITTEN, Durability.DURABLE)),
        body_bytes_max=body_bytes_max,
        properties_bytes_max=properties_bytes_max,
        forbidden_bytes=b"",
        empty_body=True,
        queues_can_grow=True,
    )


def check_topic(info: TopicInfo, engine: Capabilities) -> None:
    """Raises CallerError or UnsupportedError when no topic of this engine can be like `info`."""
    fault = topic_fault(info.name)
    if fault is not None:
        raise CallerError(fault)
    if not 1 <= info.queues <= QUEUES_MAX:
        raise CallerError(f"topic {info.name} with {info.queues} queues; allowed: 1 to {QUEUES_MAX}")
    if info.durability not in engine.durability:
        word = info.durability.name.lower()
        raise UnsupportedError(f"topic {info.name}: {engine.engine} cannot store {word}")
    given = [name for name in CLUSTER_SETTINGS if getattr(info, name) is not None]
    if given and Durability.REPLICATED not in engine.durability:
        raise UnsupportedError(
            f"topic {info.name}: {given[0]} is {getattr(info, given[0])}; the engine {engine.engine} has no"
            " such setting of a topic, Kafka has: leave it out"
        )


def check_change(info: TopicInfo, found: TopicInfo | None) -> None:
    """Raises UnknownTopicError or CallerError when the topic `found` cannot become `info`."""
    if found is None or found.incarnation != info.incarnation:
        raise UnknownTopicError(f"topic {info.name} has no incarnation {info.incarnation} (any more)")
    if info.queues < found.queues:
        raise CallerError(
            f"topic {info.name} has {found.queues} queues; they only grow, {info.queues} is less"
        )


def check_settings(
    changes: Mapping[str, bytes | None], is_there: Callable[[str], bool], count: int, settings_max: int
) -> None:
    """Raises BoundReachedError for more than there may be; changing and deleting is always possible.

    `is_there` tells whether a setting is there, `count` is how many there are, both before `changes`.
    """
    fresh = sum(value is not None and not is_there(key) for key, value in changes.items())
    if fresh and count + fresh > settings_max:
        raise BoundReachedError(
            f"there are {count} settings, this makes {fresh} more; settings_max is {settings_max}"
        )


def check_topics_max(count: int, topics_max: int | None) -> None:
    """Raises BoundReachedError when `count` topics are there and one more is beyond `topics_max`."""
    if topics_max is not None and count >= topics_max:
        raise BoundReachedError(f"there are {count} topics; topics_max is {topics_max}")


def check_absent(there: Container[str], keys: Sequence[str], ahead: Container[str] = ()) -> None:
    """Raises FencedError for a setting that is there; `ahead`: keys of commits that are not applied yet."""
    for key in keys:
        if key in there or key in ahead:
            raise FencedError(f"setting {key!r} is there already")


def check_read(offset: int, count_max: int, bytes_max: int) -> None:
    """Raises ValueError for what nobody can read."""
    if offset < 0 or count_max < 1 or bytes_max < 0:
        raise ValueError(
            f"read of {count_max} records, {bytes_max} bytes from {offset}: allowed are 1, 0, 0 up"
        )


def check_find(key: bytes | None, message_id: bytes | None, count_max: int) -> None:
    """Raises ValueError unless one thing is looked for."""
    if (key is None) == (message_id is None) or count_max < 1:
        raise ValueError(
            f"find by key {key!r} and id {message_id!r}, {count_max} at most: one of them, 1 or more"
        )


Later = Callable[..., object]


def at_once(tell: Callable[[str], None], key: str) -> None:
    """A `later` for engines that hear of changes on the hub, in their order, when callers may be told."""
    tell(key)


class Watchers:
    """Who wants to hear of changed settings and topics of one engine, in the order of the changes.

    `later` runs a function with its arguments from the hub.
    """

    def __init__(self, later: Later) -> None:
        self._later = later
        self._tells: dict[Callable[[str], None], tuple[str, ...]] = {}  # with what their keys begin

    def watch(self, listener: Callable[[str], None], prefixes: tuple[str, ...] = ()) -> Callable[[], None]:
        """As Backend.watch_settings; the same listener may be there twice."""

        def tell(key: str) -> None:
            if tell in self._tells:
                listener(key)

        def stop() -> None:
            self._tells.pop(tell, None)

        self._tells[tell] = prefixes
        return stop

    def changed(self, key: str) -> None:
        """Tell all who want to hear of it, soon."""
        for tell, prefixes in list(self._tells.items()):
            if not prefixes or key.startswith(prefixes):
                self._later(tell, key)

    def clear(self) -> None:
        """Nobody hears anything any more."""
        self._tells.clear()


log = logging.getLogger(__name__)
AHEAD_WARN_MS = 1_000


class StoreClock:
    """Wall time that neither goes back nor stands still. `last_ms`: the newest store time there is.

    Where the wall clock has stepped back behind the newest store time, it goes on from that at the pace of
    the monotonic clock, until the wall has caught up: what is due after a wait is then due after that wait,
    not when the wall is right again. A message that was stored while the wall was ahead leaves it ahead, also
    after a restart; that is warned of, once, and shown by a gauge. Belongs to the hub.
    """

    __slots__ = ("_base_ms", "_base_s", "_clock", "_stamp", "_warned")

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        self._base_ms = float(last_ms)
        self._base_s = clock.monotonic()
        self._stamp = self._base_ms, self._base_s
        self._warned = False

    def now_ms(self) -> int:
        """What a message would be stored with now."""
        return int(self._at(self._clock.monotonic()))

    def stamp(self, now_s: float) -> int:
        """The store time of what is being written; `now_s` is the monotonic time."""
        found = self._at(now_s)
        self._stamp = found, now_s
        return int(found)

    def stored(self) -> None:
        """A message counts with the time of the last stamp: nothing is stored below it any more."""
        self._base_ms, self._base_s = self._stamp

    def told(self, clock_ms: int) -> None:
        """Another process stores with this time by now."""
        now_s = self._clock.monotonic()
        if clock_ms > self._at(now_s):
            self._base_ms, self._base_s = float(clock_ms), now_s

    def _at(self, now_s: float) -> float:
        return max(self._clock.wall_ms(), self._base_ms + (now_s - self._base_s) * 1000)

    def ahead_ms(self) -> int:
        """By how much it is ahead of the wall clock."""
        return self.now_ms() - self._clock.wall_ms()

    def watch(self, ahead: MetricCell) -> None:
        """Show by how many ms it is ahead, and warn when that begins; asked now and then."""
        found = self.ahead_ms()
        ahead.value = found
        if (found >= AHEAD_WARN_MS) is not self._warned:
            self._warned = not self._warned
            text = "the wall clock was ahead and has stepped back: store times go on %.1f s ahead of it"
            log.warning(text if self._warned else "store times are those of the wall clock again (%.1f s)",
                        found / 1000)  # fmt: skip
