"""Kills at boundaries of commits: each server is told, at its start, where to die (boundary_process.py).

Every kind of commit that is asked for meets every moment in turn, so a run says which of them it has seen.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import NamedTuple

from tests.crash.kit.boundary_process import MOMENTS
from tests.scenarios.real_server import PATIENCE_S, NotReady, RealServer

UNMET_S = 15.0  # after which a server that has not met its boundary is killed from outside
FEW_MAX, MANY_MAX = 8, 80  # commits before the one where it dies
DELAY_US_MAX = 4_000
LOOK_S = 0.01
BY_HAND_SHARE = 0.2


class Doomed(NamedTuple):
    """Where a process is to die."""

    boundary: str
    moment: str
    count: int
    delay_us: int

    @property
    def told(self) -> str:
        return f"{self.moment} {self.boundary}"


class BoundaryServer(RealServer):
    """Without a `plan` it is a server like any other."""

    plan: Doomed | None = None

    def is_to_die(self, plan: Doomed | None) -> None:
        """There, from its next start on; None: nowhere."""
        self.plan = plan
        module = "tests.crash.kit.boundary_process"
        self.before = () if plan is None else (sys.executable, "-m", module, *map(str, plan))


class BoundaryKills:
    """Of one run. `names`: the boundaries that a server of a command meets; `counts`: kills, by where."""

    def __init__(
        self, servers: Sequence[BoundaryServer], names: Mapping[str, Sequence[str]], random: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._servers = [server for server in servers if server.command in names]
        self._random = random
        self._plans = {command: self._in_turn(wanted) for command, wanted in names.items()}
        self._wanted = {
            f"{moment} {name}" for every in names.values() for name in every for moment in MOMENTS
        }

    @property
    def unmet(self) -> list[str]:
        """Where nobody has died yet."""
        return sorted(self._wanted - self.counts.keys())

    def is_by_hand(self) -> bool:
        """Whether the next kill is one from outside, as in a run without boundaries."""
        return self._random.random() < BY_HAND_SHARE

    def fallen(self) -> list[BoundaryServer]:
        """Those that have died by now, at least one."""
        new = [server for server in self._servers if server.plan is None]
        if new:
            self._kill(new)
            return new
        deadline = time.monotonic() + UNMET_S
        while not (dead := [server for server in self._servers if _code(server) is not None]):
            if time.monotonic() >= deadline:
                one = self._random.choice(self._servers)
                self.counts["unmet"] += 1
                self._kill([one])
                return [one]
            time.sleep(LOOK_S)
        for server in dead:
            self._met(server)
        return dead

    def start(self, server: RealServer) -> None:
        """Until it is ready; it may die while it starts, and more than once."""
        while isinstance(server, BoundaryServer) and server in self._servers:
            server.is_to_die(next(self._plans[server.command]))
            deadline = time.monotonic() + PATIENCE_S
            try:
                server.start()
                return
            except NotReady:
                if time.monotonic() >= deadline:
                    raise
                self._met(server)
        server.start()

    def end(self) -> None:
        """They live on without a plan."""
        for server in self._servers:
            server.kill()
            server.is_to_die(None)
        for server in self._servers:
            server.start()

    def _met(self, server: BoundaryServer) -> None:
        code = _code(server)
        assert code == -signal.SIGKILL, f"{server.command} ended by itself with {code}: {server.log[-2000:]}"
        assert server.plan is not None
        self.counts[server.plan.told] += 1
        server.kill()  # what it left of its group

    @staticmethod
    def _kill(servers: Sequence[RealServer]) -> None:
        for server in servers:
            server.kill()

    def _in_turn(self, names: Sequence[str]) -> Iterator[Doomed]:
        every = list(product(names, MOMENTS))
        while True:
            self._random.shuffle(every)
            for name, moment in every:
                count = self._random.randint(1, self._random.choice((1, FEW_MAX, MANY_MAX)))
                yield Doomed(name, moment, count, self._random.randrange(DELAY_US_MAX))


def _code(server: RealServer) -> int | None:
    assert server.process is not None
    return server.process.poll()
