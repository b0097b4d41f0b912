"""Counts the messages that wait at RocketMQ's delay levels, for the admin API.

A level is a queue of SCHEDULE_TOPIC_XXXX, and fires in order; messages above its committed offset wait. Any
process can read that. These messages have no delay id, so they are not in the listing of queries.py.
"""

from __future__ import annotations

from typing import Any

from backend.port import Backend
from ddmq.server.admin.topics import WAIT_S
from ddmq_common.delays.levels import Levels
from ddmq_common.names import LEVELS_GROUP, SCHEDULE_TOPIC


def count_levels(backend: Backend, levels: Levels) -> list[dict[str, Any]]:
    """Return a row for each delay level: its number, its delay, and how many messages wait there, including
    retries of groups."""
    info = backend.topic(SCHEDULE_TOPIC)
    waiting = dict.fromkeys(range(1, len(levels) + 1), 0)
    if info is not None:
        queues = info.refs()
        views, bounds = backend.progress(LEVELS_GROUP, queues), backend.bounds(queues)
        for queue, view, limits in zip(queues, views.wait(WAIT_S), bounds.wait(WAIT_S), strict=True):
            if limits is not None:
                committed = limits.min if view.committed is None else max(limits.min, view.committed)
                finished = sum(end - max(start, committed) for start, end in view.finished if end > committed)
                waiting[queue.queue_id + 1] = max(0, limits.next - committed - finished)
    return [
        {"level": level, "delay_ms": levels.wait_ms(level), "waiting": number}
        for level, number in sorted(waiting.items())
    ]
