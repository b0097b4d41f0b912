"""Settings and progress as the records of the system topics define them. Pure.

Both topics are compacted: the last record of each key counts, and a record without a value (a tombstone)
deletes its key. docs/formats-kafka.md has the bytes.

* Settings: the key is `s/KEY`, and `t/NAME` for the settings of a topic that Kafka does not store.
* Progress: the key is group, queue, generation and epoch; the value is the complete state. Of the keys of one
  group and queue, the highest (generation, epoch) counts, not the one that was written last: a late write of
  an old holder changes nothing. The holder of the queue writes tombstones for the other keys.

A record that this process wrote itself counts as soon as Kafka has answered, before it was followed. Its key
keeps its offset until the followed records have reached it. So the state never goes back, and at any time it
is what the records up to some offset of each partition and key define.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import google_crc32c
import msgspec

from backend.progress.codec import decode_progress, encode_progress
from backend.progress.group_progress import NO_PROGRESS, OPEN_FENCE, Fence, GroupProgress, Key
from backend.records import ProgressView, QueueRef
from ddmq_common.errors import DamagedError, newer_format

VERSION = 1
PROGRESS_BYTES_MAX = 2 << 20  # of one group on one queue; what would be more is refused
_VERSION_BYTE = bytes([VERSION])
_SETTING, _TOPIC = b"s/", b"t/"
_encode_name = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(tuple[str, str, int, int, int, int]).decode


class Stamp(NamedTuple):
    """Orders the Kafka keys under which one group's progress on one queue is stored.

    Only the value of the key with the highest stamp is valid.
    """

    generation: int
    epoch: int


# --- bytes


def setting_key(key: str) -> bytes:
    """Return the key of a setting."""
    return _SETTING + key.encode("utf-8", "surrogatepass")


def topic_key(name: str) -> bytes:
    """Return the key of a topic's stored settings."""
    return _TOPIC + name.encode()


def wrap_value(value: bytes) -> bytes:
    """Return a setting's value in its stored form: a version byte, then the value."""
    return _VERSION_BYTE + value


def unwrap_value(value: bytes) -> bytes:
    """Return a setting's value from its stored bytes. Raises DamagedError, NewerFormatError."""
    if not value:
        raise DamagedError("a setting in Kafka is empty; a version byte is missing")
    if value[0] > VERSION:
        raise newer_format("a setting in Kafka", value[0], VERSION)
    if value[0] != VERSION:
        raise DamagedError(f"a setting in Kafka has version {value[0]}; this program knows {VERSION}")
    return value[1:]


def progress_key(key: Key, stamp: Stamp) -> bytes:
    """Return the Kafka key of a group's progress on a queue."""
    group, queue = key
    return _VERSION_BYTE + _encode_name((group, *queue, *stamp))


def progress_partition(key: Key, partitions: int) -> int:
    """Return the progress topic's partition for a group and queue, the same for all their keys."""
    group, queue = key
    return int(google_crc32c.value(_encode_name((group, *queue)))) % partitions


@lru_cache(maxsize=1 << 14)
def parse_progress_key(data: bytes) -> tuple[Key, Stamp]:
    """Decode a Kafka key made by `progress_key`. Raises DamagedError, NewerFormatError."""
    if data[:1] > _VERSION_BYTE:
        raise newer_format("a progress key in Kafka", data[0], VERSION)
    try:
        if data[:1] != _VERSION_BYTE:
            raise ValueError("no version byte")
        group, topic, incarnation, queue_id, generation, epoch = _decode_key(data[1:])
    except (msgspec.MsgspecError, ValueError) as error:
        raise DamagedError(f"progress key {data[:80]!r} does not parse: {error}") from error
    return (group, QueueRef(topic, incarnation, queue_id)), Stamp(generation, epoch)


# --- state


class FollowedOffsets:
    """The offsets read so far in one topic's partitions, and the offsets of records that this process wrote
    and has not read yet, by key."""

    __slots__ = ("_ahead", "_next")

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._ahead: dict[bytes, int] = {}

    def record_followed(self, partition: int, offset: int, key: bytes) -> bool:
        """Note a record that was read; return whether it must be applied.

        A record older than what this process wrote under the same key must not.
        """
        self._next[partition] = offset + 1
        if not self._ahead:
            return True
        ahead = self._ahead.get(key)
        if ahead is None:
            return True
        if offset >= ahead:
            del self._ahead[key]
        return offset > ahead

    def record_written(self, partition: int, offset: int, key: bytes) -> bool:
        """Note a record that this process wrote; return whether it must be applied now."""
        if offset < self._next.get(partition, 0) or offset <= self._ahead.get(key, -1):
            return False
        self._ahead[key] = offset
        return True


class SettingsState:
    """The content of the settings topic.

    `settings`: key → value. `topic_infos`: topic name → encoded settings.
    """

    def __init__(self) -> None:
        self.settings: dict[str, bytes] = {}
        self.topic_infos: dict[str, bytes] = {}
        self.followed = FollowedOffsets()

    def holds_record(self, key: bytes, value: bytes) -> bool:
        """Return whether this value is the current one under this key."""
        table = self.settings if key[:2] == _SETTING else self.topic_infos
        return table.get(key[2:].decode("utf-8", "surrogatepass")) == unwrap_value(value)

    def apply(self, key: bytes, value: bytes | None) -> tuple[str | None, str | None]:
        """Apply one record of the settings topic.

        Return the name of the setting, or of the topic, that changed. The other name is None, and both are if
        nothing changed. Raises DamagedError.
        """
        table = {_SETTING: self.settings, _TOPIC: self.topic_infos}.get(key[:2])
        if table is None:
            raise DamagedError(f"key {key[:80]!r} of the settings topic is of no kind that is known")
        try:
            name = key[2:].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise DamagedError(f"key {key[:80]!r} of the settings topic is no text: {error}") from error
        before = table.get(name)
        if value is None:
            table.pop(name, None)
        else:
            table[name] = unwrap_value(value)
        if table.get(name) == before:
            return None, None
        return (name, None) if table is self.settings else (None, name)


class _ProgressKeys:
    """All stored values of one group's progress on one queue.

    `top` is the highest stamp, whose value is valid. `progress` is that value decoded, or None until it is
    first requested.
    """

    __slots__ = ("progress", "top", "values")

    def __init__(self) -> None:
        self.values: dict[Stamp, bytes] = {}
        self.top = Stamp(-1, -1)
        self.progress: GroupProgress | None = None  # of the top, once it was asked for


class ProgressState:
    """The content of the progress topic."""

    def __init__(self) -> None:
        self.followed = FollowedOffsets()
        self._entries: dict[Key, _ProgressKeys] = {}
        self._stale: set[Key] = set()  # those that may have keys to be tombstoned

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def apply(self, data: bytes, value: bytes | None, progress: GroupProgress | None = None) -> None:
        """Apply one record of the progress topic.

        `progress`: the decoded `value`, if the caller has it. Raises DamagedError.
        """
        key, stamp = parse_progress_key(data)
        entry = self._entries.get(key)
        if value is None:
            if entry is not None:
                self._remove_key(key, entry, stamp)
            return
        if entry is None:
            entry = self._entries[key] = _ProgressKeys()
        entry.values[stamp] = value
        if stamp >= entry.top:
            entry.top, entry.progress = stamp, progress
        if len(entry.values) > 1:
            self._stale.add(key)

    def _remove_key(self, key: Key, entry: _ProgressKeys, stamp: Stamp) -> None:
        entry.values.pop(stamp, None)
        if len(entry.values) < 2:
            self._stale.discard(key)
        if not entry.values:
            del self._entries[key]
        elif stamp == entry.top:
            entry.top, entry.progress = max(entry.values), None

    def holds_record(self, data: bytes, value: bytes) -> bool | None:
        """Return whether this record is the valid one.

        None: a higher key is valid, and it is unknown whether its writer has seen this record.
        """
        key, stamp = parse_progress_key(data)
        entry = self._entries.get(key)
        if entry is None:
            return False
        return None if entry.top > stamp else entry.values.get(stamp) == value

    def get(self, key: Key) -> GroupProgress | None:
        """Return the valid progress of a group and queue, with its fence, or None.

        Do not change it. Raises DamagedError.
        """
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.progress is None:
            entry.progress = self._decode(key, entry)
        return entry.progress

    def _decode(self, key: Key, entry: _ProgressKeys) -> GroupProgress:
        group, queue, progress = decode_progress(entry.values[entry.top])
        if (group, queue) != key:
            raise DamagedError(f"progress of {group} on {queue} stands under the key of {key}")
        progress.fence = Fence(entry.top.epoch, entry.top.generation)
        return progress

    def find_fence(self, key: Key) -> Fence:
        """Return the fence that deltas must pass.

        It consists of the valid key's generation and the highest epoch of all keys.
        """
        entry = self._entries.get(key)
        if entry is None:
            return OPEN_FENCE
        if len(entry.values) == 1:
            return Fence(entry.top.epoch, entry.top.generation)
        return Fence(max(stamp.epoch for stamp in entry.values), entry.top.generation)

    def view(self, key: Key) -> ProgressView:
        """Return the recorded progress; NO_PROGRESS when there is none. Raises DamagedError."""
        progress = self.get(key)
        if progress is None:
            return NO_PROGRESS
        return _with_epoch(progress.view(), self.find_fence(key))

    def highest_epoch(self) -> int:
        """Return the highest epoch recorded for any group and queue."""
        return max((stamp.epoch for entry in self._entries.values() for stamp in entry.values), default=0)

    def find_outdated(self, keys: Iterable[Key]) -> list[tuple[Key, bytes]]:
        """Return the keys that a newer key, in stamp and epoch, has replaced. They must be tombstoned."""
        outdated = []
        for key in keys:
            if key in self._stale:
                entry = self._entries[key]
                lower = [
                    stamp for stamp in entry.values if stamp < entry.top and stamp.epoch <= entry.top.epoch
                ]
                outdated += [(key, progress_key(key, stamp)) for stamp in sorted(lower)]
        return outdated

    def find_of_topic(self, topic: str, incarnation: int) -> list[tuple[Key, bytes]]:
        """Return every key of a deleted topic, to be tombstoned in this order (the lowest first)."""
        return [
            (key, progress_key(key, stamp))
            for key, entry in self._entries.items()
            if key[1].topic == topic and key[1].incarnation == incarnation
            for stamp in sorted(entry.values)
        ]


def _with_epoch(view: ProgressView, fence: Fence) -> ProgressView:
    if view.epoch == fence.epoch:
        return view
    return ProgressView(view.committed, view.finished, view.attempts, fence.epoch, view.generation)


def encode_record(key: Key, progress: GroupProgress) -> tuple[bytes, bytes]:
    """Encode `progress` as the key and value of a Kafka record."""
    group, queue = key
    stamp = Stamp(progress.fence.generation, progress.fence.epoch)
    return progress_key(key, stamp), encode_progress(group, queue, progress)
