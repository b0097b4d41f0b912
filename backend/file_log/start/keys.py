"""Restores idempotency keys while the log is opened, from their files and from the records of the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from backend.file_log.core.layout import RECORD_BYTES, Frame, Record, RecordKind
from backend.file_log.core.scan import Bad
from backend.file_log.segments import SegmentSet
from backend.file_log.sends import OnDamage, SendFiles, SliceRow
from backend.idempotency import StoredSends
from ddmq_common.errors import DamagedError
from ddmq_common.send_identity import IDENTITY, is_key

log = logging.getLogger(__name__)
Items = Callable[[int, int], Iterator[Frame | Record | Bad]]


def apply_identity(record: Record, sends: StoredSends) -> None:
    """Restore the identity of a stored message, if it has one. Raises DamagedError."""
    if len(record.meta) == RECORD_BYTES + record.topic_bytes + record.key_bytes:
        return
    identity = record.system.get(IDENTITY)
    if identity is None:
        return
    location = record.message_id, record.offset, record.queue_id, record.incarnation, record.stored_ms
    try:
        sends.restore(identity, *location)
    except ValueError as error:
        raise DamagedError(f"identity {identity[:100]!r} of a send: {error}") from error


def forget_before(sends: StoredSends, items: Iterator[Frame | Record | Bad]) -> None:
    """Record that identities from before the first frame of `items` are lost."""
    sends.forgotten_ms = next(
        (frame.stored_ms for frame in items if isinstance(frame, Frame)), sends.forgotten_ms
    )


def load_keys(
    sends: StoredSends,
    files: SendFiles,
    slices: Sequence[SliceRow],
    now_ms: int,
    on_damage: OnDamage,
    segments: SegmentSet,
    items: Items,
    end: int,
) -> None:
    """Load the keys of records below the log position `end`, from their files and, if missing there, from the
    log.

    `now_ms`: the newest store time.
    """
    if files.load(sends, slices, now_ms - sends.ahead_ms, on_damage):
        return
    added = 0
    for item in items(_window_start(segments, items, end, now_ms - sends.window_ms), end):
        if isinstance(item, Record) and _is_missing(item, sends):  # one at a time: there may be many
            apply_identity(item, sends)
            added += 1
    log.warning("restored %d idempotency keys of the last %d ms, which their files lack, from the log; others"
                " are lost: repeated sends with them are stored again", added, sends.window_ms)  # fmt: skip


def _window_start(segments: SegmentSet, items: Items, end: int, since_ms: int) -> int:
    """Return the start of the last segment below `end` whose first frame is older than `since_ms`.

    Returns the start of the first segment if there is no such segment.
    """
    for segment in reversed(segments.segments):
        within = items(segment.start, min(segment.end, end)) if segment.start < end else ()
        first = next((frame.stored_ms for frame in within if isinstance(frame, Frame)), since_ms)
        if first < since_ms:
            return segment.start
    return segments.starts[0] if segments.segments else end


def _is_missing(record: Record, sends: StoredSends) -> bool:
    """Return whether a record has a key that is not restored yet; a later send with the key counts
    instead.
    """
    identity = record.system.get(IDENTITY, "") if record.kind == RecordKind.MESSAGE else ""
    return is_key(identity) and not sends.has_key(identity, record.stored_ms)
