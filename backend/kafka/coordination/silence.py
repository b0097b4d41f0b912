"""Which processes are silent, and when it is this one's turn to end one of them. Pure.

Another process is silent when nothing of it was followed for `session_s`, on this process's monotonic clock.
That alone says nothing: this process may have been stopped, or Kafka may answer nobody. So it is ended only
when a beat which this process sent at its turn, or later, has come back: whatever the other wrote until
then stands before that beat in the log, and would have been followed. A living process is not taken for dead
because others are slow, or because the log stood still for all.

| a process is silent, and this one is             | its turn, after the other was heard last             |
|--------------------------------------------------|------------------------------------------------------|
| the oldest of those that are not                 | `session_s`                                          |
| the n-th after that one                          | n × TURN_S later, should those before not manage     |
| none of them (it takes part in nothing itself)   | one turn more than the last of them                  |

| at its turn                                      | then                                                 |
|--------------------------------------------------|------------------------------------------------------|
| no beat that was sent since has come back        | `ask`: one is to be sent, unless one is under way    |
| one has                                          | `end`, once; again if that has failed                |
| something of the other is followed               | it is not silent any more                            |
| its death is followed                            | it is forgotten                                      |
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

TURN_S = 2.0  # a process that is fenced by one does not have to be fenced by the next one, too


class SilentProcesses(NamedTuple):
    """What is to be done now. `end`: processes, with how long they were silent."""

    ask: bool
    end: list[tuple[str, float]]


class Silence:
    """What one process has heard of the others."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._heard: dict[str, float] = {}
        self._ending: set[str] = set()

    def heard(self, process: str, now: float) -> None:
        """Something of it was followed."""
        self._heard[process] = now

    def died(self, process: str) -> None:
        """Its death was followed."""
        self._heard.pop(process, None)
        self._ending.discard(process)

    def forget(self) -> None:
        """What was heard before tells nothing any more: this process may have been stopped."""
        self._heard.clear()
        self._ending.clear()

    def failed(self, process: str) -> None:
        """It could not be ended."""
        self._ending.discard(process)

    def look(
        self, own: str, processes: Collection[str], now: float, asked: float, answered: float
    ) -> SilentProcesses:
        """`processes`: all that have joined, the oldest first. `asked`, `answered`: when the newest beat of
        this process was sent, and the newest one of those that have come back."""
        self._heard = {process: self._heard.get(process, now) for process in processes}
        ends = {process: heard + self._session_s for process, heard in self._heard.items() if process != own}
        silent = {process: end for process, end in ends.items() if now > end}
        turn_s = _place(own, (process for process in processes if process not in silent)) * TURN_S
        mine = {process: end + turn_s for process, end in silent.items() if process not in self._ending}
        due = [process for process, turn in mine.items() if now >= turn]
        found = [(process, now - self._heard[process]) for process in due if answered >= mine[process]]
        self._ending.update(process for process, _ in found)
        return SilentProcesses(any(asked < mine[process] for process in due), found)


def _place(own: str, able: Iterable[str]) -> int:
    line = list(able)
    return line.index(own) if own in line else len(line) + 1
