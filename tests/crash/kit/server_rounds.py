"""Rounds that kill servers, now and then while they start; the load is threads of this process: they stay."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tests.crash.kit.kill_run import KillRun
from tests.crash.kit.load_thread import LoadThread
from tests.scenarios.real_server import RealServer

START_KILL_SHARE = 0.15  # of the kills hit a starting server
START_KILL_S = (0.0, 0.8)
SERVING, STARTING = "serving", "starting"


class ServerRounds(KillRun):
    """One run; a round after which a promise is broken, or a thread has failed, is its last."""

    load_s = (0.05, 1.5)  # from ready to the kill
    workers: Sequence[LoadThread] = ()

    def run_load(self, length: int) -> None:
        for worker in self.workers:
            worker.start()
        for number in range(1, length + 1):
            self.round(number)
            if self.ledger.violations_count or any(worker.failure for worker in self.workers):
                break
        self.stop_kills()
        self.end()
        assert self.is_proof(length), "too little was done to prove a thing"

    def end(self) -> None:
        """The load stops, and everything is looked at."""
        raise NotImplementedError

    def is_proof(self, rounds: int) -> bool:
        """Whether enough was done."""
        raise NotImplementedError

    def round(self, number: int) -> None:
        """Load, kills, and all of them are ready again."""
        if self.boundaries is None or self.boundaries.is_by_hand():
            victims = self.killed()
        else:
            victims = self.boundaries.collect_dead_servers()
        self.start(victims)
        if number % self.report_every == 0:
            self.report(f"round {number}")

    def killed(self) -> Sequence[RealServer]:
        """Those that are killed from outside."""
        time.sleep(self.random.uniform(*self.load_s))  # load without a fault: its length is the seed's
        victims = self.victims()
        self.kill(victims, SERVING)
        if self.random.random() < START_KILL_SHARE:
            for server in victims:
                server.launch()
            time.sleep(self.random.uniform(*START_KILL_S))  # how far a start comes is the seed's
            self.kill(victims, STARTING)
        return victims

    def victims(self) -> list[RealServer]:
        """One of them, or several."""
        return self.random.sample(self.servers, self.random.choice((1, 1, 1, 2, 3)))

    def kill(self, victims: list[RealServer], when: str) -> None:
        """All of them."""
        for server in victims:
            server.kill()
            self.kills[when] += 1

    def start(self, victims: Sequence[RealServer]) -> None:
        """All of them, until they are ready."""
        for server in victims:
            self.restart(server)
