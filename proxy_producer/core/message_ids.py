"""16-byte message ids: 8 bytes drawn once per process start, then 8 bytes counting up.

Unique across restarts and proxies as far as two draws of 64 random bits differ; ascending within one start.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from struct import Struct

PREFIX_BYTES = 8


def message_ids(prefix: bytes) -> Callable[[], bytes]:
    """A maker of ids. `prefix`: 8 random bytes (os.urandom), a new draw at each start."""
    if len(prefix) != PREFIX_BYTES:
        raise ValueError(f"the id prefix has {len(prefix)} bytes; allowed: exactly {PREFIX_BYTES}")
    following = count(1).__next__
    pack = Struct(">Q").pack

    def new_id() -> bytes:
        return prefix + pack(following())

    return new_id
