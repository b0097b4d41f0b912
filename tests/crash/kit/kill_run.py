"""A run under kill -9: servers over one directory, a load, rounds that kill, and what must hold in the end.

What all runs do is here, so that each of them is its load and its promises. server_rounds.py kills servers
under threads of this process; process_rounds.py kills processes full of load as well. What is killed when
comes from the seed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.kit.boundaries import BoundaryKills, BoundaryServer
from tests.crash.kit.command import PrintLine
from tests.crash.kit.violations import Violations
from tests.scenarios.real_server import NotReady, RealServer, write_config

MIB = 1 << 20
COMMANDS = ("producer", "producer", "consumer")


def configuration(folder: Path, seed: int) -> Path:
    """Segments, checkpoints and tails are small, so that kills meet all of them."""
    random = Random(f"{seed}/conf")
    return write_config(
        folder,
        file_log={
            "segment_bytes": random.choice([1, 4, 64]) * MIB,
            "allocate_bytes": MIB,
            "checkpoint_bytes": random.choice([MIB, 256 * MIB]),
            "checkpoint_ms": random.choice([50, 500, 5_000]),
            "written_sync_ms": random.choice([10, 1_000]),
        },
        ddmq={"log_level": "warning"},
    )


class KillRun:
    """One run. `ledger` records broken promises. `boundary_names`: the commits at which the servers of a
    command kill themselves after `enable_boundaries`."""

    report_every = 10
    boundary_names: Mapping[str, Sequence[str]] = {}

    def __init__(
        self, seed: int, print_line: PrintLine, servers: Sequence[RealServer], ledger: Violations
    ) -> None:
        self.seed, self.print_line = seed, print_line
        self.random = Random(f"{seed}/killer")
        self.servers = list(servers)
        self.ledger = ledger
        self.kills: Counter[str] = Counter()
        self.boundaries: BoundaryKills | None = None

    def enable_boundaries(self) -> None:
        """Servers die at named boundaries of commits; some are killed from outside as without this."""
        mortal = [server for server in self.servers if isinstance(server, BoundaryServer)]
        self.boundaries = BoundaryKills(mortal, self.boundary_names, Random(f"{self.seed}/boundaries"))

    def run(self, length: int) -> None:
        """All of it."""
        try:
            for server in self.servers:
                server.start()
            self.prepare()
            self.run_load(length)
        finally:
            self.over()

    def restart(self, server: RealServer) -> None:
        """Start it, until it is ready."""
        if self.boundaries is None:
            server.start()
        else:
            self.boundaries.start(server)

    def stop_kills(self) -> None:
        """All servers stay alive from here on."""
        if self.boundaries is not None:
            self.boundaries.end()

    def over(self) -> None:
        """Nothing of it runs any more."""
        for server in self.servers:
            server.kill()

    def prepare(self) -> None:
        """Make what the load needs; the servers are ready."""
        raise NotImplementedError

    def run_load(self, length: int) -> None:
        """The load, the rounds, and the end."""
        raise NotImplementedError

    def ports(self, component: str = "producer") -> list[int]:
        """Of all servers that have the part."""
        return [server.ports[component] for server in self.servers if component in server.ports]

    def addresses(self, component: str = "producer") -> list[str]:
        """The same as clients write them."""
        return [server.address(component) for server in self.servers if component in server.ports]

    def numbers(self) -> str:
        """What a report says beside the kills."""
        raise NotImplementedError

    def report(self, when: str) -> None:
        """One line."""
        every = self.kills + (self.boundaries.counts if self.boundaries else Counter())
        kills = ", ".join(f"{count} {what}" for what, count in sorted(every.items()))
        self.print_line(f"{when}: kills {kills or 'none'}; {self.numbers()}")


def describe_counts(counts: Any) -> str:
    """The fields of a dataclass of counts, for people."""
    fields = dataclasses.asdict(counts)
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in fields.items())


def judged(one: KillRun, length: int, success_text: str, *, boundaries: bool = False) -> int:
    """Run `one`, print its report, and return its broken promises; without any, print `success_text`."""
    if boundaries:
        one.enable_boundaries()
    try:
        one.run(length)
        if one.boundaries is not None and (unmet_boundaries := one.boundaries.unmet_boundaries):
            one.ledger.violated(f"the run was too short: nobody died {', '.join(unmet_boundaries)}")
    except (NotReady, AssertionError) as error:
        one.ledger.violated(f"the run broke off: {error}")
    one.report("end")
    for text in one.ledger.violations:
        one.print_line(f"BROKEN: {text}")
    broken = one.ledger.violations_count
    one.print_line(f"{broken} promises broken" if broken else success_text)
    return broken
