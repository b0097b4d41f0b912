"""The data of a shard of transactions: half messages, and the transactions that they make up. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddmq_client.idl.codes import TransactionOutcome


class HalfFacts(NamedTuple):
    """The facts of a half message that decisions need.

    `stored_ms`: its store time on the shard's clock; `prepared_ms`: on the store's. `identity`: "" if it has
    none. `checksum`: that of the body, for a message with a key. `sender`: the identity that prepared it.
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
    sender: str = ""


class HalfVerdict(Enum):
    """The role of a half message in its transaction, or the reason why it has none."""

    MEMBER = "part"
    COPY = "copy"  # of one that is a part already
    CHANGED = "copy with another body"
    DECIDED = "ended"  # its transaction has ended
    FOREIGN = "foreign"  # its transaction is another group's
    LATE = "late"  # its transaction is being decided
    LARGE = "large"  # its transaction is full and can only be rolled back
    AHEAD = "ahead"  # messages before it have not been read yet
    LEFT_OVER = "left over"  # its transaction is a dead letter already: it must follow


class OpenTransaction:
    """A transaction that is neither committed nor rolled back yet. `sender`: the identity that began it.

    `began_ms`: on the shard's clock; `prepared_ms`: on the store's. `offsets`: of its messages, ascending.
    `checks`: how often its group was asked. `offered_ms`: since when it is offered to its group; 0: it is
    not. `deciding`: the outcome that is being committed. `is_checking`: a check is being made durable.
    `beyond`: offsets of messages that do not fit into one commit.
    """

    __slots__ = (
        "began_ms",
        "beyond",
        "checks",
        "deciding",
        "due_ms",
        "group",
        "id",
        "identities",
        "is_checking",
        "late",
        "offered_ms",
        "offsets",
        "prepared_ms",
        "sender",
        "size",
    )  # fmt: skip

    def __init__(
        self, transaction: bytes, group: str, began_ms: int, prepared_ms: int, sender: str = ""
    ) -> None:
        self.id = transaction
        self.sender = sender
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
        self.is_checking = False
        self.late: list[HalfFacts] = []
        self.beyond: list[int] = []

    def compare_copy(self, half: HalfFacts) -> HalfVerdict:
        """Return whether a resent half message is an equal copy or has another body."""
        is_equal = self.identities.get(half.identity, half.checksum) == half.checksum
        return HalfVerdict.COPY if is_equal else HalfVerdict.CHANGED
