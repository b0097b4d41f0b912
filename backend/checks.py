"""What every engine refuses, in the same words: bounds and arguments. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from backend.capabilities import Capabilities
from backend.records import TopicInfo
from ddmq_common.errors import BoundReachedError, CallerError, FencedError, NoSuchTopicError, UnsupportedError
from ddmq_common.names import topic_fault

QUEUES_MAX = 65_536  # of one topic


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


def check_change(info: TopicInfo, found: TopicInfo | None) -> None:
    """Raises NoSuchTopicError or CallerError when the topic `found` cannot become `info`."""
    if found is None or found.incarnation != info.incarnation:
        raise NoSuchTopicError(f"topic {info.name} has no incarnation {info.incarnation} (any more)")
    if info.queues < found.queues:
        raise CallerError(
            f"topic {info.name} has {found.queues} queues; they only grow, {info.queues} is less"
        )


def check_settings(
    there: Mapping[str, bytes], changes: Mapping[str, bytes | None], settings_max: int
) -> None:
    """Raises BoundReachedError for more than there may be; changing and deleting is always possible."""
    fresh = sum(value is not None and key not in there for key, value in changes.items())
    if fresh and len(there) + fresh > settings_max:
        raise BoundReachedError(f"{settings_max} settings are the bound")


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
