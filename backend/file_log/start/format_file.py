"""Determines a directory's format before anything in it is changed, and writes its format file.

The format file is missing in a new directory and in one of format 1, whose segments have no salt; they remain
readable, and new frames go into a new segment. If the file is damaged, the salt is computed from the first
frame of a segment, whose position no client can choose. Blocks.
"""

from __future__ import annotations

import secrets

import google_crc32c
import msgspec

from backend.file_log.core import names
from backend.file_log.core.layout import (
    FRAME_BYTES,
    FRAME_VERSION,
    RECORD_BYTES,
    UNSALTED_VERSION,
    Frame,
    Salting,
    salt_of,
    unpack_record,
)
from backend.file_log.core.scan import scan_frames
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError, StorageError, newer_format

HEAD_BYTES = 1 << 16  # the beginning of a segment, with its first frame header and record
SEARCH_BYTES = 4 << 20  # the beginning of a segment that is searched for a frame without a salt


FORMAT_VERSION = 2


class _Row(msgspec.Struct, forbid_unknown_fields=False):
    format: int
    salt: int
    since: int


class _Version(msgspec.Struct):
    format: int


def encode_format(salting: Salting) -> bytes:
    """Encode the format file: a line of JSON, and a line with its CRC."""
    line = msgspec.json.encode(_Row(FORMAT_VERSION, *salting)) + b"\n"
    return line + b"%08x\n" % google_crc32c.value(line)


def decode_format(data: bytes) -> Salting:
    """Decode the format file. Raises DamagedError, and NewerFormatError for one of a newer release."""
    line, end, rest = data.partition(b"\n")
    if rest != b"%08x\n" % google_crc32c.value(line + end):
        raise DamagedError(f"the format file, {data[:200]!r}, does not match its CRC")
    try:
        version = msgspec.json.decode(line, type=_Version).format
        if version > FORMAT_VERSION:
            raise newer_format("the directory (file format)", version, FORMAT_VERSION)
        row = msgspec.json.decode(line, type=_Row)
    except msgspec.MsgspecError as error:
        raise DamagedError(f"the format file, {data[:200]!r}, does not parse: {error}") from error
    if not 0 < row.salt < 1 << 32 or row.since < 0:
        raise DamagedError(f"the format file names salt {row.salt} since {row.since}")
    return Salting(row.salt, row.since)


def read_format(storage: Storage, directory: str) -> Salting | None:
    """Read the format file; None if there is none.

    Raises NewerFormatError, and DamagedError for a damaged or unreadable file.
    """
    try:
        file = storage.open(f"{directory}/{names.FORMAT}")
    except FileNotFoundError:
        return None
    try:
        return decode_format(file.pread(file.size(), 0))
    except OSError as error:
        raise DamagedError(f"the format file cannot be read: {error}") from error
    finally:
        file.close()


def write_format(storage: Storage, directory: str, salting: Salting) -> None:
    """Write the format file, durable on return. Raises OSError.

    First creates a folder that stops a program of format 1, which does not know the file and would truncate
    frames that it cannot read: the program takes the folder for an unfinished segment, cannot remove it, and
    stops before it has changed anything.
    """
    storage.make_folder(f"{directory}/{names.OLDER_STOPS_HERE}")
    path = f"{directory}/{names.FORMAT}"
    storage.remove(path + names.UNFINISHED)
    file = storage.open(path + names.UNFINISHED, write=True)
    try:
        file.pwrite(encode_format(salting), 0)
        file.sync_all()
    finally:
        file.close()
    storage.rename(path + names.UNFINISHED, path)
    storage.sync_folder(directory)


def new_salt() -> int:
    """Return a random salt, from 1 to 2^32 − 1."""
    return 1 + secrets.randbelow((1 << 32) - 1)


def find_format(storage: Storage, directory: str) -> tuple[Salting | None, str]:
    """Determine the format, and describe the defect of its file. None: a new directory, or one of format 1.

    Raises StorageError if it cannot be determined, NewerFormatError for a newer release's format.
    """
    defect = ""
    try:
        salting = read_format(storage, directory)
    except DamagedError as error:
        salting, defect = None, str(error)
    if salting is not None:
        return salting, ""
    salting = salting_without_file(storage, directory)
    if salting is not None and not defect:
        defect = "the format file is missing; it is restored from the commit log"
    return salting, defect


def salting_without_file(storage: Storage, directory: str) -> Salting | None:
    """Compute the salt from the segments; None if none of them has one.

    Raises StorageError if that is undecided, and NewerFormatError.
    """
    folder = f"{directory}/{names.COMMIT_LOG}"
    file_names = storage.list(folder)
    files = {start: name for name in file_names if (start := names.parse_segment(name)) is not None}
    files |= {
        range_[0]: name
        for name in file_names
        if (range_ := names.parse_dead_letter_segment(name)) is not None
    }
    starts = sorted(files)
    unsalted = unknown = False
    since = starts[0] if starts else 0
    for start, after in zip(starts, [*starts[1:], 0], strict=False):
        file = storage.open(f"{folder}/{files[start]}")
        try:
            salt = _salt_in(file, start)
            if salt:
                return Salting(salt, since)
            if salt == 0 or _any_unsalted(file, start):
                unsalted, since = True, after
            elif _is_begun(file):
                unknown = True
        finally:
            file.close()
    if unknown and not unsalted:
        raise StorageError(
            f"{directory}/{names.FORMAT} is missing or damaged, and no segment in {folder} begins with a"
            " valid frame: nothing in the log can be checked without it; restore the file from a copy of the"
            " directory; nothing was changed"
        )
    return None


def _salt_in(file: File, start: int) -> int | None:
    """Return the salt of the segment in this file, 0 for none, or None if its first frame is not valid."""
    data = file.salvage(HEAD_BYTES, 0)
    version_and_salt = salt_of(data, start)
    if version_and_salt is None:
        return None
    version, salt = version_and_salt
    if version > FRAME_VERSION:
        raise newer_format(f"the commit log at position {start}", version, FRAME_VERSION)
    if version == UNSALTED_VERSION:
        return 0 if salt == 0 else None
    record = unpack_record(data, FRAME_BYTES, start + FRAME_BYTES, salt) if salt else None
    return None if record is None or len(data) < FRAME_BYTES + RECORD_BYTES else salt


def _is_begun(file: File) -> bool:
    """Return whether the file has content: a byte other than zero at its beginning, or a beginning that
    cannot be read."""
    try:
        return bool(file.pread(HEAD_BYTES, 0).strip(b"\0"))
    except OSError:
        return True


def _any_unsalted(file: File, start: int) -> bool:
    data = file.salvage(SEARCH_BYTES, 0)
    return any(isinstance(item, Frame) for item in scan_frames(data, start, start, start + len(data)))
