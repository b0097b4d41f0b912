"""Topics and settings at both ends of a session: the writer's frames, the member's copy.

A member answers from memory; the writer's pushes keep it up. A new session brings a whole snapshot; until it
is complete the old copy answers, then the difference is told to the watchers. A push that changes nothing is
told to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from backend.engine import Watchers, at_once
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import FrameKind, frame
from backend.port import Backend
from backend.records import TopicInfo

PART_BYTES = 512 << 10  # where a snapshot frame is full
TOPIC_KEY = "topic/"  # how Backend.watch_settings names a changed topic


def snapshot(backend: Backend) -> Iterator[bytes]:
    """Frames that carry everything a member mirrors, none much above PART_BYTES."""
    topics: list[codec.TopicRow] = []
    for info in backend.topics().values():
        topics.append(codec.topic_row(info))
        if len(topics) >= PART_BYTES // 256:
            yield _topics(topics, [])
            topics = []
    if topics:
        yield _topics(topics, [])
    settings: dict[str, bytes | None] = {}
    size = 0
    for key, value in backend.settings("").items():
        settings[key] = value
        size += len(key) + len(value)
        if size >= PART_BYTES:
            yield _settings(settings)
            settings, size = {}, 0
    if settings:
        yield _settings(settings)


def change(backend: Backend, key: str) -> bytes:
    """The frame that tells what `key` (as Backend.watch_settings gives it) stands at now."""
    if not key.startswith(TOPIC_KEY):
        return _settings({key: backend.setting(key)})
    name = key[len(TOPIC_KEY) :]
    info = backend.topic(name)
    return _topics([], [name]) if info is None else _topics([codec.topic_row(info)], [])


def _topics(present: list[codec.TopicRow], gone: list[str]) -> bytes:
    return frame(FrameKind.TOPICS, 0, codec.encode((present, gone)))


def _settings(values: dict[str, bytes | None]) -> bytes:
    return frame(FrameKind.SETTINGS, 0, codec.encode(values))


class Mirror:
    """A member's copy of topics and settings."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.settings: dict[str, bytes] = {}
        self.watchers = Watchers(at_once)
        self._coming: tuple[dict[str, TopicInfo], dict[str, bytes]] | None = None

    def begin(self) -> None:
        """A snapshot starts: what comes until `finish` belongs to it."""
        self._coming = {}, {}

    def finish(self) -> None:
        """The snapshot is whole: show it, and tell what differs."""
        if self._coming is None:
            return
        (topics, settings), self._coming = self._coming, None
        changed = differences(self.topics, topics, self.settings, settings)
        self.topics, self.settings = topics, settings
        for key in changed:
            self.watchers.changed(key)

    def take_topics(self, present: Iterable[TopicInfo], gone: Iterable[str]) -> None:
        """Topics as they stand now."""
        if self._coming is not None:
            self._coming[0].update((info.name, info) for info in present)
            return
        for info in present:
            if self.topics.get(info.name) != info:
                self.topics[info.name] = info
                self.watchers.changed(TOPIC_KEY + info.name)
        for name in gone:
            if self.topics.pop(name, None) is not None:
                self.watchers.changed(TOPIC_KEY + name)

    def take_settings(self, values: Mapping[str, bytes | None]) -> None:
        """Settings as they stand now; None for one that is no more."""
        shown = self.settings if self._coming is None else self._coming[1]
        for key, value in values.items():
            if shown.get(key) == value:
                continue
            if value is None:
                del shown[key]
            else:
                shown[key] = value
            if self._coming is None:
                self.watchers.changed(key)


def differences(
    old_topics: Mapping[str, TopicInfo],
    topics: Mapping[str, TopicInfo],
    old_settings: Mapping[str, bytes],
    settings: Mapping[str, bytes],
) -> list[str]:
    """The keys, as watchers hear them, of all that is not the same in both."""
    changed = [
        TOPIC_KEY + name for name in {**old_topics, **topics} if old_topics.get(name) != topics.get(name)
    ]
    changed += [key for key in {**old_settings, **settings} if old_settings.get(key) != settings.get(key)]
    return changed
