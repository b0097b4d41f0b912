"""Finding out a directory's format before anything in it is touched, and writing its format file.

The format file may be missing: of a new directory, or of one of format 1 (its segments have no salt, and go
on being read; what is written now goes into a new segment). It may be damaged: then the
salt is worked out from the first frame of a segment, which stands where no client chose. Blocks.
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
from backend.file_log.core.scan import frames
from backend.file_log.storage import File, Storage
from ddmq_common.errors import DamagedError, StorageError, newer_format

HEAD_BYTES = 1 << 16  # at the beginning of a segment: the first frame header and record are in it
SEARCH_BYTES = 4 << 20  # from the beginning of a segment on, for any frame without a salt


FORMAT_VERSION = 2


class _Row(msgspec.Struct, forbid_unknown_fields=False):
    format: int
    salt: int
    since: int


class _Version(msgspec.Struct):
    format: int


def encode_format(salting: Salting) -> bytes:
    """The file: a line of JSON, and a line with its CRC."""
    line = msgspec.json.encode(_Row(FORMAT_VERSION, *salting)) + b"\n"
    return line + b"%08x\n" % google_crc32c.value(line)


def decode_format(data: bytes) -> Salting:
    """The other way. Raises DamagedError, and NewerFormatError for what a newer release wrote."""
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
    """What the format file says; None without one. Raises DamagedError, also for one that cannot be read,
    and NewerFormatError."""
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
    """Durable on return. Raises OSError.

    Before it, a folder is made over which a program of format 1, which does not know the file, stumbles when
    it opens the directory: it takes it for an unfinished segment, cannot remove it, and stops before it has
    changed anything; it would cut off what it cannot read.
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
    """1 to 2^32 − 1, by chance."""
    return 1 + secrets.randbelow((1 << 32) - 1)


def find_format(storage: Storage, directory: str) -> tuple[Salting | None, str]:
    """The format, and what was wrong with its file. None: a new directory, or one of format 1.

    Raises StorageError when it cannot be found out, NewerFormatError for what a newer release wrote.
    """
    fault = ""
    try:
        found = read_format(storage, directory)
    except DamagedError as error:
        found, fault = None, str(error)
    if found is not None:
        return found, ""
    found = salting_without_file(storage, directory)
    if found is not None and not fault:
        fault = "the format file is missing; it is made again from what the commit log says"
    return found, fault


def salting_without_file(storage: Storage, directory: str) -> Salting | None:
    """What the segments say; None: none of them has a salt. Raises StorageError, and NewerFormatError."""
    folder = f"{directory}/{names.COMMIT_LOG}"
    found_names = storage.list(folder)
    files = {start: name for name in found_names if (start := names.parse_segment(name)) is not None}
    files |= {kept[0]: name for name in found_names if (kept := names.parse_kept(name)) is not None}
    starts = sorted(files)
    unsalted = unknown = False
    since = starts[0] if starts else 0
    for start, after in zip(starts, [*starts[1:], 0], strict=False):
        file = storage.open(f"{folder}/{files[start]}")
        try:
            found = _salt_in(file, start)
            if found:
                return Salting(found, since)
            if found == 0 or _any_unsalted(file, start):
                unsalted, since = True, after
            elif _is_begun(file):
                unknown = True
        finally:
            file.close()
    if unknown and not unsalted:
        raise StorageError(
            f"{directory}/{names.FORMAT} is missing or damaged, and no segment in {folder} begins with a"
            " sound frame: nothing in the log can be checked without it; put the file back from a copy of the"
            " directory; nothing was changed"
        )
    return None


def _salt_in(file: File, start: int) -> int | None:
    """The salt of the segment in this file, 0 for none; None when its first frame does not tell."""
    data = file.salvage(HEAD_BYTES, 0)
    found = salt_of(data, start)
    if found is None:
        return None
    version, salt = found
    if version > FRAME_VERSION:
        raise newer_format(f"the commit log at position {start}", version, FRAME_VERSION)
    if version == UNSALTED_VERSION:
        return 0 if salt == 0 else None
    record = unpack_record(data, FRAME_BYTES, start + FRAME_BYTES, salt) if salt else None
    return None if record is None or len(data) < FRAME_BYTES + RECORD_BYTES else salt


def _is_begun(file: File) -> bool:
    """Whether anything but zeros stands where the first frame belongs; True when nobody can tell."""
    try:
        return bool(file.pread(HEAD_BYTES, 0).strip(b"\0"))
    except OSError:
        return True


def _any_unsalted(file: File, start: int) -> bool:
    data = file.salvage(SEARCH_BYTES, 0)
    return any(isinstance(item, Frame) for item in frames(data, start, start, start + len(data)))
