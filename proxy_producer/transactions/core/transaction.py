"""What a shard of transactions consists of: half messages as they are seen, and the transactions that they
make up. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddmq_client.idl.codes import TransactionOutcome


class HalfSeen(NamedTuple):
    """A half message as far as decisions need it. `stored_ms`: when it was stored, on the shard's clock;
    `prepared_ms`: on the store's. `identity` "": it says nothing. `checksum`: of a key's body."""

    offset: int
    transaction: bytes
    group: str
    stored_ms: int
    size: int
    identity: str = ""
    check_after_ms: int = -1
    checksum: str = ""
    prepared_ms: int = 0


class HalfTaken(Enum):
    """What a half message is."""

    PART = "part"
    COPY = "copy"  # of one that is a part already
    CHANGED = "copy with another body"
    ENDED = "ended"  # its transaction has ended
    FOREIGN = "foreign"  # its transaction is another group's
    LATE = "late"  # its transaction is being decided
    LARGE = "large"  # its transaction has as many as it can have; it can only be rolled back
    AHEAD = "ahead"  # others before it are not taken in yet
    LEFT_OVER = "left over"  # its transaction is a dead letter, without it: it has to follow


class OpenTransaction:
    """One that is not decided. `began_ms`: on the shard's clock, `prepared_ms` on the store's. `offsets`: of
    its messages, ascending. `checks`: how often it was asked about. `offered_ms`: since when it waits to be
    asked about; 0: it does not. `deciding`: what it is to become. `asking`: a check is being made durable.
    `beyond`: offsets of messages that one commit has no room for."""

    __slots__ = (
        "asking", "began_ms", "beyond", "checks", "deciding", "due_ms", "group", "id", "identities", "late",
        "offered_ms", "offsets", "prepared_ms", "size",
    )  # fmt: skip

    def __init__(self, transaction: bytes, group: str, began_ms: int, prepared_ms: int) -> None:
        self.id = transaction
        self.group = group
        self.began_ms = began_ms
        self.prepared_ms = prepared_ms
        self.offsets: list[int] = []
        self.size = 0
        self.identities: dict[str, str] = {}  # of its messages, with the checksums
        self.checks = 0
        self.due_ms = 0
        self.offered_ms = 0
        self.deciding: TransactionOutcome | None = None
        self.asking = False
        self.late: list[HalfSeen] = []
        self.beyond: list[int] = []

    def copy(self, half: HalfSeen) -> HalfTaken:
        """What a second one of a message is."""
        same = self.identities.get(half.identity, half.checksum) == half.checksum
        return HalfTaken.COPY if same else HalfTaken.CHANGED
