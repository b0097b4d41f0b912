"""Encodes progress deltas and complete progress, in the formats of docs/formats-progress.md.

Both start with a version byte and have no checksum: the record that contains them has one. Decoding is
strict: truncated, additional or out-of-range bytes and other versions raise DamagedError (a newer version:
NewerFormatError), and no bytes can cause more work or memory than their length allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from backend.progress.ack_map import OFFSET_END, PAGE_BITS, PAGE_FULL, PAGE_OFFSETS, AckMap, page_ranges
from backend.progress.group_progress import Fence, GroupProgress, check_delta
from backend.records import ProgressDelta, QueueRef
from ddmq_common.delivery import varint, zigzag
from ddmq_common.errors import DamagedError, newer_format

DELTA_VERSION = 1
PROGRESS_VERSION = 1
_PAGE_BYTES = PAGE_OFFSETS // 8
_FULL, _BITMAP, _RANGES = 0, 1, 2  # kinds of an encoded page or range of pages
_RANGES_MAX = _PAGE_BYTES // 4  # a page with more ranges than this is written as a bitmap


def encode_delta(delta: ProgressDelta) -> bytes:
    """Encode one delta; ranges and attempts keep their order. Raises ValueError like check_delta."""
    check_delta(delta)
    fields = [b"\x01", _encode_queue(delta.group, delta.queue), varint(delta.epoch), varint(delta.generation)]
    fields.append(varint(0 if delta.reset_to is None else delta.reset_to + 1))
    fields.append(varint(len(delta.finished)))
    before = 0
    for start, end in delta.finished:
        fields.append(zigzag(start - before))
        fields.append(varint(end - start))
        before = end
    _encode_attempts(fields, delta.attempts)
    return b"".join(fields)


def decode_delta(data: bytes) -> ProgressDelta:
    """Decode a delta. Raises DamagedError."""
    reader = _Reader(data, "a progress delta", DELTA_VERSION)
    group, queue = reader.read_queue()
    epoch, generation = reader.read_number(), reader.read_number()
    reset = reader.read_number()
    finished = _decode_finished(reader)
    attempts = _decode_attempts(reader)
    if reset and (finished or attempts):
        raise reader.make_error("a reset that also finishes")
    reader.check_end()
    return ProgressDelta(group, queue, epoch, generation, finished, attempts, reset - 1 if reset else None)


def encode_progress(group: str, queue: QueueRef, progress: GroupProgress) -> bytes:
    """Encode a group's complete progress on one queue."""
    acks = progress.acks
    chunks = acks.list_pages()
    fields = [
        b"\x01",
        _encode_queue(group, queue),
        varint(progress.fence.epoch),
        varint(progress.fence.generation),
    ]
    fields += (varint(acks.committed + 1 if progress.started else 0), varint(len(chunks)))
    before = 0
    for first, after, bits in chunks:
        fields.append(varint(first - before))
        fields.append(_encode_pages(first, after, bits))
        before = after
    _encode_attempts(fields, sorted(acks.attempts.items()))
    return b"".join(fields)


def decode_progress(data: bytes) -> tuple[str, QueueRef, GroupProgress]:
    """Decode (group, queue, progress). Raises DamagedError."""
    reader = _Reader(data, "a group progress", PROGRESS_VERSION)
    group, queue = reader.read_queue()
    progress = GroupProgress()
    progress.fence = Fence(reader.read_number(), reader.read_number())
    committed = reader.read_number()
    progress.started = committed > 0
    progress.acks = acks = AckMap(max(0, committed - 1))
    page = 0
    for _ in range(reader.read_count()):
        page += reader.read_number()
        page = _decode_pages(reader, acks, page)
    for offset, attempts in _decode_attempts(reader):
        if acks.is_finished(offset) or offset in acks.attempts:
            raise reader.make_error(f"attempts of offset {offset}, finished or twice")
        acks.record_attempts(offset, attempts)
    reader.check_end()
    return group, queue, progress


@lru_cache(maxsize=4096)
def _encode_queue(group: str, queue: QueueRef) -> bytes:
    group_bytes, topic = group.encode(), queue.topic.encode()
    return b"".join(
        (
            varint(len(group_bytes)),
            group_bytes,
            varint(len(topic)),
            topic,
            varint(queue.incarnation),
            varint(queue.queue_id),
        )
    )


def _encode_attempts(fields: list[bytes], attempts: Sequence[tuple[int, int]]) -> None:
    fields.append(varint(len(attempts)))
    before = 0
    for offset, count in attempts:
        if not (0 <= offset < OFFSET_END and 0 < count <= OFFSET_END):
            raise ValueError(
                f"{count} attempts of offset {offset}: allowed are at least 1, of an offset >= 0"
            )
        fields.append(zigzag(offset - before))
        fields.append(varint(count))
        before = offset


def _decode_finished(reader: _Reader) -> tuple[tuple[int, int], ...]:
    ranges = []
    before = 0
    for _ in range(reader.read_count()):
        start = before + reader.read_signed()
        before = start + reader.read_number()
        if not 0 <= start < before <= OFFSET_END:
            raise reader.make_error(f"range [{start}, {before})")
        ranges.append((start, before))
    return tuple(ranges)


def _decode_attempts(reader: _Reader) -> tuple[tuple[int, int], ...]:
    pairs = []
    offset = 0
    for _ in range(reader.read_count()):
        offset += reader.read_signed()
        count = reader.read_number()
        if not 0 <= offset < OFFSET_END or count == 0:
            raise reader.make_error(f"{count} attempts of offset {offset}")
        pairs.append((offset, count))
    return tuple(pairs)


def _encode_pages(first: int, after: int, bits: int) -> bytes:
    if bits == PAGE_FULL:
        return b"\x00" + varint(after - first)
    if (bits & ~(bits << 1)).bit_count() > _RANGES_MAX:
        return b"\x01" + bits.to_bytes(_PAGE_BYTES, "little")
    ranges = page_ranges(first, after, bits)
    fields = [b"\x02", b""]
    before = first << PAGE_BITS
    for start, end in ranges:
        fields.append(varint(start - before))
        fields.append(varint(end - start))
        before = end
    fields[1] = varint(len(fields) // 2 - 1)
    return b"".join(fields)


def _decode_pages(reader: _Reader, acks: AckMap, page: int) -> int:
    """Decode one page or range of pages into `acks`; return the page after it."""
    kind = reader.read_byte()
    if kind == _BITMAP:
        bits = int.from_bytes(reader.read_bytes(_PAGE_BYTES), "little")
        if bits == 0:
            raise reader.make_error(f"page {page} is empty")
        lowest = (page << PAGE_BITS) + (bits & -bits).bit_length() - 1
        _check_range(reader, acks, lowest, lowest + 1, page + 1)
        acks.put_page(page, bits)
        return page + 1
    if kind == _FULL:
        after = page + reader.read_number()
        _check_range(reader, acks, page << PAGE_BITS, after << PAGE_BITS, after)
        acks.finish([(page << PAGE_BITS, after << PAGE_BITS)])
        return after
    if kind != _RANGES:
        raise reader.make_error(f"pages of kind {kind}")
    at = page << PAGE_BITS
    for _ in range(reader.read_count()):
        start = at + reader.read_number()
        at = start + reader.read_number()
        _check_range(reader, acks, start, at, page + 1)
        acks.finish([(start, at)])
    return page + 1


def _check_range(reader: _Reader, acks: AckMap, start: int, end: int, after: int) -> None:
    """Raise DamagedError unless a range is not empty, above the committed offset and below page `after`."""
    if not acks.committed < start < end <= min(after << PAGE_BITS, OFFSET_END):
        raise reader.make_error(
            f"finished range [{start}, {end}), committed {acks.committed}, page after {after}"
        )


class _Reader:
    """Reads values from bytes; every defect raises a DamagedError that names the position."""

    def __init__(self, data: bytes, what: str, version: int) -> None:
        self._data = data
        self._at = 0
        self._what = what
        stored = self.read_byte()
        if stored > version:
            raise newer_format(what, stored, version)
        if stored != version:
            raise self.make_error(f"version {stored}, this program knows {version}")

    def make_error(self, reason: str) -> DamagedError:
        return DamagedError(f"{self._what} of {len(self._data)} bytes does not parse at {self._at}: {reason}")

    def read_byte(self) -> int:
        at = self._at
        if at >= len(self._data):
            raise self.make_error("1 byte expected, 0 are left")
        self._at = at + 1
        return self._data[at]

    def read_bytes(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise self.make_error(f"{length} bytes expected, {len(self._data) - self._at} are left")
        data = self._data[self._at : end]
        self._at = end
        return data

    def read_number(self) -> int:
        """Read a varint below 2**63 in its shortest form."""
        number = self._varint()
        if number > OFFSET_END:
            raise self.make_error(f"number {number} above 2**63 - 1")
        return number

    def read_signed(self) -> int:
        """Read a signed number in zigzag form."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        byte = self.read_byte()
        number, shift = byte & 127, 7
        while byte > 127:
            byte = self.read_byte()
            number |= (byte & 127) << shift
            shift += 7
            if shift > 70 or byte == 0:
                raise self.make_error("number too long, or padded")
        return number

    def read_count(self) -> int:
        """Read a count of items that have at least two bytes each.

        Damaged counts cannot cause a long loop.
        """
        number = self.read_number()
        if number * 2 > len(self._data) - self._at:
            raise self.make_error(f"{number} entries in {len(self._data) - self._at} bytes")
        return number

    def read_text(self) -> str:
        try:
            return self.read_bytes(self.read_number()).decode()
        except UnicodeDecodeError as error:
            raise self.make_error(f"not UTF-8: {error}") from error

    def read_queue(self) -> tuple[str, QueueRef]:
        group = self.read_text()
        return group, QueueRef(self.read_text(), self.read_number(), self.read_number())

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise self.make_error(f"{len(self._data) - self._at} bytes follow")
