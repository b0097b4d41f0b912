"""Idempotency keys as the log is opened: what its records say, and what their files hold of those before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from backend.file_log.core.layout import RECORD_BYTES, Frame, Record, RecordKind
from backend.file_log.core.scan import Bad
from backend.file_log.segments import SegmentSet
from backend.file_log.sends import Found, SendFiles, SliceRow
from backend.idempotency import KnownSends
from ddmq_common.errors import DamagedError
from ddmq_common.send_identity import IDENTITY, is_key

log = logging.getLogger(__name__)
Items = Callable[[int, int], Iterator[Frame | Record | Bad]]


def apply_identity(record: Record, known: KnownSends) -> None:
    """A stored message may say who it is. Raises DamagedError."""
    if len(record.meta) == RECORD_BYTES + record.topic_bytes + record.key_bytes:
        return
    identity = record.system.get(IDENTITY)
    if identity is None:
        return
    place = record.message_id, record.offset, record.queue_id, record.incarnation, record.stored_ms
    try:
        known.restore(identity, *place)
    except ValueError as error:
        raise DamagedError(f"identity {identity[:100]!r} of a send: {error}") from error


def forget_before(known: KnownSends, items: Iterator[Frame | Record | Bad]) -> None:
    """What was stored before the first frame of `items` is lost, also who had stored it."""
    known.forgotten_ms = next((one.stored_ms for one in items if isinstance(one, Frame)), known.forgotten_ms)


def load_keys(
    known: KnownSends,
    files: SendFiles,
    slices: Sequence[SliceRow],
    now_ms: int,
    found: Found,
    segments: SegmentSet,
    items: Items,
    end: int,
) -> None:
    """Those of records below the log position `end`: as their files hold them, and what is missing there from
    the log. `now_ms`: the newest store time."""
    if files.load(known, slices, now_ms - known.ahead_ms, found):
        return
    added = 0
    for item in items(_window_start(segments, items, end, now_ms - known.window_ms), end):
        if isinstance(item, Record) and _is_missing(item, known):  # one after the other: there may be many
            apply_identity(item, known)
            added += 1
    log.warning("%d idempotency keys of the last %d ms that their files lack were found in the log; others"
                " are lost: what is sent with them is stored again", added, known.window_ms)  # fmt: skip


def _window_start(segments: SegmentSet, items: Items, end: int, since_ms: int) -> int:
    """The log position of the last segment below `end` that begins with a frame from before `since_ms`, else
    of the first one."""
    for segment in reversed(segments.segments):
        within = items(segment.start, min(segment.end, end)) if segment.start < end else ()
        first = next((one.stored_ms for one in within if isinstance(one, Frame)), since_ms)
        if first < since_ms:
            return segment.start
    return segments.starts[0] if segments.segments else end


def _is_missing(record: Record, known: KnownSends) -> bool:
    """A key that is not known; later ones of the same key go before it."""
    identity = record.system.get(IDENTITY, "") if record.kind == RecordKind.MESSAGE else ""
    return is_key(identity) and not known.has_key(identity, record.stored_ms)
