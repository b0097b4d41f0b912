"""Damage to a RocksDB folder: how files tell of it, where reading goes on behind it, and the part of the
write-ahead log before its first gap.

The log is several files, and a power loss may take the end of one that was not synced and leave the next
one. RocksDB replays both: changes are then there without those before them that they rest on. What was
synced has no gap, for a sync takes the files in their order. So whoever opens a database looks first, and
puts away what comes after a gap.

Just enough of the log's format is read for that. A file is blocks of 32 KiB. A record is one fragment or
several: each has a checksum (4 bytes), its length (2, little-endian), its type (1), and with the types that
say so the number of its file (4). A record holds a batch: its first sequence number (8 bytes, little-endian)
and how many it uses (4). Numbers go on from file to file. Checksums are left to RocksDB: what does not parse
ends a file here, and opening says what is wrong.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ddmq_common.errors import DamagedError


def check_files(folder: Path) -> None:
    """Raise DamagedError if a folder with data has lost its list of tables.

    RocksDB itself would create a new database there, or only report a missing file. A folder whose creation
    was interrupted has no data yet and is accepted.
    """
    try:
        manifest = (folder / "CURRENT").read_text("ascii", "replace").strip()
    except FileNotFoundError:
        manifest = ""
        if not any(file.stat().st_size for pattern in ("*.sst", "*.log") for file in folder.glob(pattern)):
            return
    if not (manifest and (folder / manifest).is_file()):
        raise DamagedError(f"{folder}: damaged: CURRENT names {manifest!r}, which is no list of tables there")


def find_damage_end(readable: Callable[[bytes], bool], last: bytes) -> bytes | None:
    """Return the first readable key after the damage behind `last`, or None.

    It searches by doubling steps, then halves.
    """
    width = len(last) + 8
    top = 1 << (8 * width)
    low = int.from_bytes(last.ljust(width, b"\0"), "big")
    step = 1
    while low + step < top and not readable((low + step).to_bytes(width, "big")):
        low, step = low + step, 2 * step
    high = low + step
    if high >= top:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if readable(middle.to_bytes(width, "big")):
            high = middle
        else:
            low = middle
    return high.to_bytes(width, "big")


_BLOCK = 32 << 10
_HEADER = struct.Struct("<IHB")
_BATCH = struct.Struct("<QI")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_NUMBERED = {5: _FULL, 6: _FIRST, 7: _MIDDLE, 8: _LAST}  # with the number of the file
_OTHER = {9: 7, 10: 7, 11: 11, 130: 7, 131: 11}  # what holds no batch → bytes of its header


def files_after_gap(folder: Path) -> list[Path]:
    """Return the write-ahead log files in `folder` that come after a gap, oldest first. Raises OSError."""
    files = sorted(folder.glob("*.log"), key=lambda path: int(path.stem) if path.stem.isdigit() else -1)
    expected: int | None = None
    for index, path in enumerate(files):
        numbers = read_sequence_range(path)
        if numbers is not None and index and numbers[0] != expected:
            return files[index:]
        if numbers is not None:
            expected = numbers[1]
    return []


def read_sequence_range(path: Path) -> tuple[int, int] | None:
    """Return `[first, next)` sequence numbers of the complete batches at the file's beginning; None without
    any.
    """
    first = following = -1
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        head = b""  # of the batch whose fragments are being read
        while (fragment := _read_fragment(file, at, size)) is not None:
            kind, start, at = fragment
            if kind in (_FULL, _FIRST):
                head = b""
            if kind and len(head) < _BATCH.size:
                file.seek(start)
                head += file.read(min(_BATCH.size - len(head), at - start))
            if kind in (_FULL, _LAST) and len(head) == _BATCH.size:
                number, count = _BATCH.unpack(head)
                first = number if first < 0 else first
                following = number + count
    return None if first < 0 else (first, following)


def _read_fragment(file: BinaryIO, at: int, size: int) -> tuple[int, int, int] | None:
    """Read the fragment at `at`; return (kind or 0, start and end of its content), or None at the file's
    end."""
    remaining = _BLOCK - at % _BLOCK
    if remaining < _HEADER.size:
        at += remaining
        remaining = _BLOCK
    file.seek(at)
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    _, length, kind = _HEADER.unpack(header)
    header_bytes = _OTHER.get(kind, 11 if kind in _NUMBERED else _HEADER.size)
    is_valid_kind = 0 < kind <= max(_NUMBERED) or kind in _OTHER
    if not is_valid_kind or header_bytes + length > remaining or at + header_bytes + length > size:
        return None
    return (0 if kind in _OTHER else _NUMBERED.get(kind, kind)), at + header_bytes, at + header_bytes + length
