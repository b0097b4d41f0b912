"""Who takes part, and what the table decides: plain data.

Decisions are carried out in their order. A Grant is made durable first (every queue's epoch raised in
the group's progress); when that is answered the table is told, and only then decides to Assign.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.port import Sharing
from backend.records import QueueRef


class Seat:
    """One membership's place in a group on one topic; compared by identity.

    `member`: the process whose membership it is. `name`: what members are sorted and hashed by, the same
    at every start of that process. `queues`: the only queue numbers it can take, None = any. `serial`:
    its place in line, the lowest is the oldest. `taken`: it has joined and not left.
    """

    __slots__ = ("group", "member", "name", "queues", "serial", "sharing", "taken", "topic")

    def __init__(
        self,
        group: str,
        topic: str,
        member: str,
        sharing: Sharing = Sharing.AVERAGELY,
        queues: frozenset[int] | None = None,
        name: str = "",
    ) -> None:
        self.group = group
        self.topic = topic
        self.member = member
        self.sharing = sharing
        self.queues = queues
        self.name = name or member
        self.serial = 0
        self.taken = False

    def can_take(self, queue: QueueRef) -> bool:
        """Whether its member said that it takes this queue."""
        return self.queues is None or queue.queue_id in self.queues

    def __repr__(self) -> str:
        return f"Seat({self.group}, {self.topic}, {self.name}, {self.serial})"


class Grant(NamedTuple):
    """Raise the epoch of these queues durably, then tell the table `granted` or `grant_failed`."""

    seat: Seat
    queues: tuple[QueueRef, ...]
    epoch: int


class Assign(NamedTuple):
    """Tell the member that it holds these queues now."""

    seat: Seat
    queues: tuple[QueueRef, ...]
    epoch: int


class Revoke(NamedTuple):
    """Ask the member to release these queues by `deadline` (monotonic seconds)."""

    seat: Seat
    queues: tuple[QueueRef, ...]
    deadline: float


class Lose(NamedTuple):
    """Tell the member that these queues are not its own any more."""

    seat: Seat
    queues: tuple[QueueRef, ...]


Decision = Grant | Assign | Revoke | Lose
