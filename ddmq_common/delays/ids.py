"""The id of an occurrence: `timestamp-type-expire-times-timed-interval-shard-uuid`, all text.

An add is answered with the id of occurrence 0; occurrence k carries the same id with its own timestamp and
timed = k. Which message is meant is said by the uuid alone: the other groups make the id readable and let a
cancel be checked and routed without looking anything up. Rules:
* timestamp and expire have ten digits, the type one; times, timed and interval are whole numbers.
* The shard is a stable, non-negative hash of the uuid modulo the shards. Old servers let it go negative, so
  such an id parses (its minus sign stands after the separating one), and the caller refuses it by its range.
* A uuid is 36 characters 8-4-4-4-12 of [0-9a-z]. Not all of these are hexadecimal: `uuid_bytes` gives 16
  bytes for any of them, and the same bytes as the uuid's own value where it is hexadecimal.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import NamedTuple
from zlib import crc32

_UUID = rb"[0-9a-z]{8}-[0-9a-z]{4}-[0-9a-z]{4}-[0-9a-z]{4}-[0-9a-z]{12}"
_UUID_ONLY = re.compile(_UUID + rb"\Z")
_ID = re.compile(
    rb"([0-9]{10})-([0-9])-([0-9]{10})-([0-9]{1,19})-([0-9]{1,19})-([0-9]{1,19})-(-?[0-9]{1,9})-("
    + _UUID
    + rb")\Z"
)
ID_BYTES_MAX = 137
EXPIRE_AFTER_S = 172_800
"""What expire of a one-shot (type 2) is after its timestamp."""


class DelayId(NamedTuple):
    """The groups of an id. Times are epoch seconds."""

    timestamp_s: int
    kind: int
    expire_s: int
    times: int
    timed: int
    interval_s: int
    shard: int
    uuid: str

    def text(self) -> str:
        """The id as it stands on the wire and as the key of a delivery."""
        return (
            f"{self.timestamp_s:010d}-{self.kind}-{self.expire_s:010d}-{self.times}-{self.timed}"
            f"-{self.interval_s}-{self.shard}-{self.uuid}"
        )


def parse_delay_id(text: bytes) -> DelayId | None:
    """The groups of an id, or None. The type and the shard are not checked for their range."""
    if len(text) > ID_BYTES_MAX:
        return None
    groups = _ID.match(text)
    if groups is None:
        return None
    timestamp, kind, expire, times, timed, interval, shard = map(int, groups.groups()[:7])
    return DelayId(timestamp, kind, expire, times, timed, interval, shard, groups[8].decode())


def is_uuid(text: bytes) -> bool:
    """Whether `text` has a uuid's shape: 8-4-4-4-12 digits and lower-case letters."""
    return _UUID_ONLY.match(text) is not None


def shard_of(uuid: str, shards: int) -> int:
    """The shard in [0, shards) that keeps this uuid; the same in every process and version."""
    return crc32(uuid.encode()) % shards


def uuid_bytes(uuid: str) -> bytes:
    """The 16 bytes under which a uuid is kept; with other letters than a to f it is hashed."""
    digits = uuid.replace("-", "")
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if found and found.hex() == digits and len(found) == 16:
        return found
    return blake2b(uuid.encode(), digest_size=16).digest()
