"""Brokers, our servers on them, and the bare clients that they are held against.

Ours, or the bare client, runs on one core; the load generator shares the other with the brokers, which may
use both. `DDMQ_BENCH_BROKERS=3`: three of them, three copies of everything
and two of them there before an answer. `DDMQ_BENCH_FSYNC=1`: each record is synced before it is answered.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench import groups
from bench.harness import CLIENT_CORE, QUICK, Series, run
from bench.servers import Running, scratch, start
from ddmq.trial.cluster import Ports, TrialCluster, free_ports

BROKERS = int(os.environ.get("DDMQ_BENCH_BROKERS", "1"))
FSYNC = os.environ.get("DDMQ_BENCH_FSYNC") == "1"
ROUNDS = 1 if QUICK else int(os.environ.get("DDMQ_BENCH_ROUNDS", "5"))
QUEUES = 4


@dataclass
class Rig:
    """Brokers that run, and a folder for what runs on them."""

    cluster: TrialCluster
    folder: Path
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def name(self, what: str) -> str:
        """One that nobody has had here."""
        return f"{what}-{next(self._names)}"

    def server(self, core: int | None = None) -> Running:
        """Producer and consumer proxy in one process."""
        data = str(self.folder / self.name("server"))
        return start(["bench.serve_parts", data, self.bootstrap], None if core is None else {core})

    def delay_service(self) -> Running:
        """The delay service, on the load generator's core."""
        data = str(self.folder / self.name("delay"))
        arguments = ["--backend", "kafka", "--bootstrap", self.bootstrap, "--admin", "127.0.0.1:0"]
        return start(["ddmq", "delay-service", "--data-dir", data, *arguments], {CLIENT_CORE})

    def make_topic(self, topic: str, queues: int = QUEUES) -> None:
        """As a program of others makes one; like those of ours, so far as time stamps go."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        stamps = {"message.timestamp.type": "LogAppendTime"}
        creations = admin.create_topics([NewTopic(topic, queues, min(BROKERS, 3), config=stamps)])
        creations[topic].result()

    def bare(self, what: str, *arguments: object, core: int) -> dict[str, float]:
        """Run a bare client to its end; its figures."""
        with self.bare_started(what, *arguments, core=core) as process:
            return figures(process)

    @contextmanager
    def bare_started(self, what: str, *arguments: object, core: int) -> Iterator[subprocess.Popen[str]]:
        """A bare client that has said `ready`."""
        program = [sys.executable, "-m", "bench.kafka.bare", what, self.bootstrap, *map(str, arguments)]
        with subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        ) as process:
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if line != "ready\n":
                    raise RuntimeError(f"bare {what}: not ready, said {line!r}")
                yield process
            finally:
                process.kill()

    def run(self, name: str, title: str, series: list[Series], rounds: int = ROUNDS, **facts: Any) -> None:
        """Measure, print, keep under a name that says how many brokers there were."""
        kafka = {
            "brokers": BROKERS,
            "copies": min(BROKERS, 3),
            "fsync": FSYNC,
            "confluent-kafka": importlib.metadata.version("confluent-kafka"),
            "load": [round(each, 1) for each in os.getloadavg()],
        }
        result_name = name + (f"_{BROKERS}" if BROKERS > 1 else "") + ("_fsync" if FSYNC else "")
        run(result_name, title, series, rounds, **kafka, **facts)


def figures(process: subprocess.Popen[str]) -> dict[str, float]:
    """What a bare client measured."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a bare client has ended without figures: {process.args!r}")
    values: dict[str, float] = json.loads(line)
    return values


@contextmanager
def rig(fsync: bool = FSYNC) -> Iterator[Rig]:
    """Fresh brokers, gone afterwards."""
    more = {
        "share.coordinator.state.topic.replication.factor": str(min(BROKERS, 3)),
        "share.coordinator.state.topic.min.isr": str(2 if BROKERS > 2 else 1),
    }
    if fsync:
        more["log.flush.interval.messages"] = "1"
    with tempfile.TemporaryDirectory(prefix="kafka-", dir=scratch()) as folder:
        cluster = TrialCluster(Path(folder) / "cluster", more)
        ports = free_ports(2 * BROKERS)
        cluster.make([Ports(*ports[at : at + 2]) for at in range(0, len(ports), 2)])
        try:
            cluster.start()
            yield Rig(cluster, Path(folder))
        finally:
            cluster.stop()


def settled(server: Running, group: str) -> None:
    """Raise unless everything is acknowledged. The end of a transaction shows a little later."""
    end = time.monotonic() + 10
    while lag := groups.lag(server, group.encode()):
        if time.monotonic() > end:
            raise AssertionError(f"group {group}: all is acknowledged, lag is {lag}")
        time.sleep(0.05)
