"""Topics and settings as frames: the whole of them at a session's start, single ones as they change."""

from __future__ import annotations

from collections.abc import Iterator

from backend.file_log.sessions.wire import codec
from backend.file_log.sessions.wire.protocol import FrameKind, frame
from backend.port import Backend

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
