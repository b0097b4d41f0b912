"""The offsets of a group, and their reset while its clients are connected.

A reset is one commit: the new offset of every queue chosen, under a new generation, and the setting
`reset/GROUP/TOPIC`. From then on results of the generation before are refused, and every proxy that
watches the settings lets go of what it delivered and begins anew. Ack map and attempts are emptied, so
messages that were finished above the new offset come again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from backend.port import Backend
from backend.records import Bounds, CommitBatch, ProgressDelta, ProgressView, QueueRef
from ddmq.moments import WALL_MS_MIN, format_moment, read_moment
from ddmq.server.admin.topics import WAIT_S, require_topic
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import NoSuchGroupError
from ddmq.settings import describe_filter
from ddmq_common.clock import Clock
from ddmq_common.config import ConfigLocation, build
from ddmq_common.errors import CallerError, FencedError
from proxy_consumer.config import SubscriptionDefaults
from proxy_consumer.groups.group import (
    RESET_PREFIX,
    SUBSCRIPTION_PREFIX,
    group_key,
    stored_subscription,
    subscription_key,
)

TRIES_MAX = 5
QUEUES_NAMED_MAX = 8
_ALLOWED = (
    "first, last, an offset (below 1,000,000,000,000), or a time: epoch milliseconds, "
    "2026-11-21T12:00+01:00, or -2h"
)


class ResetTarget(NamedTuple):
    """The position to which offsets are reset. `kind`: first, last, offset, time or undo; `value`: the offset
    or epoch ms."""

    kind: str
    value: int

    @property
    def words(self) -> str:
        """The position in words, for people."""
        if self.kind == "time":
            return f"the first message stored at or after {format_moment(self.value)}"
        if self.kind == "offset":
            return f"offset {self.value}"
        if self.kind == "undo":
            return "the offsets before the last reset"
        return "the first message" if self.kind == "first" else "the end, behind the last message"


class Standing(NamedTuple):
    """A group's progress on one queue. `position`: the committed offset or, if there is none, that of the
    oldest message."""

    queue: QueueRef
    view: ProgressView
    bounds: Bounds

    @property
    def at(self) -> int:
        return max(self.bounds.min, self.bounds.min if self.view.committed is None else self.view.committed)


def target_of(raw: Any, now_ms: int) -> ResetTarget:
    """Parse the `to` of a request. Raises CallerError, whose text says what is allowed."""
    if raw in ("first", "last"):
        return ResetTarget(raw, 0)
    text = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
    if not isinstance(text, str) or not text:
        raise CallerError(f"to is {raw!r}; allowed: {_ALLOWED}")
    if text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) < WALL_MS_MIN:
        return ResetTarget("offset", int(text))
    try:
        return ResetTarget("time", read_moment(text, now_ms))
    except ValueError as error:
        reason = f"; {error}" if "time zone" in str(error) else ""
        raise CallerError(f"to is {raw!r}{reason}; allowed: {_ALLOWED}") from error


def read_positions(backend: Backend, group: str, topic: str) -> list[Standing]:
    """Read the group's progress on every queue of a topic."""
    queues = require_topic(backend, topic).refs()
    views = backend.progress(group, queues)
    bounds = backend.bounds(queues).wait(WAIT_S)
    rows = zip(queues, views.wait(WAIT_S), bounds, strict=True)
    return [Standing(queue, view, limits) for queue, view, limits in rows if limits is not None]


def list_positions(backend: Backend, group: str, topic: str | None) -> list[dict[str, Any]]:
    """Return a row per queue of one topic or, without a topic, of all existing topics to which the group
    subscribes."""
    topics = [topic] if topic is not None else _subscribed_topics(backend, group)
    for name in topics:
        _check(backend, group, name)
    existing = [name for name in topics if topic is not None or backend.topic(name) is not None]
    return [
        _position_row(name, each) for name in existing for each in paced(read_positions(backend, group, name))
    ]


def _position_row(topic: str, each: Standing) -> dict[str, Any]:
    finished = sum(end - start for start, end in each.view.finished)
    return {
        "topic": topic,
        "queue": each.queue.queue_id,
        "min": each.bounds.min,
        "committed": each.at,
        "next": each.bounds.next,
        "lag": max(0, each.bounds.next - each.at),
        "finished_above": finished,
        "attempted": len(each.view.attempts),
        "generation": each.view.generation,
    }


def reset(
    backend: Backend, clock: Clock, group: str, topic: str, to: Any, queue: int | None, dry_run: bool
) -> dict[str, Any]:
    """Move the group's offsets on `topic`, or on one queue of it; return the effect on each queue. With
    `dry_run`, only return the effect."""
    _check(backend, group, topic)
    target = target_of(to, backend.clock_ms())
    for _ in range(TRIES_MAX):
        positions = _choose_queues(read_positions(backend, group, topic), topic, queue)
        offsets = _target_offsets(backend, positions, target)
        if not dry_run and not _commit(backend, clock, group, topic, target, positions, offsets):
            continue  # an owner changed meanwhile: look again
        rows = [_plan_row(each, offset) for each, offset in zip(positions, offsets, strict=True)]
        settings = _read_settings(backend, group, topic)
        return {
            "group": group,
            "topic": topic,
            "to": target.words,
            "dry_run": dry_run,
            "filter": describe_filter(settings.tags, settings.sql),
            "queues": rows,
            "again": sum(row["again"] for row in rows),
            "passed_over": sum(row["passed_over"] for row in rows),
        }
    raise FencedError(f"queues of {topic!r} change hands just now; run the reset of {group!r} again")


def _commit(
    backend: Backend,
    clock: Clock,
    group: str,
    topic: str,
    target: ResetTarget,
    chosen: Sequence[Standing],
    offsets: Sequence[int],
) -> bool:
    deltas = [
        ProgressDelta(group, each.queue, each.view.epoch, each.view.generation + 1, reset_to=offset)
        for each, offset in zip(chosen, offsets, strict=True)
    ]
    reset_record = {
        "at_ms": clock.wall_ms(),
        "to": target.words,
        "queues": [each.queue.queue_id for each in chosen],
    }
    settings = {f"{RESET_PREFIX}{group}/{topic}": msgspec.json.encode(reset_record)}
    try:
        backend.commit(CommitBatch((), deltas, settings), clock.monotonic() + WAIT_S).wait(WAIT_S + 1)
    except FencedError:
        return False
    return True


def restore_offsets(
    backend: Backend, clock: Clock, group: str, topic: str, targets: Mapping[int, int]
) -> None:
    """Move the group's offsets on `topic` to those of `targets`, by queue; to the oldest message where that
    is later. Messages that were finished above are delivered again."""
    for _ in range(TRIES_MAX):
        positions = [each for each in read_positions(backend, group, topic) if each.queue.queue_id in targets]
        target = ResetTarget("undo", 0)
        at = [max(each.bounds.min, targets[each.queue.queue_id]) for each in positions]
        if _commit(backend, clock, group, topic, target, positions, at):
            return
    raise FencedError(f"queues of {topic!r} change hands just now; try again")


class _LastReset(msgspec.Struct):
    at_ms: int
    queues: list[int]


def last_reset_ms(backend: Backend, group: str, topic: str, queue_id: int) -> int:
    """Return when the group's offset on this queue was last reset, in epoch ms; 0 if never, or if the topic's
    last reset concerned other queues."""
    value = backend.setting(f"{RESET_PREFIX}{group}/{topic}")
    if value is None:
        return 0
    try:
        last_reset = msgspec.json.decode(value, type=_LastReset)
    except msgspec.DecodeError:
        return 0
    return last_reset.at_ms if queue_id in last_reset.queues else 0


def _plan_row(each: Standing, to: int) -> dict[str, int]:
    """Return the effect of a reset on one queue. `again`: how many finished messages will be delivered again;
    `passed_over`: how many unfinished ones will not be delivered. Both include messages that the filter of
    the group leaves out."""
    at = each.at
    above = each.view.finished
    redelivered = max(0, at - to) + sum(max(0, end - max(start, to)) for start, end in above)
    skipped = sum(max(0, min(end, to) - start) for start, end in above)
    passed = max(0, to - at - skipped)
    return {"queue": each.queue.queue_id, "from": at, "to": to, "again": redelivered, "passed_over": passed}


def _choose_queues(positions: list[Standing], topic: str, queue: int | None) -> list[Standing]:
    if queue is None:
        return positions
    matches = [each for each in positions if each.queue.queue_id == queue]
    if not matches:
        raise CallerError(f"topic {topic!r} has no queue {queue}; it has 0 to {len(positions) - 1}")
    return matches


def _target_offsets(backend: Backend, chosen: Sequence[Standing], target: ResetTarget) -> list[int]:
    if target.kind == "first":
        return [each.bounds.min for each in chosen]
    if target.kind == "last":
        return [each.bounds.next for each in chosen]
    if target.kind == "time":
        requests = [backend.offset_for_time(each.queue, target.value) for each in chosen]
        offsets = [each.wait(WAIT_S) for each in requests]
        return [max(each.bounds.min, offset) for each, offset in zip(chosen, offsets, strict=True)]
    outside = [each for each in chosen if not each.bounds.min <= target.value <= each.bounds.next]
    if outside:
        ranges = ", ".join(
            f"queue {each.queue.queue_id}: {each.bounds.min} to {each.bounds.next}"
            for each in outside[:QUEUES_NAMED_MAX]
        )
        more = f" and {len(outside) - QUEUES_NAMED_MAX} more" if len(outside) > QUEUES_NAMED_MAX else ""
        hint = "" if len(chosen) == 1 else "; --queue N resets one queue alone"
        raise CallerError(f"offset {target.value} is out of range; allowed: {ranges}{more}{hint}")
    return [target.value] * len(chosen)


# --- what there is


def check_group(backend: Backend, group: str) -> None:
    """Raise NoSuchGroupError if there is no such group; its text says how to list the groups."""
    if backend.setting(group_key(group)) is None:
        raise NoSuchGroupError(f"group {group!r} does not exist; `ddmq group list` shows those that do")


def _subscribed_topics(backend: Backend, group: str) -> list[str]:
    check_group(backend, group)
    prefix = f"{SUBSCRIPTION_PREFIX}{group}/"
    return sorted(key.removeprefix(prefix) for key in backend.settings(prefix))


def _check(backend: Backend, group: str, topic: str) -> None:
    topics = _subscribed_topics(backend, group)
    if topic not in topics:
        raise NoSuchGroupError(
            f"group {group!r} does not consume topic {topic!r}; it consumes: {', '.join(topics)}"
        )
    if is_broadcast(backend, group, topic):
        raise CallerError(
            f"group {group!r} on {topic!r} is broadcasting: every instance keeps its own progress; "
            "there is nothing to show or reset here"
        )


def is_broadcast(backend: Backend, group: str, topic: str) -> bool:
    """Return whether the group is broadcasting on this topic, so that every instance has its own progress."""
    return _read_settings(backend, group, topic).model == "broadcasting"


def _read_settings(backend: Backend, group: str, topic: str) -> SubscriptionDefaults:
    """Return the settings that the subscription itself has; for the others, the defaults of the program."""
    key = subscription_key(group, topic)
    value = backend.setting(key)
    settings = {} if value is None else stored_subscription(key, value).overrides
    return build(SubscriptionDefaults, settings, ConfigLocation(key, ""))
