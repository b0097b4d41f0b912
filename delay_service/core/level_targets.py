"""Chooses where due records go: to their topic, or to the dead letters when the topic rejects them.

What this process knows of a topic may be behind the engine, so a topic that looks gone or closed is first
tried, alone; only what the engine refuses counts. A topic that is gone makes dead letters of its messages
at once; one that refuses has `patience_s`. All levels share one Targets, so that they have that patience with
a closed topic once, not once per message. Meanwhile what is due for a closed topic is put off: it goes back
into a level, for about as long again as the topic has been closed (so a message is written a handful of times
at most), and holds up nobody else's. One record that an open topic refuses holds up its level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from backend import internal_topics as dead
from backend.internal_topics import REAL_QUEUE, REAL_TOPIC, real_record, schedule_record
from backend.records import NewRecord, StoredRecord
from ddmq_common.delays.levels import Levels
from ddmq_common.names import LEVELS_GROUP, dlq_topic
from delay_service.due.backend import REJECTED, TOPIC_DELETED, UNREADABLE, TargetTopic

PUT_OFF_S_MAX = 60.0
PUT_OFF_S_MIN = 5.0
REMEMBERED_MAX = 10_000  # topics and records; past it all are forgotten and tried again
DEAD_TOPIC = dlq_topic(LEVELS_GROUP)


class LevelFire(NamedTuple):
    """A due record of a delay level and its destination.

    With a `reason` it goes to the dead letters, with `put_off_ms` back into a level for at least that long,
    else to `topic` and `queue_id`.
    """

    record: StoredRecord
    topic: str
    queue_id: int
    reason: str = ""
    put_off_ms: int = 0


class _View(NamedTuple):
    fire: LevelFire
    tried: bool  # it has to be tried alone first


class Targets:
    """Chooses the destinations of due records, from the topics and records that the engine has rejected
    recently.

    `find_target_topic` returns a topic, or None for an unknown one.
    """

    def __init__(self, find_target_topic: Callable[[str], TargetTopic | None], patience_s: float) -> None:
        self._find_target_topic = find_target_topic
        self._patience_s = patience_s
        self._deleted_topics: set[str] = set()
        self._unavailable_since: dict[str, float] = {}
        self._rejected_since: dict[
            str | tuple[int, int], float
        ] = {}  # refused: a closed topic, or one record

    def plan(self, records: Sequence[StoredRecord], now_s: float) -> list[LevelFire]:
        """Return the fires for the longest run of records, from the first on, that one commit can append.

        Never empty.
        """
        fires: list[LevelFire] = []
        for record in records:
            fire, alone = self._view_record(record, now_s)
            if alone and fires:
                break
            fires.append(fire)
            if alone:
                break
        return fires

    def _view_record(self, record: StoredRecord, now_s: float) -> _View:
        topic, queue = record.system.get(REAL_TOPIC, ""), record.system.get(REAL_QUEUE, "")
        if not topic or not (queue.isascii() and queue.isdigit()):
            return _View(LevelFire(record, topic, -1, UNREADABLE), False)
        fire = LevelFire(record, topic, int(queue))
        target = self._find_target_topic(topic)
        if target is None:
            if topic in self._deleted_topics:
                return _View(fire._replace(reason=TOPIC_DELETED), False)
            return _View(fire, True)
        self._deleted_topics.discard(topic)
        fire = fire._replace(queue_id=fire.queue_id % target.queues)  # it was made anew with fewer
        if target.unavailable:  # it may last: no message is a dead letter because of it
            return _View(fire._replace(put_off_ms=self._put_off_unavailable_ms(topic, now_s)), False)
        self._unavailable_since.pop(topic, None)
        if target.writable:
            self._rejected_since.pop(topic, None)
        since = self._rejected_since.get(topic, self._rejected_since.get(_record_id(record)))
        if since is not None and now_s - since >= self._patience_s:
            return _View(fire._replace(reason=REJECTED), False)
        if topic in self._rejected_since:
            return _View(
                fire._replace(put_off_ms=self._put_off_ms(now_s - self._rejected_since[topic])), False
            )
        return _View(fire, since is not None or not target.writable)

    def _put_off_ms(self, closed_s: float) -> int:
        return int(max(PUT_OFF_S_MIN, min(closed_s, self._patience_s - closed_s)) * 1_000)

    def _put_off_unavailable_ms(self, topic: str, now_s: float) -> int:
        """Return for how long to put off a message of a topic that is not available: ever longer."""
        if topic not in self._unavailable_since:
            self._clear_when_full(self._unavailable_since)
        away_s = now_s - self._unavailable_since.setdefault(topic, now_s)
        return int(max(PUT_OFF_S_MIN, min(away_s, PUT_OFF_S_MAX)) * 1_000)

    # --- what the engine said

    def confirm_unknown_topic(self, fire: LevelFire) -> bool:
        """Record that the engine does not know a topic; return whether this process does not know it
        either."""
        if self._find_target_topic(fire.topic) is not None:
            return False
        self._clear_when_full(self._deleted_topics)
        self._deleted_topics.add(fire.topic)
        return True

    def on_rejected(self, fire: LevelFire, now_s: float) -> None:
        """Record that the engine rejected this fire, at least for now."""
        target = self._find_target_topic(fire.topic)
        closed = target is not None and not target.writable
        self._clear_when_full(self._rejected_since)
        self._rejected_since.setdefault(fire.topic if closed else _record_id(fire.record), now_s)

    def on_appended(self, fires: Iterable[LevelFire]) -> None:
        """Drop earlier rejections of records that have been appended."""
        if self._rejected_since:
            for fire in fires:
                self._rejected_since.pop(_record_id(fire.record), None)

    @staticmethod
    def _clear_when_full(remembered: set[str] | dict[Any, float]) -> None:
        if len(remembered) >= REMEMBERED_MAX:
            remembered.clear()


def _record_id(record: StoredRecord) -> tuple[int, int]:
    return record.queue_id, record.offset


# --- what is appended


def record_of(fire: LevelFire, wall_ms: int, levels: Levels) -> NewRecord:
    """Build the record of a fire: for its topic, for a level once more, or for the dead letters."""
    if fire.reason:
        return _dead_letter(fire, wall_ms)
    record = real_record(fire.record)
    if fire.put_off_ms:
        return schedule_record(record, _level_of(fire.put_off_ms, levels), levels)
    record.queue_id = fire.queue_id
    return record


def _level_of(wait_ms: int, levels: Levels) -> int:
    """Return the first level whose wait is at least `wait_ms`, or the last level."""
    return next((level for level, wait in enumerate(levels.waits, 1) if wait >= wait_ms), len(levels))


def _dead_letter(fire: LevelFire, wall_ms: int) -> NewRecord:
    """Build a record of `%DLQ%SCHEDULE_TOPIC_XXXX`, with topic, queue and level as far as they are known."""
    texts = {
        dead.REASON: fire.reason,
        dead.TOPIC: fire.topic,
        dead.QUEUE: str(fire.queue_id),
        dead.LEVEL: str(fire.record.queue_id + 1),
        dead.ATTEMPTS: "0",
        dead.TIME: str(wall_ms),
    }
    facts = {name: text for name, text in texts.items() if text}
    properties = {
        name: text for name, text in fire.record.system.items() if name not in (REAL_TOPIC, REAL_QUEUE)
    }
    return dead.dead_record(DEAD_TOPIC, fire.record, facts, properties)
