"""The order of each module's files, checked while they arrive; counted, nothing is assumed.

Every file carries its number within its module, from 0. A *round* is one life of the messages: 0 as they
were sent, 1 after they were sent again as dead letters. Within a module and round the first delivery of
number n may begin only when n - 1 is settled: finished, or delivered and failed for the last time.

  overtaken   a first delivery that came too early: a number was left out, or the one before was not settled
  together    a delivery that began while another file of the same module was in somebody's hands
  went_back   a delivery of a lower number after a higher one had begun
  came_again  a file was finished that had been finished before
  revived     files that were finished in a later round
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

Life = tuple[str, int]  # module, round


@dataclass
class ModuleOrder:
    """The order that handlers saw; they call `begin` and `end` from their threads.

    `deliveries_max`: after that many failed deliveries a file is a dead letter, and so settled.
    """

    deliveries_max: int
    deliveries: int = 0
    failures: int = 0
    overtaken: int = 0
    together: int = 0
    went_back: int = 0
    came_again: int = 0
    revived: int = 0
    at_once_max: int = 0  # modules in hands at the same time
    in_hands: set[str] = field(default_factory=set)
    finished: dict[str, set[int]] = field(default_factory=dict)  # by module, over all rounds
    _last: dict[Life, int] = field(default_factory=dict)
    _failed: dict[Life, int] = field(default_factory=dict)  # how often the last one failed
    _settled: dict[Life, bool] = field(default_factory=dict)  # whether the last one is
    _lock: Lock = field(default_factory=Lock)

    def begin(self, module: str, number: int, round_: int = 0) -> None:
        """A file is in a handler's hands."""
        with self._lock:
            self.deliveries += 1
            self.together += module in self.in_hands
            self.in_hands.add(module)
            self.at_once_max = max(self.at_once_max, len(self.in_hands))
            self._place((module, round_), number)

    def _place(self, life: Life, number: int) -> None:
        last = self._last.get(life, -1)
        self.went_back += number < last
        if number > last:
            self.overtaken += number != last + 1 or not self._settled.get(life, True)
            self._last[life] = number
            self._failed[life] = 0
            self._settled[life] = False

    def end(self, module: str, number: int, round_: int = 0, *, failed: bool = False) -> None:
        """The handler is through with it."""
        life = (module, round_)
        with self._lock:
            self.in_hands.discard(module)
            if failed:
                self.failures += 1
                self._failed[life] = self._failed.get(life, 0) + 1
            else:
                self._finish(life, number)
            if number == self._last.get(life):
                self._settled[life] = not failed or self._failed[life] >= self.deliveries_max

    def _finish(self, life: Life, number: int) -> None:
        finished = self.finished.setdefault(life[0], set())
        again = number in finished
        self.came_again += again
        self.revived += life[1] > 0 and not again
        finished.add(number)

    def finished_of(self, module: str) -> int:
        """Files of one module that are finished."""
        with self._lock:
            return len(self.finished.get(module, ()))

    def finished_but(self, module: str) -> int:
        """Files of all other modules that are finished."""
        with self._lock:
            return sum(len(numbers) for name, numbers in self.finished.items() if name != module)
