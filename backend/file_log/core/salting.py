"""The directory's format file: its version, and the salt of its commit log (docs/formats.md).

The salt is where the CRCs of frames and records start. It is random, it leaves the machine nowhere, so no
byte that a client sends can be taken for a frame or record when recovery looks for the next sound one.
Segments that start before `since` were written without one (salt 0). Pure: bytes in and out.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import msgspec

from ddmq_common.errors import DamagedError, newer_format

FORMAT_VERSION = 2


class Salting(NamedTuple):
    """Of one directory. `salt`: 1 to 2^32 − 1."""

    salt: int
    since: int  # log position: where the first segment with it starts

    def of_segment(self, start: int) -> int:
        """The salt of the segment that starts at this log position; 0: it has none."""
        return self.salt if start >= self.since else 0


UNSALTED = Salting(0, 0)


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
