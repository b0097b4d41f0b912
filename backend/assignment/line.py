"""One group on one topic: its members, the state of each queue, and who should hold what.

`aim` says which seat should hold each queue:
* spread (averagely, by circle, consistent hash): queues that the same seats can take are shared out
  among those by the strategy; seats sorted by name, queues by number;
* whole topic: each queue to the oldest seat that can take it, so without `queues` all go to one;
* whole group: each queue to the oldest seat of the member that holds the group.

Pure. What happens to a queue when its aim changes stands in table.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from backend.assignment.decisions import Seat
from backend.assignment.strategies import averagely, by_circle, consistent_hash
from backend.port import Sharing
from backend.records import QueueRef

STRICTNESS = {sharing: index for index, sharing in enumerate(Sharing)}
Grouped = dict[Seat, list[QueueRef]]


class State(Enum):
    """Of one queue; `Cell.seat` is set in all but FREE."""

    FREE = "free"
    GRANTING = "granting"  # its epoch is being raised; the member knows nothing yet
    HELD = "held"
    LEAVING = "leaving"  # asked back, at the latest at `Cell.deadline`


class Cell:
    """One queue's state."""

    __slots__ = ("deadline", "epoch", "seat", "state")

    def __init__(self) -> None:
        self.state = State.FREE
        self.seat: Seat | None = None
        self.epoch = 0
        self.deadline = 0.0

    def free(self) -> None:
        """Nobody's."""
        self.state, self.seat = State.FREE, None

    def give(self, seat: Seat, epoch: int) -> None:
        """On its way to `seat`."""
        self.state, self.seat, self.epoch = State.GRANTING, seat, epoch

    def recall(self, deadline: float) -> None:
        """Its holder has until `deadline`."""
        self.state, self.deadline = State.LEAVING, deadline

    def told_to(self, seat: Seat) -> bool:
        """Whether `seat` believes that the queue is its own."""
        return self.seat is seat and self.state is not State.GRANTING


class Line:
    """See the module's text."""

    def __init__(self, group: str, topic: str) -> None:
        self.group = group
        self.topic = topic
        self.seats: list[Seat] = []  # the oldest first
        self.cells: dict[QueueRef, Cell] = {}
        self.aim: dict[QueueRef, Seat] = {}
        self.epoch = 0  # above it is every later grant, so a holder may use its newest for all it holds
        self.sharing = Sharing.AVERAGELY

    def __bool__(self) -> bool:
        """Whether anything is to be remembered."""
        return bool(self.seats) or any(cell.state is State.GRANTING for cell in self.cells.values())

    def sit(self, seat: Seat) -> None:
        """A seat is taken, at the end."""
        self.seats.append(seat)
        self._agree()

    def stand(self, seat: Seat) -> None:
        """A seat is given up; what it was told is free at once."""
        self.seats.remove(seat)
        for cell in self.cells.values():
            if cell.told_to(seat):
                cell.free()
        self._agree()

    def to_the_end(self, serial: int, seats: Iterable[Seat]) -> None:
        """These come last from now on."""
        for seat in seats:
            seat.serial = serial
        self.seats.sort(key=lambda seat: seat.serial)

    def _agree(self) -> None:
        asked = [seat.sharing for seat in self.seats] or [Sharing.AVERAGELY]
        self.sharing = max(asked, key=STRICTNESS.__getitem__)

    def sync(self, living: Sequence[QueueRef]) -> Grouped:
        """Take in which queues there are; returns what its holders lost with those that are gone."""
        if len(living) == len(self.cells) and all(queue in self.cells for queue in living):
            return {}
        kept = set(living)
        gone = [(queue, cell) for queue, cell in self.cells.items() if queue not in kept]
        self.cells = {queue: self.cells.get(queue) or Cell() for queue in living}
        return by_seat((queue, cell.seat) for queue, cell in gone if _is_told(cell))

    def take_aim(self, holder: str | None) -> None:
        """Decide who should hold each queue; `holder` is the member that holds the group."""
        queues = list(self.cells)
        if self.sharing is Sharing.WHOLE_TOPIC:
            self.aim = _first_able(queues, self.seats)
        elif self.sharing is Sharing.WHOLE_GROUP:
            self.aim = _first_able(queues, [seat for seat in self.seats if seat.member == holder])
        else:
            self.aim = spread(self.sharing, queues, self.seats)

    def where(self, want: Callable[[QueueRef, Cell], bool]) -> list[QueueRef]:
        """The queues of which `want` is true."""
        return [queue for queue, cell in self.cells.items() if want(queue, cell)]


def spread(sharing: Sharing, queues: Sequence[QueueRef], seats: Sequence[Seat]) -> dict[QueueRef, Seat]:
    """Each queue that some seat can take, with the seat that should hold it."""
    ordered = sorted(seats, key=lambda seat: (seat.name, seat.serial))
    choosy = any(seat.queues is not None for seat in ordered)
    takers: dict[tuple[Seat, ...], list[QueueRef]] = {}
    for queue in sorted(queues):
        able = tuple(seat for seat in ordered if seat.can_take(queue)) if choosy else tuple(ordered)
        takers.setdefault(able, []).append(queue)
    return {
        queue: able[owner]
        for able, shared in takers.items()
        if able
        for queue, owner in zip(shared, _owners(sharing, shared, able), strict=True)
    }


def _owners(sharing: Sharing, queues: Sequence[QueueRef], seats: Sequence[Seat]) -> list[int]:
    if sharing is Sharing.CONSISTENT_HASH:
        names = [f"{queue.topic}/{queue.queue_id}" for queue in queues]
        return consistent_hash(names, [seat.name for seat in seats])
    strategy = by_circle if sharing is Sharing.BY_CIRCLE else averagely
    return strategy(len(queues), len(seats))


def _first_able(queues: Iterable[QueueRef], seats: Sequence[Seat]) -> dict[QueueRef, Seat]:
    found = ((queue, next((seat for seat in seats if seat.can_take(queue)), None)) for queue in queues)
    return {queue: seat for queue, seat in found if seat is not None}


def by_seat(pairs: Iterable[tuple[QueueRef, Seat | None]]) -> Grouped:
    """Queues grouped by their seat; those without are left out."""
    grouped: Grouped = {}
    for queue, seat in pairs:
        if seat is not None:
            grouped.setdefault(seat, []).append(queue)
    return grouped


def _is_told(cell: Cell) -> bool:
    return cell.state in (State.HELD, State.LEAVING)
