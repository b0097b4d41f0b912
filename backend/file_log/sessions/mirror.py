"""Topics and settings at both ends of a session: the writer's frames and the member's copy.

A member answers from memory; the writer's pushes keep the copy up to date. A new session brings a complete
snapshot; until it is complete the old copy answers, then the watchers are notified of the difference. A push
that changes nothing notifies no watcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from backend.engine import Watchers, at_once
from backend.file_log.sessions import codec
from backend.file_log.sessions.pipe import FrameKind, encode_frame
from backend.file_log.sessions.requests import TOPIC_KEY
from backend.port import Backend
from backend.records import TopicInfo

SNAPSHOT_FRAME_BYTES = 512 << 10  # where a snapshot frame is full


def snapshot_frames(backend: Backend) -> Iterator[bytes]:
    """Yield frames with all topics and settings, each frame not much larger than SNAPSHOT_FRAME_BYTES."""
    topics: list[codec.TopicRow] = []
    for info in backend.topics().values():
        topics.append(codec.topic_row(info))
        if len(topics) >= SNAPSHOT_FRAME_BYTES // 256:
            yield _topics_frame(topics, [])
            topics = []
    if topics:
        yield _topics_frame(topics, [])
    settings: dict[str, bytes | None] = {}
    size = 0
    for key, value in backend.settings("").items():
        settings[key] = value
        size += len(key) + len(value)
        if size >= SNAPSHOT_FRAME_BYTES:
            yield _settings_frame(settings)
            settings, size = {}, 0
    if settings:
        yield _settings_frame(settings)


def change_frame(backend: Backend, key: str) -> bytes:
    """Return the frame with the current value of a topic or setting.

    `key`: its name, as in Backend.watch_settings.
    """
    if not key.startswith(TOPIC_KEY):
        return _settings_frame({key: backend.setting(key)})
    name = key[len(TOPIC_KEY) :]
    info = backend.topic(name)
    return _topics_frame([], [name]) if info is None else _topics_frame([codec.topic_row(info)], [])


def _topics_frame(present: list[codec.TopicRow], deleted: list[str]) -> bytes:
    return encode_frame(FrameKind.TOPICS, 0, codec.encode((present, deleted)))


def _settings_frame(values: dict[str, bytes | None]) -> bytes:
    return encode_frame(FrameKind.SETTINGS, 0, codec.encode(values))


class Mirror:
    """A member's copy of the writer's topics and settings."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicInfo] = {}
        self.settings: dict[str, bytes] = {}
        self.watchers = Watchers(at_once)
        self._coming: tuple[dict[str, TopicInfo], dict[str, bytes]] | None = None

    def begin_snapshot(self) -> None:
        """Begin a snapshot, to which all updates until `finish_snapshot` belong."""
        self._coming = {}, {}

    def finish_snapshot(self) -> None:
        """Replace the copy by the complete snapshot, and notify watchers of the differences."""
        if self._coming is None:
            return
        (topics, settings), self._coming = self._coming, None
        changed = find_changed_keys(self.topics, topics, self.settings, settings)
        self.topics, self.settings = topics, settings
        for key in changed:
            self.watchers.notify_changed(key)

    def take_topics(self, present: Iterable[TopicInfo], deleted: Iterable[str]) -> None:
        """Apply the current settings of topics, and remove deleted ones."""
        if self._coming is not None:
            self._coming[0].update((info.name, info) for info in present)
            return
        for info in present:
            if self.topics.get(info.name) != info:
                self.topics[info.name] = info
                self.watchers.notify_changed(TOPIC_KEY + info.name)
        for name in deleted:
            if self.topics.pop(name, None) is not None:
                self.watchers.notify_changed(TOPIC_KEY + name)

    def take_settings(self, values: Mapping[str, bytes | None]) -> None:
        """Apply the current values of settings; None means deleted."""
        settings = self.settings if self._coming is None else self._coming[1]
        for key, value in values.items():
            if settings.get(key) == value:
                continue
            if value is None:
                del settings[key]
            else:
                settings[key] = value
            if self._coming is None:
                self.watchers.notify_changed(key)


def find_changed_keys(
    old_topics: Mapping[str, TopicInfo],
    topics: Mapping[str, TopicInfo],
    old_settings: Mapping[str, bytes],
    settings: Mapping[str, bytes],
) -> list[str]:
    """Return the watcher keys of every topic and setting that differs between old and new."""
    changed = [
        TOPIC_KEY + name for name in {**old_topics, **topics} if old_topics.get(name) != topics.get(name)
    ]
    changed += [key for key in {**old_settings, **settings} if old_settings.get(key) != settings.get(key)]
    return changed
