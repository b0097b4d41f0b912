"""The data of a shard of transactions: half messages, and the transactions that they make up. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddmq_client.idl.codes import TransactionOutcome


class HalfSeen(NamedTuple):
    """A half message as far as decisions need it.

    `stored_ms`: when it was stored, on the shard's clock; `prepared_ms`: on the store's. `identity` "": it
    has none. `checksum`: of the body of a message with a key.
    """

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
    """The part of a half message in its transaction, or why it has none."""

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
    """An undecided transaction.

    `began_ms`: on the shard's clock, `prepared_ms`: on the store's. `offsets`: of its messages, ascending.
    `checks`: how often its group was asked. `offered_ms`: since when it waits for its group to poll; 0: it
    does not. `deciding`: the outcome that is being committed. `asking`: a check is being made durable.
    `beyond`: offsets of messages that one commit has no room for.
    """

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
        """Return whether a second half message of one message is an equal copy or a changed one."""
        is_equal = self.identities.get(half.identity, half.checksum) == half.checksum
        return HalfTaken.COPY if is_equal else HalfTaken.CHANGED
