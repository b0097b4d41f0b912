"""Topics as an operator sees and changes them: from the admin API and from conf/topics.yaml.

A topic that a file declares belongs to the file: the command line may not change it, and the rejection names
the file. Times are wall-clock milliseconds, sizes bytes. Each call may wait on the backend, so it runs in a
greenlet, never on the hub.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from backend.port import Backend
from backend.records import CLUSTER_SETTINGS, Bounds, CommitBatch, TopicInfo
from backend.traces import one_in_of
from ddmq.server.config import DURABILITY, DURABILITY_WORDS, TopicEntry
from ddmq.server.http.pace import paced
from ddmq.server.http.routing import ALL_ITEMS, Page
from ddmq_common import names
from ddmq_common.clock import Clock
from ddmq_common.config import ConfigLocation, build
from ddmq_common.errors import CallerError, TopicExistsError, UnknownTopicError
from ddmq_common.trace.sampling import ONE_IN_MAX
from delay_service.due.holds import held_since_ms, hold_setting, is_held

WAIT_S = 10.0  # for an answer of the backend
TOPICS_AT_ONCE = 16
SETTINGS = [field.name for field in dataclasses.fields(TopicEntry)]  # a TopicInfo has the same


def require_topic(backend: Backend, name: str) -> TopicInfo:
    """Return the topic. Raises UnknownTopicError, whose text says how to list the topics."""
    info = backend.topic(name)
    if info is None:
        raise UnknownTopicError(f"topic {name!r} does not exist; `ddmq topic list` shows those that do")
    return info


def topic_row(info: TopicInfo) -> dict[str, Any]:
    """Return a topic's settings."""
    return (
        {"topic": info.name}
        | _as_settings(info)
        | {
            "incarnation": info.incarnation,
            "source": info.source,
            "internal": names.is_internal(info.name),
        }
    )


def describe_topic(backend: Backend, info: TopicInfo) -> dict[str, Any]:
    """Return a topic with all its settings, also those that the engine does not know.

    `trace_one_in`: one in so many of its messages is traced; 0 means none. `hold_delays`: no delayed message
    of it fires, since `delays_held_since_ms`.
    """
    return topic_row(info) | {
        "trace_one_in": one_in_of(backend, info.name),
        "hold_delays": is_held(backend, info.name),
        "delays_held_since_ms": held_since_ms(backend, info.name),
    }


def list_topics(backend: Backend, *, internal: bool, page: Page = ALL_ITEMS) -> list[dict[str, Any]]:
    """Return every topic with its message count, by name."""
    some = [info for info in backend.topics().values() if internal or not names.is_internal(info.name)]
    return list_rows(backend, page.of(some, lambda info: info.name))


def list_rows(backend: Backend, infos: Sequence[TopicInfo]) -> list[dict[str, Any]]:
    """Return these topics as rows, with their message counts."""
    rows: list[dict[str, Any]] = []
    for start in paced(range(0, len(infos), TOPICS_AT_ONCE)):
        some = infos[start : start + TOPICS_AT_ONCE]
        bounds = iter(backend.bounds([queue for info in some for queue in info.refs()]).wait(WAIT_S))
        rows += [_with_messages(info, list(islice(bounds, info.queues))) for info in some]
    return rows


def _with_messages(info: TopicInfo, bounds: Sequence[Bounds | None]) -> dict[str, Any]:
    existing = [b for b in bounds if b is not None]
    return topic_row(info) | {
        "messages": sum(b.next - b.min for b in existing),
        "stored": sum(b.next for b in existing),
    }


def show_topic(backend: Backend, name: str) -> dict[str, Any]:
    """Return one topic with each queue's bounds."""
    info = require_topic(backend, name)
    queues = info.refs()
    rows = [
        {"queue": queue.queue_id, "min": b.min, "next": b.next, "messages": b.next - b.min}
        for queue, b in zip(queues, backend.bounds(queues).wait(WAIT_S), strict=True)
        if b is not None
    ]
    messages = sum(int(row["messages"]) for row in rows)
    return describe_topic(backend, info) | {"messages": messages, "by_queue": rows}


def create(backend: Backend, clock: Clock, name: str, settings: Mapping[str, Any]) -> TopicInfo:
    """Create a topic. Raises CallerError for a bad name or setting, TopicExistsError if it exists."""
    error = names.find_topic_name_error(name)
    if error:
        raise CallerError(error)
    if names.is_internal(name):
        raise CallerError(f"topic {name!r} has a prefix of the system's own topics, which it makes itself")
    if name == names.HEARTBEAT_TOPIC:
        raise CallerError(f"topic {name!r} is for heartbeats, which nothing stores; choose another name")
    if backend.topic(name) is not None:
        raise TopicExistsError(
            f"topic {name!r} exists; `ddmq topic set {name} …` changes it (in the admin API, a body with"
            ' "create": false)'
        )
    entry = build(TopicEntry, settings, ConfigLocation("request", name))
    _check_body(backend, f"topic {name!r}: ", entry)
    return _put_topic(backend, clock, info_of(name, entry, "log"))


def update(backend: Backend, clock: Clock, name: str, settings: Mapping[str, Any]) -> TopicInfo:
    """Change the settings that are named. Queues can be added, not removed."""
    info = require_changeable(backend, name)
    _check_own(name, settings)
    entry = build(TopicEntry, _as_settings(info) | dict(settings), ConfigLocation("request", name))
    if entry.body_bytes_max != info.body_bytes_max:
        _check_body(backend, f"topic {name!r}: ", entry)
    if entry.queues < info.queues:
        raise CallerError(f"topic {name!r} has {info.queues} queues; they can be added, not removed")
    target = dataclasses.replace(info_of(name, entry, info.source), incarnation=info.incarnation)
    return _put_topic(backend, clock, target)


def _put_topic(backend: Backend, clock: Clock, info: TopicInfo) -> TopicInfo:
    return backend.put_topic(info, clock.monotonic() + WAIT_S).wait(WAIT_S + 1)


def _check_own(name: str, settings: Mapping[str, Any]) -> None:
    """Raise CallerError for a topic that belongs to the system, unless the change only adds queues to a retry
    or dead-letter topic.

    The system relies on the settings of its topics: on their durability, and on the number of queues (each
    delay id, for example, contains a shard's number).
    """
    grows = name.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
    if names.is_internal(name) and not (grows and settings.keys() <= {"queues"}):
        allowed = "queues" if grows else "nothing"
        raise CallerError(f"topic {name!r} belongs to the system; allowed to change: {allowed}")


def delete(backend: Backend, clock: Clock, name: str) -> None:
    """Delete a topic. Raises CallerError if a file declares it."""
    if names.is_internal(name):
        raise CallerError(f"topic {name!r} belongs to the system and cannot be deleted")
    require_changeable(backend, name)
    backend.delete_topic(name, clock.monotonic() + WAIT_S).wait(WAIT_S + 1)
    if one_in_of(backend, name):
        trace(backend, clock, name, 0)
    if is_held(backend, name):
        hold_delays(backend, clock, name, hold=False)


def check_trace_one_in(backend: Backend, name: str, one_in: Any) -> int | None:
    """Check the requested `trace_one_in` and return it; None if it was not requested. A topic that a file
    declares may be traced, too, because files do not have this setting."""
    if one_in is None:
        return None
    if isinstance(one_in, bool) or not isinstance(one_in, int) or not 0 <= one_in <= ONE_IN_MAX:
        raise CallerError(
            f"topic {name!r}: trace_one_in is {one_in!r}; allowed: 0 (none is traced) to {ONE_IN_MAX}"
        )
    if names.is_internal(name):
        raise CallerError(f"topic {name!r} belongs to the system; its messages are not traced by themselves")
    return one_in


def trace(backend: Backend, clock: Clock, name: str, one_in: int) -> None:
    """Trace one of `one_in` messages of the topic in all processes; 0 means none."""
    _store_settings(backend, clock, {names.TRACE_PREFIX + name: b"%d" % one_in if one_in else None})


def _store_settings(backend: Backend, clock: Clock, settings: Mapping[str, bytes | None]) -> None:
    batch = CommitBatch(settings=settings)
    backend.commit(batch, clock.monotonic() + WAIT_S).wait(WAIT_S + 1)


def check_hold_delays(name: str, hold: Any) -> bool | None:
    """Check the requested `hold_delays` and return it; None if it was not requested. The delayed messages of
    a topic that a file declares may be held, too, because files do not have this setting."""
    if hold is None:
        return None
    if not isinstance(hold, bool):
        raise CallerError(f"topic {name!r}: hold_delays is {hold!r}; allowed: true, false")
    if names.is_internal(name):
        raise CallerError(f"topic {name!r} belongs to the system; no delayed messages are sent to it")
    return hold


def hold_delays(backend: Backend, clock: Clock, name: str, *, hold: bool) -> None:
    """Let no delayed message of the topic fire in any process, or release them all. Holding a topic again
    does not change since when it is held."""
    if is_held(backend, name) != hold:
        _store_settings(backend, clock, hold_setting(name, clock.wall_ms() if hold else None))


def require_changeable(backend: Backend, name: str) -> TopicInfo:
    """Return the topic. Raises CallerError if a file declares it, because only that file may change it."""
    info = require_topic(backend, name)
    if info.source != "log":
        raise CallerError(f"topic {name!r} stands in {info.source}; change it there and reload")
    return info


def apply_file(backend: Backend, clock: Clock, entries: Mapping[str, TopicEntry], source: str) -> list[str]:
    """Check the topics that the file or variable `source` declares, and apply them; return the changed names.

    A topic that is no longer declared keeps its settings and can then be changed from the command line.
    """
    declared = [_topic_from_file(backend, name, entry, source) for name, entry in entries.items()]
    released = [
        dataclasses.replace(info, source="log")
        for info in backend.topics().values()
        if info.source == source and info.name not in entries
    ]
    changed = [info for info in (*declared, *released) if info != backend.topic(info.name)]
    for info in changed:
        _put_topic(backend, clock, info)
    return [info.name for info in changed]


def _topic_from_file(backend: Backend, name: str, entry: TopicEntry, source: str) -> TopicInfo:
    """Return the topic as the file declares it. Raises CallerError for a change that is not possible."""
    _check_body(backend, f"{source}: topics.{name}.", entry)
    info, declared = backend.topic(name), info_of(name, entry, source)
    if info is None:
        return declared
    if entry.queues < info.queues:
        raise CallerError(
            f"{source}: topics.{name}.queues: is {entry.queues}; the topic has {info.queues} "
            "already and queues cannot be removed"
        )
    unsaid = [each for each in CLUSTER_SETTINGS if getattr(declared, each) is None]
    as_it_is = {each: getattr(info, each) for each in unsaid}
    return dataclasses.replace(declared, incarnation=info.incarnation, **as_it_is)


def _check_body(backend: Backend, where: str, entry: TopicEntry) -> None:
    """Raise CallerError for a topic with a larger body limit than the engine supports."""
    requested, allowed = entry.body_bytes_max, backend.capabilities.body_bytes_max
    if requested is not None and requested > allowed:
        raise CallerError(
            f"{where}body_bytes_max is {requested}; allowed: at most {allowed}, the log's own body_bytes_max"
        )


def info_of(name: str, entry: TopicEntry, source: str) -> TopicInfo:
    """Convert a topic's entry in a file to the backend's TopicInfo."""
    settings = vars(entry) | {"durability": DURABILITY[entry.durability]}
    return TopicInfo(name=name, incarnation=0, source=source, **settings)


def _as_settings(info: TopicInfo) -> dict[str, Any]:
    words = {"durability": DURABILITY_WORDS[info.durability], "delay_dialects": list(info.delay_dialects)}
    settings = {name: getattr(info, name) for name in SETTINGS} | words
    return {
        name: value for name, value in settings.items() if value is not None or name not in CLUSTER_SETTINGS
    }
