"""What a lookup or a seal reports when a checksum fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class IndexDamage(NamedTuple):
    """A piece whose checksum failed; it was not served."""

    segment_start: int
    file: str  # name in the index folder
    offset: int  # where the piece starts, bytes
    what: str  # header, body, page


OnDamage = Callable[[IndexDamage], None]
