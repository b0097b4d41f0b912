"""One group: its lines, and which member holds all that goes to one member as a whole.

Pure.
"""

from __future__ import annotations

from backend.assignment.line import Line
from backend.port import Sharing


class AssignedGroup:
    """One group's lines by topic. `holder`: the member that holds the whole-group ones.

    `withheld`: something was not granted to the holder because others still had some of it.
    """

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}
        self.holder: str | None = None
        self.withheld = False

    def whole(self) -> list[Line]:
        """The lines that go to one member together."""
        return [line for line in self.lines.values() if line.sharing is Sharing.WHOLE_GROUP]

    def choose(self) -> bool:
        """See who holds the group: the member in most topics, then the present one, then the oldest.

        True when that has changed.
        """
        joined: dict[str, int] = {}
        oldest: dict[str, int] = {}
        for line in self.whole():
            for member in {seat.member for seat in line.seats}:
                joined[member] = joined.get(member, 0) + bool(line.cells)
            for seat in line.seats:
                oldest[seat.member] = min(seat.serial, oldest.get(seat.member, seat.serial))
        present = self.holder
        self.holder = max(
            joined, key=lambda member: (joined[member], member == present, -oldest[member]), default=None
        )
        return self.holder != present

    def others_hold(self) -> bool:
        """Whether any whole-group queue is still another member's than the holder's."""
        return any(
            cell.seat is not None and cell.seat.member != self.holder
            for line in self.whole()
            for cell in line.cells.values()
        )
