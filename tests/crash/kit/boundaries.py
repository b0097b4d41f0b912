"""Kills at boundaries of commits: a server is told, at its start, where it is to die (boundary_process.py).

One at a time is, of a command of which fewest have died so far. Every kind of commit that is asked for meets
every moment in turn, so a run says which of them it has seen.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, product
from pathlib import Path
from random import Random
from selectors import EVENT_READ, DefaultSelector
from typing import NamedTuple

from tests.crash.kit.boundary_process import MOMENTS
from tests.scenarios.real_server import PATIENCE_S, NotReady, RealServer
from tests.support.installations import Installation

UNMET_S = 20.0  # after which a server that has not met its boundary is killed from outside
FEW_MAX, MANY_MAX = 8, 80  # commits before the one where it dies
DELAY_US_MAX = 4_000
BY_HAND_SHARE = 0.2


class Doomed(NamedTuple):
    """Where a process is to die."""

    boundary: str
    moment: str
    count: int
    delay_us: int

    @property
    def label(self) -> str:
        return f"{self.moment} {self.boundary}"


class BoundaryServer(RealServer):
    """Without a `plan` it is a server like any other."""

    plan: Doomed | None = None

    def plan_death(self, plan: Doomed | None) -> None:
        """There, from its next start on; None: nowhere."""
        self.plan = plan
        module = "tests.crash.kit.boundary_process"
        self.before = () if plan is None else (sys.executable, "-m", module, *map(str, plan))


def make_boundary_servers(
    folder: Path, config: Path, commands: Sequence[str], installation: Installation
) -> list[BoundaryServer]:
    """One for each command: over one directory on the file log, in a folder of its own on Kafka."""
    apart = installation.engine == "kafka"
    return [
        BoundaryServer(
            folder / f"server-{number}" if apart else folder,
            config,
            command=command,
            installation=installation,
        )
        for number, command in enumerate(commands)
    ]


class BoundaryKills:
    """Of one run. `names`: the boundaries that a server of a command meets; `counts`: kills, by where."""

    def __init__(
        self, servers: Sequence[BoundaryServer], names: Mapping[str, Sequence[str]], random: Random
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._servers = [server for server in servers if server.command in names]
        self._deaths: Counter[str] = Counter()
        self._next: BoundaryServer | None = None
        self._random = random
        self._plans = {command: self._plan_deaths(boundaries) for command, boundaries in names.items()}
        self._planned = {
            f"{moment} {name}" for every in names.values() for name in every for moment in MOMENTS
        }

    @property
    def unmet_boundaries(self) -> list[str]:
        """Where nobody has died yet."""
        return sorted(self._planned - self.counts.keys())

    def is_by_hand(self) -> bool:
        """Whether the next kill is one from outside, as in a run without boundaries."""
        return self._random.random() < BY_HAND_SHARE

    def collect_dead_servers(self) -> list[BoundaryServer]:
        """The one that has died where it was to; where none was to die, the next one, killed for that."""
        armed = [server for server in self._servers if server.plan is not None]
        if not armed:
            fewest = min(
                self._servers, key=lambda server: (self._deaths[server.command], self._random.random())
            )
            self._next = fewest
            fewest.kill()
            return [fewest]
        dead = _wait_for_deaths(armed, UNMET_S)
        if not dead:
            self.counts["unmet"] += 1
            for server in armed:
                server.kill()
                assert server.plan is not None
                self._plan_sooner(server.command, server.plan)
            return armed
        for server in dead:
            self._met(server)
        return dead

    def start(self, server: RealServer) -> None:
        """Until it is ready; the next that is to die may do so while it starts, and more than once."""
        if isinstance(server, BoundaryServer):
            server.plan_death(None)
        while server is self._next:
            self._next.plan_death(next(self._plans[server.command]))
            deadline = time.monotonic() + PATIENCE_S
            try:
                server.start()
                self._next = None
                return
            except NotReady:
                if time.monotonic() >= deadline:
                    raise
                self._met(self._next)
        server.start()

    def end(self) -> None:
        """They live on without a plan."""
        for server in self._servers:
            server.kill()
            server.plan_death(None)
        for server in self._servers:
            server.start()

    def _met(self, server: BoundaryServer) -> None:
        code = _code(server)
        assert code == -signal.SIGKILL, f"{server.command} ended by itself with {code}: {server.log[-2000:]}"
        assert server.plan is not None
        self.counts[server.plan.label] += 1
        self._deaths[server.command] += 1
        server.kill()  # what it left of its group

    def _plan_sooner(self, command: str, plan: Doomed) -> None:
        """It was not met; the next one is the same with the first commit, unless that was tried."""
        if plan.count > 1:
            self._plans[command] = chain([plan._replace(count=1)], self._plans[command])

    def _plan_deaths(self, names: Sequence[str]) -> Iterator[Doomed]:
        every = list(product(names, MOMENTS))
        while True:
            self._random.shuffle(every)
            for name, moment in every:
                count = self._random.randint(1, self._random.choice((1, FEW_MAX, MANY_MAX)))
                yield Doomed(name, moment, count, self._random.randrange(DELAY_US_MAX))


def _wait_for_deaths(servers: Sequence[BoundaryServer], timeout_s: float) -> list[BoundaryServer]:
    """Wait until one of the servers has died; return all that have: none if the time is over."""
    if dead := [server for server in servers if _code(server) is not None]:
        return dead
    with ExitStack() as descriptors, DefaultSelector() as selector:
        for server in servers:
            assert server.process is not None
            descriptor = os.pidfd_open(server.process.pid)  # readable once the process has ended
            descriptors.callback(os.close, descriptor)
            selector.register(descriptor, EVENT_READ)
        selector.select(timeout_s)
    return [server for server in servers if _code(server) is not None]


def _code(server: RealServer) -> int | None:
    assert server.process is not None
    return server.process.poll()
