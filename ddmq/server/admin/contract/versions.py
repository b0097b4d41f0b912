"""The versions of topics and groups, so that one operator does not undo what another changed meanwhile.

An answer about a topic or group has the version of its settings as its ETag. A change with `If-Match` is made
only if the version is still one of those. Changes of one topic or group that reach this process are made one
after another; two that reach two processes at the same moment may both be made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from gevent.lock import BoundedSemaphore

from backend.port import Backend
from ddmq.server.admin.topics import describe_topic
from ddmq.server.http.routing import VersionConflictError
from proxy_consumer.groups.group import SUBSCRIPTION_PREFIX, group_key

VERSION_CHARS = 16
STATED_CHARS = 100  # of If-Match in an error


def topic_version(backend: Backend, name: str) -> str:
    """Return the version of a topic's settings; "" if the topic does not exist."""
    info = backend.topic(name)
    return "" if info is None else _hash_settings(describe_topic(backend, info))


def group_version(backend: Backend, name: str) -> str:
    """Return the version of the settings of all subscriptions of a group; "" if the group does not exist."""
    created = backend.setting(group_key(name))
    if created is None:
        return ""
    return _hash_settings([created, sorted(backend.settings(f"{SUBSCRIPTION_PREFIX}{name}/").items())])


def _hash_settings(settings: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(settings)).hexdigest()[:VERSION_CHARS]


def check_version(what: str, version: str, if_match: str) -> None:
    """Raise VersionConflictError unless `if_match` allows this version ("": it does not exist).

    `if_match`: an If-Match header: a list of ETags, `*` for any version, or "" for no condition.
    """
    if not if_match:
        return
    stated = [_read_etag(text) for text in if_match.split(",")]
    if not version or (version not in stated and "*" not in stated):
        now = f'its ETag is "{version}"' if version else "it does not exist"
        raise VersionConflictError(
            f"{what} was changed meanwhile: {now}, If-Match is {if_match[:STATED_CHARS]}; nothing was changed"
        )


def _read_etag(text: str) -> str:
    """Return the version that an ETag states. A weak one counts, because proxies that compress make it so."""
    return text.strip().removeprefix("W/").strip('"')


class NameLocks:
    """One lock for each name, while it is used."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, ...], BoundedSemaphore] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._locks)

    @contextmanager
    def hold_lock(self, *name: str) -> Iterator[None]:
        """Hold the lock of a name during the block."""
        lock = self._locks.setdefault(name, BoundedSemaphore())
        with lock:
            yield
