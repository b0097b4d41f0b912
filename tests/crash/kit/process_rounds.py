"""Rounds that kill servers and the processes full of load: all of them are victims alike.

What a load process writes on standard error is in a file of its name. It stops as it should when its standard
input ends, if it cares. One that ends by itself breaks the run off, as rounds do in which nothing goes on.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.kit.command import PrintLine
from tests.crash.kit.kill_run import KillRun
from tests.crash.kit.violations import Violations
from tests.scenarios.real_server import RealServer

LOADS = ("one", "two")
LOG_SHOWN = 2_000


class ProcessRounds(KillRun):
    """One run. `module`: what a load process is; `load_kind`: as what its kills are counted."""

    module = ""
    load_kind = "clients"
    load_s = (0.05, 1.5)  # from a start to the next kill
    report_every = 20
    stuck_s = 240.0  # of rounds without any progress; the slowest machine makes some

    def __init__(self, folder: Path, seed: int, print_line: PrintLine, servers: Sequence[RealServer]) -> None:
        super().__init__(seed, print_line, servers, Violations())
        self.folder = folder
        self.loads: dict[str, subprocess.Popen[bytes]] = {}

    def run_load(self, length: int) -> None:
        for name in LOADS:
            self._begin(name)
        self.feed()
        self._rounds(length)
        self.stop_kills()
        self.check_loads_alive()
        self.settle()
        for text in self.broken():
            self.ledger.violated(text)

    def over(self) -> None:
        for load in self.loads.values():
            self.end(load)
        super().over()

    def words(self, name: str, seed: str) -> list[str]:
        """The command line of a load process, behind its module."""
        raise NotImplementedError

    def feed(self) -> None:
        """Begin what these processes live of."""

    def is_enough(self, length: int) -> bool:
        """Whether the rounds are over."""
        raise NotImplementedError

    def progress(self) -> int:
        """A number that rises as long as the load goes on."""
        raise NotImplementedError

    def settle(self) -> None:
        """What was begun comes to its end; then nothing changes any more."""
        raise NotImplementedError

    def broken(self) -> list[str]:
        """What does not agree in the end."""
        raise NotImplementedError

    def inject_fault(self) -> None:
        """Something bad besides, before the kills of a round."""

    def check_round(self) -> None:
        """At the end of a round."""

    def check_loads_alive(self) -> None:
        """AssertionError when a load process has ended that nobody killed."""
        for name, load in self.loads.items():
            code = load.poll()
            if code is not None:
                log = self._log(name).read_text(errors="replace")[-LOG_SHOWN:]
                raise AssertionError(f"load {name} ended by itself with {code}; it wrote: {log or 'nothing'}")

    # --- the rounds

    def _rounds(self, length: int) -> None:
        best, deadline = self.progress(), time.monotonic() + self.stuck_s
        while not self.is_enough(length):
            self._round()
            if (reached := self.progress()) > best:
                best, deadline = reached, time.monotonic() + self.stuck_s
            assert time.monotonic() < deadline, f"nothing went on for {self.stuck_s:g} s, behind {best}"

    def _round(self) -> None:
        if self.boundaries is not None and not self.boundaries.is_by_hand():
            for server in self.boundaries.collect_dead_servers():
                self.restart(server)
            self.check_round()
            return
        time.sleep(self.random.uniform(*self.load_s))  # load without a fault: its length is the seed's
        self.inject_fault()
        self.check_loads_alive()
        victims = self.random.sample([*self.servers, *LOADS], self.random.choice((1, 1, 1, 2, 3)))
        servers = [victim for victim in victims if isinstance(victim, RealServer)]
        loads = [name for name in LOADS if name in victims]
        for server in servers:
            server.kill()
            self.kills[server.command] += 1
        for name in loads:
            self.end(self.loads[name])
            self.kills[self.load_kind] += 1
        for server in servers:
            self.restart(server)
        for name in loads:
            self._begin(name)
        self.check_round()
        if self.kills.total() % self.report_every < len(victims):
            self.report("so far")

    def _begin(self, name: str) -> None:
        words = self.words(name, f"{self.seed}/{self.kills.total()}")
        command = [sys.executable, "-m", self.module, *words]
        with self._log(name).open("ab") as log:
            self.loads[name] = subprocess.Popen(command, stderr=log, stdin=subprocess.PIPE)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    @staticmethod
    def end(load: subprocess.Popen[bytes]) -> None:
        """SIGKILL."""
        load.kill()
        load.wait()
        assert load.stdin is not None
        load.stdin.close()
