"""The checkpoint: the state at one log position, so that the next start reads the log only from there.

It is written after a number of bytes or seconds. The state is encoded on the hub at a moment when nothing is
being written and everything is durable. Items that have not changed since they were last encoded are reused;
changed items are encoded in slices shortly before that moment. Then a native thread brings consume queues and
index up to that moment and syncs them, and only then renames the checkpoint into its place. Two generations
are retained: if the newer one is damaged or could not be written, the log is read from the older one.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import google_crc32c

from backend.file_log.commit.writer import Writer
from backend.file_log.consume_queue import QueueFiles, Tails, Write
from backend.file_log.core import names
from backend.file_log.index.attached import AttachedIndex
from backend.file_log.segments import SegmentSet
from backend.file_log.sends import SendFiles, SliceRow, SliceRows, decode_sends, encode_sends
from backend.file_log.state import LogQueue, LogState, TopicState
from backend.file_log.storage import Storage
from backend.file_log.topic_row import decode_topic, encode_topic
from backend.progress.codec import decode_progress, encode_progress
from backend.progress.group_progress import Key
from backend.records import QueueRef, TopicInfo
from ddmq_common.errors import DamagedError, DrainingError, NewerFormatError, newer_format
from ddmq_common.hub_timer import HubTimer
from ddmq_common.metrics import catalogue
from ddmq_common.metrics.registry import Registry
from ddmq_common.native_threads import off_hub

MAGIC = b"DDMQCKP1"
VERSION = 1
_FRONT = struct.Struct("<8sI")
_REST = struct.Struct("<IQQqQIIQII")
HEADER_BYTES = _FRONT.size + _REST.size
_ITEM = struct.Struct("<BI")
_BOUNDS = struct.Struct("<qq")
TOPIC, SETTING, PROGRESS, SENDS = 1, 2, 3, 4
SLICE = 256  # items encoded before the hub runs other work


class Checkpoint(NamedTuple):
    """The content of a checkpoint, decoded."""

    position: int
    first_position: int
    state: LogState
    slices: Sequence[SliceRow]  # of idempotency keys; their files are not read yet


class Encoder:
    """Encodes checkpoints of one state, and caches each encoded item until it changes."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._topics: dict[str, tuple[TopicInfo, bytes]] = {}
        self._progress: dict[Key, bytes] = {}
        state.changed_progress.update(key for key, _ in state.progress)

    def encode_changes(self) -> Iterator[None]:
        """Encode changed items, one slice in each step, so that little is left to do for `encode`."""
        changed = self._state.changed_progress
        for _ in range(len(changed) // SLICE):
            self._encode_progress(SLICE)
            yield
        for start in range(0, len(self._state.topics), SLICE):
            for topic in list(islice(self._state.topics.values(), start, start + SLICE)):
                self._topic_item(topic)
            yield

    def encode(self, position: int, first_position: int) -> bytes:
        """Encode the complete file. The state includes everything below the log position `position`."""
        state = self._state
        self._encode_progress(len(state.changed_progress))
        if len(self._progress) > len(state.progress):  # some of the cached progress is deleted
            self._progress = {key: self._progress[key] for key, _ in state.progress}
        items = [self._topic_item(topic) for topic in state.topics.values()]
        if len(self._topics) > len(items):
            self._topics = {name: self._topics[name] for name in state.topics}
        items += [_setting_item(key, value) for key, value in state.settings.items()]
        items += self._progress.values()
        sends = encode_sends(state.sends)
        if sends:
            items.append(_pack_item(SENDS, sends))
        body = b"".join(items)
        rest = _REST.pack(
            VERSION,
            position,
            state.batch_id,
            state.last_ms,
            first_position,
            state.writer_epoch,
            state.last_incarnation,
            len(body),
            google_crc32c.value(body),
            len(items),
        )
        return _FRONT.pack(MAGIC, google_crc32c.value(rest)) + rest + body

    def _topic_item(self, topic: TopicState) -> bytes:
        info, changed = topic.info, self._state.changed_topics
        cached = self._topics.get(info.name)
        if cached is not None and cached[0] is info and info.name not in changed:
            return cached[1]
        changed.discard(info.name)
        item = _topic_item(topic)
        self._topics[info.name] = info, item
        return item

    def _encode_progress(self, count: int) -> None:
        changed, state = self._state.changed_progress, self._state
        for key in [changed.pop() for _ in range(min(count, len(changed)))]:
            progress = state.progress.get(*key)
            if progress is not None:
                self._progress[key] = _pack_item(PROGRESS, encode_progress(*key, progress))


def _pack_item(kind: int, content: bytes) -> bytes:
    return _ITEM.pack(kind, len(content)) + content


def _topic_item(topic: TopicState) -> bytes:
    settings = encode_topic(topic.info)
    head = struct.pack(f"<B{len(topic.name_bytes)}sII", len(topic.name_bytes), topic.name_bytes,
                       topic.info.incarnation, len(settings))  # fmt: skip
    bounds = b"".join([_BOUNDS.pack(queue.min, queue.visible) for queue in topic.queues])
    return _pack_item(TOPIC, head + settings + bounds)


def _setting_item(key: str, value: bytes) -> bytes:
    data = key.encode()
    return _pack_item(SETTING, struct.pack("<I", len(data)) + data + value)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Decode a checkpoint. Raises DamagedError, and NewerFormatError for one of a newer release."""
    try:
        return _decode(data)
    except (struct.error, UnicodeDecodeError, ValueError, IndexError) as error:
        raise DamagedError(f"a checkpoint of {len(data)} bytes does not parse: {error}") from error


def _decode(data: bytes) -> Checkpoint:
    magic, crc = _FRONT.unpack_from(data)
    if magic != MAGIC or google_crc32c.value(data[_FRONT.size : HEADER_BYTES]) != crc:
        raise DamagedError("the checkpoint's header is damaged")
    state = LogState()
    version, position, state.batch_id, state.last_ms, first, epoch, last, length, crc, count = _REST.unpack(
        data[_FRONT.size : HEADER_BYTES]
    )
    body = data[HEADER_BYTES:]
    if version > VERSION:
        raise newer_format("the checkpoint", version, VERSION)
    if version != VERSION or len(body) != length or google_crc32c.value(body) != crc:
        raise DamagedError(f"the checkpoint's body of {len(body)} bytes is damaged, or of another version")
    state.writer_epoch = epoch
    items = list(_iterate_items(body))
    if len(items) != count:
        raise DamagedError(f"the checkpoint has {len(items)} items, its header says {count}")
    slices: list[SliceRow] = []
    for kind, content in items:
        if kind == SENDS:
            slices = decode_sends(content, state.sends)
        else:
            _restore(state, kind, content)
    state.last_incarnation = max(state.last_incarnation, last)
    return Checkpoint(position, first, state, slices)


def _iterate_items(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(body):
        kind, length = _ITEM.unpack_from(body, at)
        at += _ITEM.size
        if at + length > len(body):
            raise ValueError(f"an item of {length} bytes passes the end")
        yield kind, body[at : at + length]
        at += length


def _restore(state: LogState, kind: int, content: bytes) -> None:
    if kind == TOPIC:
        _restore_topic(state, content)
    elif kind == SETTING:
        length = struct.unpack_from("<I", content)[0]
        state.apply_setting(content[4 : 4 + length].decode(), content[4 + length :])
    elif kind == PROGRESS:
        state.progress.put(*decode_progress(content))


def _restore_topic(state: LogState, content: bytes) -> None:
    """Restore a topic and its queues. Oldest offsets may be outdated; `min_at` 0 has them searched again."""
    end = 1 + content[0]
    incarnation, length = struct.unpack_from("<II", content, end)
    name = content[1:end].decode()
    end += 8
    info = decode_topic(name, incarnation, content[end : end + length])
    bounds = islice(_BOUNDS.iter_unpack(content[end + length :]), info.queues)
    queues = [
        LogQueue(QueueRef(name, incarnation, queue_id), low, after)
        for queue_id, (low, after) in enumerate(bounds)
    ]
    state.apply_topic(info, queues)


def load_checkpoint(storage: Storage, directory: str) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest valid checkpoint, and the errors of newer ones. Blocking.

    Raises NewerFormatError, and OSError if a file cannot be opened; an unreadable file counts as damaged.
    """
    errors: list[str] = []
    for name in (names.CHECKPOINT, names.CHECKPOINT_OLD):
        try:
            file = storage.open(f"{directory}/{name}")
        except FileNotFoundError:
            continue
        try:
            return decode_checkpoint(file.pread(file.size(), 0)), errors
        except NewerFormatError:
            raise
        except (DamagedError, OSError) as error:
            errors.append(f"{name}: {error}")
        finally:
            file.close()
    return None, errors


def save_checkpoint(storage: Storage, directory: str, data: bytes) -> None:
    """Write a checkpoint, durable on return; the previous one becomes the old one.

    Blocking. Raises OSError.
    """
    unfinished = f"{directory}/{names.CHECKPOINT_NEW}"
    storage.remove(unfinished)
    file = storage.open(unfinished, write=True)
    try:
        file.pwrite(data, 0)
        file.sync_all()
    finally:
        file.close()
    current = f"{directory}/{names.CHECKPOINT}"
    if names.CHECKPOINT in storage.list(directory):
        storage.rename(current, f"{directory}/{names.CHECKPOINT_OLD}")
    storage.rename(unfinished, current)
    storage.sync_folder(directory)


log = logging.getLogger(__name__)
SLICE_PAUSE_S = 0.001  # between two slices of encoding


class Checkpointer:
    """Writes the checkpoints of one log.

    `floor` is the log position of the older generation; the log from there on must be retained.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        writer: Writer,
        segments: SegmentSet,
        files: QueueFiles,
        tails: Tails,
        index: AttachedIndex,
        position: int,
        metrics: Registry,
    ) -> None:
        self.floor = self.position = position
        self._counts = [metrics.cell(catalogue.LOG_CHECKPOINTS, outcome) for outcome in ("failed", "saved")]
        self._forgotten = metrics.cell(catalogue.LOG_SENDS_FORGOTTEN)
        self._storage = storage
        self._directory = directory
        self._writer = writer
        self._segments = segments
        self._files = files
        self._tails = tails
        self._index = index
        self._sends = SendFiles(storage, directory)
        self._encoder = Encoder(writer.state)
        self._slice_timer = HubTimer()
        self._waiting: list[Callable[[], None]] = []
        self._requested = self._saving = self._failing = self.closed = False

    def request_checkpoint(self, then: Callable[[], None] | None = None) -> None:
        """Write a checkpoint soon, unless the log has not grown since the last; then call `then` in any
        case.
        """
        if then is not None:
            self._waiting.append(then)
        if not self._requested and not self._saving and not self.closed:
            self._requested = True
            self._prepare_slices(self._encoder.encode_changes())

    def _prepare_slices(self, slices: Iterator[None]) -> None:
        """Encode one slice and schedule the next, so that the hub runs other work between; then capture."""
        if next(slices, self) is None and not self.closed:
            self._slice_timer.once(SLICE_PAUSE_S, lambda: self._prepare_slices(slices))
        else:
            self._writer.when_at_rest(self._capture_state)

    def _capture_state(self) -> None:
        self._requested = False
        position = self._writer.durable
        if position == self.position or self.closed:
            self._run_waiting()
            return
        self._saving = True
        data = self._encoder.encode(position, self._segments.first_position)
        chunks, slice_names = self._sends.list_unsaved(self._writer.state.sends)
        self._forgotten.value = self._writer.state.sends.forgotten
        self._index.index.flush()

        def save() -> Sequence[SliceRows]:
            return self._save(data, writes, chunks, slice_names)

        writes = self._tails.list_writes()
        off_hub(save, lambda written, error: self._on_saved(position, written or (), error))

    def _save(
        self, data: bytes, writes: list[Write], chunks: list[SliceRows], slice_names: set[str]
    ) -> Sequence[SliceRows]:
        """Write everything that belongs to a checkpoint; return the rows that are durable in their files.

        Blocking. Raises DrainingError if the log was closed before this began.
        """
        if self.closed:
            raise DrainingError("the log was closed before it began")
        for write in writes:
            self._tails.put(write)
        self._files.sync()
        written = self._sends.write(chunks)
        self._index.index.sync()
        save_checkpoint(self._storage, self._directory, data)
        self._sends.remove_unnamed(slice_names)
        return written

    def _on_saved(self, position: int, written: Sequence[SliceRows], error: Exception | None) -> None:
        self._saving = False
        self._counts[error is None].value += 1
        if error is None:
            self._sends.drop_saved(written)
            self.floor, self.position = self.position, position
        else:
            if not self._failing:
                log.error("the checkpoint at log position %d failed: %s", position, error)
        self._failing = error is not None
        self._run_waiting()

    def _run_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()
