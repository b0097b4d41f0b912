"""Directories with other bytes in them than the log writes: of the release before, of a later one."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c

from backend.file_log.core.layout import FRAME_BYTES, UNSALTED, Frame, Record, Salting
from backend.file_log.core.names import parse_segment
from backend.file_log.core.scan import scan_items
from backend.file_log.start.format_file import read_format
from backend.file_log.storage import Storage

FRAME_VERSION_AT, RECORD_VERSION_AT = 8, 93
Change = Callable[[Frame | Record, bytearray], None]
"""(item, its bytes: of a frame its header, of a record all of it): changed before the CRCs are made."""


def segments(directory: Path) -> list[Path]:
    return [
        path for path in sorted((directory / "commitlog").iterdir()) if parse_segment(path.name) is not None
    ]


def salting_of(directory: Path) -> Salting:
    return read_format(Storage(), str(directory)) or UNSALTED


def rewrite(directory: Path, change: Change, salt: int | None = None) -> None:
    """Change frames and records of a closed log, and make their CRCs anew, from `salt` if one is given."""
    salting = salting_of(directory)
    for path in segments(directory):
        start, data = int(path.name), bytearray(path.read_bytes())
        own = salting.of_segment(start)
        for item in list(scan_items(bytes(data), start, start, start + len(data), own)):
            if not isinstance(item, (Frame, Record)):
                continue
            at = item.position - start
            size = FRAME_BYTES if isinstance(item, Frame) else item.size
            section = data[at : at + size]
            change(item, section)
            _seal(item, section, own if salt is None else salt)
            data[at : at + size] = section
        path.write_bytes(data)


def _seal(item: Frame | Record, section: bytearray, salt: int) -> None:
    if isinstance(item, Frame):
        section[4:8] = struct.pack("<I", google_crc32c.extend(salt, bytes(section[8:])))
        return
    meta = google_crc32c.extend(salt, bytes(section[12 : item.meta_bytes]))
    section[4:12] = struct.pack("<II", meta, google_crc32c.extend(meta, bytes(section[item.meta_bytes :])))


def make_old(directory: Path) -> None:
    """As the release before wrote it: versions 1, no salt, no format file."""

    def old(item: Frame | Record, section: bytearray) -> None:
        section[FRAME_VERSION_AT if isinstance(item, Frame) else RECORD_VERSION_AT] = 1

    rewrite(directory, old, salt=0)
    (directory / "format").unlink()


def tree(directory: Path) -> dict[str, bytes]:
    """Every file with its content, but the lock."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }


def last_batch_id(directory: Path) -> int:
    last_id = 0
    salting = salting_of(directory)
    for path in segments(directory):
        start, data = int(path.name), path.read_bytes()
        for item in scan_items(data, start, start, start + len(data), salting.of_segment(start)):
            if isinstance(item, Frame):
                last_id = item.batch_id
    return last_id


__all__ = ["last_batch_id", "make_old", "rewrite", "salting_of", "segments", "tree"]
