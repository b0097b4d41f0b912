"""The code that all engines share: checks of arguments, notification of changes, the clock of the store, and
the counts of settings.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

from backend.completion import Completion
from backend.records import CLUSTER_SETTINGS, Capabilities, Durability, SettingsLimit, TopicInfo
from ddmq_common.clock import Clock
from ddmq_common.errors import (
    BoundReachedError,
    CallerError,
    FencedError,
    UnknownTopicError,
    UnsupportedError,
)
from ddmq_common.metrics.cells import MetricCell
from ddmq_common.names import find_topic_name_error

TopicAnswer = Completion[TopicInfo]
QUEUES_MAX = 65_536  # of one topic


def local_capabilities(engine: str, body_bytes_max: int, properties_bytes_max: int) -> Capabilities:
    """Return the capabilities of an engine that stores everything itself, with these size limits."""
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
    """Raise CallerError or UnsupportedError when this engine cannot have a topic with these settings."""
    reason = find_topic_name_error(info.name)
    if reason is not None:
        raise CallerError(reason)
    if not 1 <= info.queues <= QUEUES_MAX:
        raise CallerError(f"topic {info.name} with {info.queues} queues; allowed: 1 to {QUEUES_MAX}")
    if info.durability not in engine.durability:
        word = info.durability.name.lower()
        raise UnsupportedError(f"topic {info.name}: {engine.engine} cannot store {word}")
    cluster_settings = [name for name in CLUSTER_SETTINGS if getattr(info, name) is not None]
    if cluster_settings and Durability.REPLICATED not in engine.durability:
        where = "; file_log.yaml sets the retention of all topics" if info.retention_ms is not None else ""
        raise UnsupportedError(
            f"topic {info.name}: {cluster_settings[0]} is {getattr(info, cluster_settings[0])}; the engine"
            f" {engine.engine} has no such setting of a topic, Kafka has: leave it out{where}"
        )


def check_change(info: TopicInfo, topic: TopicInfo | None) -> None:
    """Raise UnknownTopicError or CallerError when `topic`, None for a missing one, cannot be changed to
    `info`.
    """
    if topic is None or topic.incarnation != info.incarnation:
        raise UnknownTopicError(f"topic {info.name} has no incarnation {info.incarnation} (any more)")
    if info.queues < topic.queues:
        raise CallerError(
            f"topic {info.name} has {topic.queues} queues; they only grow, {info.queues} is less"
        )


def check_settings(
    changes: Mapping[str, bytes | None], is_there: Callable[[str], bool], count: int, settings_max: int
) -> None:
    """Raise BoundReachedError when `changes` would create settings beyond `settings_max`.

    Changing and deleting is always possible. `is_there` states whether a setting exists, `count` how many do,
    both before `changes`.
    """
    fresh = sum(value is not None and not is_there(key) for key, value in changes.items())
    if fresh and count + fresh > settings_max:
        raise BoundReachedError(
            f"there are {count} settings, this makes {fresh} more; settings_max is {settings_max}"
        )


def check_topics_max(count: int, topics_max: int | None) -> None:
    """Raise BoundReachedError when `count` topics exist and one more would exceed `topics_max`."""
    if topics_max is not None and count >= topics_max:
        raise BoundReachedError(f"there are {count} topics; topics_max is {topics_max}")


def check_absent(there: Container[str], keys: Sequence[str], ahead: Container[str] = ()) -> None:
    """Raise FencedError if one of `keys` exists, in the settings or in `ahead`, the commits not applied
    yet.
    """
    for key in keys:
        if key in there or key in ahead:
            raise FencedError(f"setting {key!r} is there already")


def check_read(offset: int, count_max: int, bytes_max: int) -> None:
    """Raise ValueError for a read whose arguments are out of range."""
    if offset < 0 or count_max < 1 or bytes_max < 0:
        raise ValueError(
            f"read of {count_max} records, {bytes_max} bytes from {offset}: allowed are 1, 0, 0 up"
        )


def check_find(key: bytes | None, message_id: bytes | None, count_max: int) -> None:
    """Raise ValueError unless the lookup names either a key or a message id, and at least one result."""
    if (key is None) == (message_id is None) or count_max < 1:
        raise ValueError(
            f"find by key {key!r} and id {message_id!r}, {count_max} at most: one of them, 1 or more"
        )


Later = Callable[..., object]


def at_once(notify: Callable[[str], None], key: str) -> None:
    """Call `notify(key)` immediately.

    Passed as `later` by engines whose changes already arrive in order on the hub and need no scheduling.
    """
    notify(key)


class Watchers:
    """The listeners for changed settings and topics of one engine, each called in the order of the changes.

    `later` schedules a function call on the hub.
    """

    def __init__(self, later: Later) -> None:
        self._later = later
        self._notifiers: dict[Callable[[str], None], tuple[str, ...]] = {}  # with what their keys begin

    def watch(self, listener: Callable[[str], None], prefixes: tuple[str, ...] = ()) -> Callable[[], None]:
        """Add a listener, as Backend.watch_settings does, and return how to remove it.

        One may be added twice.
        """

        def notify(key: str) -> None:
            if notify in self._notifiers:
                listener(key)

        def stop() -> None:
            self._notifiers.pop(notify, None)

        self._notifiers[notify] = prefixes
        return stop

    def notify_changed(self, key: str) -> None:
        """Notify the listeners for `key`, through `later`."""
        for notify, prefixes in list(self._notifiers.items()):
            if not prefixes or key.startswith(prefixes):
                self._later(notify, key)

    def clear(self) -> None:
        """Remove all listeners for changes."""
        self._notifiers.clear()


log = logging.getLogger(__name__)
AHEAD_WARN_MS = 1_000


class StoreClock:
    """A wall clock that neither goes back nor stands still. `last_ms`: the newest store time in the store.

    When the wall clock steps back behind the newest store time, this clock continues from that time at the
    pace of the monotonic clock until the wall clock has caught up. So a message that waits for a minute waits
    for a minute. A message that was stored while the wall clock was ahead leaves this clock ahead, also after
    a restart; the process warns of that once and shows it as a gauge. Belongs to the hub.
    """

    __slots__ = ("_base_ms", "_base_s", "_clock", "_stamp", "_warned")

    def __init__(self, clock: Clock, last_ms: int) -> None:
        self._clock = clock
        self._base_ms = float(last_ms)
        self._base_s = clock.monotonic()
        self._stamp = self._base_ms, self._base_s
        self._warned = False

    def now_ms(self) -> int:
        """Return the store time that a message would get now."""
        return int(self._time_at(self._clock.monotonic()))

    def stamp(self, now_s: float) -> int:
        """Return the store time for the records being written; `now_s` is the monotonic time."""
        store_ms = self._time_at(now_s)
        self._stamp = store_ms, now_s
        return int(store_ms)

    def confirm_stamp(self) -> None:
        """Confirm the last stamp: a message is stored with it, so that no later store time may be lower."""
        self._base_ms, self._base_s = self._stamp

    def advance_to(self, clock_ms: int) -> None:
        """Advance to `clock_ms` if another process already stores messages with that time."""
        now_s = self._clock.monotonic()
        if clock_ms > self._time_at(now_s):
            self._base_ms, self._base_s = float(clock_ms), now_s

    def _time_at(self, now_s: float) -> float:
        return max(self._clock.wall_ms(), self._base_ms + (now_s - self._base_s) * 1000)

    def ahead_ms(self) -> int:
        """Return how many milliseconds this clock is ahead of the wall clock."""
        return self.now_ms() - self._clock.wall_ms()

    def update_gauge(self, ahead: MetricCell) -> None:
        """Set the gauge to the lead over the wall clock in ms, and warn when a lead begins.

        Called periodically.
        """
        lead_ms = self.ahead_ms()
        ahead.value = lead_ms
        if (lead_ms >= AHEAD_WARN_MS) is not self._warned:
            self._warned = not self._warned
            text = "the wall clock was ahead and has stepped back: store times continue %.1f s ahead of it"
            log.warning(text if self._warned else "store times follow the wall clock again (%.1f s)",
                        lead_ms / 1000)  # fmt: skip


# --- the number of settings in each folder, counted as they change
#
# A folder is the part of a setting's key up to a slash: `group/`, `subscription/`, `subscription/billing/`.
# The root is "", so its count is that of all settings. Folders below the second level are not counted: the
# rest of a key may contain any number of slashes.

ROOT = ""
_LEVELS = 2


class SettingCounts:
    """The counts of a set of settings, or the changes that a set of commits makes to them."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add_change(self, key: str, by: int) -> None:
        """Count a setting that was created (1) or deleted (−1)."""
        counts = self._counts
        counts[ROOT] += by
        start = 0
        for _ in range(_LEVELS):
            start = key.find("/", start) + 1
            if not start:
                return
            folder = key[:start]
            counts[folder] += by
            if not counts[folder]:
                del counts[folder]

    def count_settings(self, folder: str) -> int:
        """Return the number of settings below `folder`, one of the counted folders."""
        return self._counts[folder]


def check_limits(
    limits: Sequence[SettingsLimit],
    changes: Mapping[str, bytes | None],
    is_there: Callable[[str], bool],
    count_settings: Callable[[str], int],
) -> None:
    """Raise BoundReachedError if `changes` would create more settings than one of `limits` allows.

    `is_there` of a key and `count_settings` of a folder describe the settings before `changes`.
    """
    for limit in limits:
        additions = deletions = 0
        for key, value in changes.items():
            if key.startswith(limit.folder):
                additions += value is not None and not is_there(key)
                deletions += value is None and is_there(key)
        if additions and count_settings(limit.folder) + additions - deletions > limit.count_max:
            raise BoundReachedError(limit.rejection)
