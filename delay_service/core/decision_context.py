"""What decisions about one shard's commands rest on: its store, what the log says, what is assumed.

A store that was lost is filled from the log, which says that nothing of a message waits any more, and not
why. Its commands are gone through once more in thought, by the times at which they were sent: what was due by
then had fired. (A command that came in time because the service was late is taken for one that came too
late.)
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from backend.progress.ack_map import AckMap
from ddmq_common.delays.command import FIRE, DelayCommand, decode_command
from delay_service.core.fire_command import UNFIT
from delay_service.core.occurrences import CATCH_UP_MAX, next_after
from delay_service.store.port import DelayStore, Pending


@dataclass(slots=True)
class DecisionContext:
    """Of one shard. `busy`: offsets of messages whose commit is under way. `kept_ms`: how long the outcome
    of an id is kept. `reread_to`: commands below were taken in before, by us or another owner; `lost_place`:
    the store cannot say which of them it has."""

    store: DelayStore
    acks: AckMap
    busy: Container[int]
    kept_ms: int
    reread_to: int = 0
    lost_place: bool = False
    catch_up_max: int = CATCH_UP_MAX
    assumed: dict[bytes, Assumed] = field(default_factory=dict)  # over by the log alone
    place_from: int = field(init=False)

    def __post_init__(self) -> None:
        self.place_from = self.reread_to if self.lost_place else 0  # before, its next owner is as lost


class Assumed:
    """One message. `due_ms`: when it would fire next; None: it is over."""

    __slots__ = ("_occurrence", "_order", "due_ms")

    def __init__(self, command: DelayCommand | None, occurrence: int, due_ms: int) -> None:
        self._order = command
        self._occurrence = occurrence
        self.due_ms: int | None = due_ms

    def ordered(self, said: DelayCommand, born_ms: int) -> None:
        """It was to be moved, or fired now."""
        if self.waits_at(born_ms):
            if said.op == FIRE:
                self._fire(born_ms)
            else:
                self.due_ms = said.due_ms

    def waits_at(self, at_ms: int) -> bool:
        """Whether something of it was still to fire at this moment, which is no earlier than those before."""
        if self.due_ms is not None and self.due_ms <= at_ms:
            self._fire(at_ms)
        return self.due_ms is not None

    def _fire(self, at_ms: int) -> None:
        found = None
        if self._order is not None:
            try:
                found = next_after(self._order, self._occurrence, 0, CATCH_UP_MAX, put_off_ms=at_ms)
            except UNFIT:
                self._order = None
        self.due_ms = None if found is None else found.due_ms
        self._occurrence = 0 if found is None else found.occurrence


def of_add(said: DelayCommand) -> Assumed:
    """As its add says."""
    return Assumed(said, said.occurrence, said.at_ms or said.due_ms)


def of_waiting(message: Pending | None, due_ms: int) -> Assumed:
    """As the store had it; None: it had lost the message."""
    command = None
    if message is not None:
        try:
            command = decode_command(message.command)
        except UNFIT:
            message = None
    return Assumed(command, 0 if message is None else message.occurrence, due_ms)
