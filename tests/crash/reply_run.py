"""Consume, work, produce, while everything is killed with SIGKILL again and again: the writer too.

    python -m tests.crash.reply_run --seed 7 --jobs 10000

A producer proxy and two consumer proxies are processes over one directory; one of them writes, another takes
over when it is killed. Two processes of consumers (reply_load.py) turn jobs into parts and parts into ends,
with acknowledgements that carry messages; by half of the seeds with an order key. Each round kills one or
several of the five; with `--stops` now and then a consumer proxy stands still (SIGSTOP) until others have its
queues, and goes on. `--kafka` asks it of Kafka, which knows no keys of jobs: one whose send brought no answer
may be there or not. At the end every job that is stored must be in the topics that follow exactly once and
whole: all parts of it by one handling, each part's end once, and in order by key where that was asked for.
Prints the seed and the command that runs the same again; the exit code is 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

from ddmq_client import Producer, SendError, UnknownOutcomeError
from ddmq_client.ranges import RangeReader
from tests.crash.kill_nine import scratch
from tests.crash.once_run import configuration
from tests.crash.reply_load import ENDS, FIRST, JOBS, PARTS, SECOND, SIDES, Piece, pieces_of
from tests.scenarios.real_server import NotReady, RealServer, write_config
from tests.support.installations import Installation, installed
from tests.support.waits import until

COMMANDS = ("producer", "consumer", "consumer")
LOADS = ("one", "two")
LOAD_S = (0.05, 1.5)  # from a start to the next kill
KEYS = 12
QUEUES = 3
AHEAD_MAX = 400  # jobs that are sent and not through
END_S = 240.0
QUIET_S = 1.0
STOPPED_S = 12.0  # others have its queues after 10
SHOWN_MAX = 20
Places = Mapping[int, Sequence[Piece]]  # by queue, in order


def broken_rules(
    jobs: Iterable[str],
    parts: Places,
    sides: Places,
    ends: Places,
    *,
    ordered: bool,
    unsure: Iterable[str] = (),
) -> list[str]:
    """What does not agree. `jobs`: those that are stored, each once; `unsure`: those that may be; the others:
    what is in the topics."""
    broken: list[str] = []
    sides_of = {piece.job for queue in sides.values() for piece in queue}
    wanted = set(jobs) | sides_of.intersection(unsure)
    for name, places in (("parts", parts), ("sides", sides), ("ends", ends)):
        found: dict[str, list[Piece]] = {}
        for piece in (piece for queue in places.values() for piece in queue):
            found.setdefault(piece.job, []).append(piece)
        broken += [f"{job} is in {name}, and nobody sent it" for job in found.keys() - wanted]
        for job in wanted:
            broken += _of_job(name, job, found.get(job, []))
        if ordered:
            broken += _out_of_order(name, places, set(unsure))
    tokens = {piece.job: piece.token for queue in parts.values() for piece in queue}
    others = [piece for queue in sides.values() for piece in queue if tokens.get(piece.job) != piece.token]
    broken += [f"the parts and the side of {piece.job} are of two handlings" for piece in others]
    return broken


def _of_job(name: str, job: str, pieces: Sequence[Piece]) -> list[str]:
    count = 1 if name == "sides" else pieces_of(job)
    times = Counter(piece.index for piece in pieces)
    if times != Counter(range(count)):
        return [f"{name} of {job} are {dict(times)}; {count} are wanted, each once"]
    if name != "ends" and len({piece.token for piece in pieces}) > 1:
        return [f"{name} of {job} are of several handlings"]
    return []


def _out_of_order(name: str, places: Places, unsure: Container[str]) -> list[str]:
    """Of those whose place in their own topic is known."""
    broken, last = [], dict[str, tuple[int, int]]()
    for piece in (piece for queue in places.values() for piece in queue if piece.job not in unsure):
        key, _, number = piece.job.partition("/")
        at = (int(number), piece.index)
        if at <= last.get(key, (-1, -1)):
            broken.append(f"{name}: {piece.job}, {piece.index} comes after {last[key]}")
        last[key] = at
    return broken


class Feeder(threading.Thread):
    """Sends jobs, one key's in the order of their numbers; each is sent until it is answered for, where it is
    known again (`once`)."""

    def __init__(self, seed: int, jobs: int, ports: Callable[[], list[int]], once: bool) -> None:
        super().__init__(name="feeder", daemon=True)
        self.sent: list[str] = []
        self.unsure: list[str] = []
        self.through = 0  # how many the run has seen in the end
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._jobs = jobs
        self._ports = ports
        self._once = once
        self._random = Random(f"{seed}/feeder")

    def run(self) -> None:
        try:
            places = [f"127.0.0.1:{port}" for port in self._ports()]
            with Producer(places, timeout_ms=20_000) as producer:
                for number in range(self._jobs):
                    job = f"k{self._random.randrange(KEYS)}/{number}"
                    while not self.stopping.is_set() and not self._send(producer, job):
                        pass
                    while len(self.sent) - self.through > AHEAD_MAX and not self.stopping.wait(0.05):
                        pass
        except BaseException as error:
            self.failure = error

    def _send(self, producer: Producer, job: str) -> bool:
        key = job.partition("/")[0]
        try:
            producer.send(JOBS, job, key=key, shard_key=key, idempotency_key=job if self._once else None)
        except UnknownOutcomeError:
            if not self._once:
                self.unsure.append(job)
            return not self._once
        except SendError:
            return False
        self.sent.append(job)
        return True


class ReplyRun:
    """One run."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        jobs: int,
        say: Callable[[str], None],
        installation: Installation,
        stops: bool,
    ) -> None:
        self._folder = folder
        self._stops = stops
        self._seed = seed
        self._say = say
        self._random = Random(f"{seed}/killer")
        self.ordered = seed % 2 == 1
        config = configuration(folder / "conf", Random(f"{seed}/conf"))
        lease_ms = Random(f"{seed}/lease").choice([500, 2_000])
        retries = {"retry_intervals_ms": [20, -1], "max_timeout_redeliveries": -1, "start": "first"}
        write_config(folder / "conf", proxy_consumer={"defaults": {"ack_timeout_ms": lease_ms, **retries}})
        kafka = installation.engine == "kafka"
        self._servers = [
            RealServer(
                folder / f"server-{number}" if kafka else folder,
                config,
                command=command,
                installation=installation,
            )
            for number, command in enumerate(COMMANDS)
        ]
        self._loads: dict[str, subprocess.Popen[bytes]] = {}
        self._kills: Counter[str] = Counter()
        self._at: dict[tuple[str, int], int] = {}
        self._found: dict[str, dict[int, list[Piece]]] = {name: {} for name in (PARTS, SIDES, ENDS)}
        self._feeder = Feeder(seed, jobs, self._producers, once=not kafka)
        self._jobs = jobs

    def run(self) -> list[str]:
        """What was broken."""
        try:
            for server in self._servers:
                server.start()
            self._make()
            for name in LOADS:
                self._begin(name)
            self._feeder.start()
            while self._feeder.is_alive():
                self._round()
            self._settle()
            found = (self._found[name] for name in (PARTS, SIDES, ENDS))
            sent, unsure = self._feeder.sent, self._feeder.unsure
            return broken_rules(sent, *found, ordered=self.ordered, unsure=unsure)
        finally:
            self._feeder.stopping.set()
            for load in self._loads.values():
                self._end(load)
            for server in self._servers:
                server.kill()

    def _make(self) -> None:
        admin = self._servers[0].admin
        for topic in (JOBS, PARTS, SIDES, ENDS):
            admin("POST", "topics", topic, body={"create": True, "queues": QUEUES})
        order = {"order_key": "KEY", "order_scope": "topic"} if self.ordered else {}
        for group, topic in ((FIRST, JOBS), (SECOND, PARTS)):
            self._servers[1].admin(
                "POST", "groups", group, body={"topics": [topic], "start": "first", **order}
            )

    def _begin(self, name: str) -> None:
        seed = f"{self._seed}/{self._kills.total()}"
        ports = [str(server.ports["consumer"]) for server in self._servers if "consumer" in server.ports]
        command = [sys.executable, "-m", "tests.crash.reply_load", name, seed, *ports]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._loads[name] = subprocess.Popen(command, stderr=log, stdin=subprocess.PIPE)

    @staticmethod
    def _end(load: subprocess.Popen[bytes]) -> None:
        load.kill()
        load.wait()

    def _producers(self) -> list[int]:
        return [server.ports["producer"] for server in self._servers if "producer" in server.ports]

    def _round(self) -> None:
        time.sleep(self._random.uniform(*LOAD_S))  # load without a fault: its length is the seed's
        if self._stops and self._random.random() < 0.3:
            self._stand_still(self._random.choice([s for s in self._servers if s.command == "consumer"]))
        victims = self._random.sample([*self._servers, *LOADS], self._random.choice((1, 1, 1, 2, 3)))
        servers = [victim for victim in victims if isinstance(victim, RealServer)]
        for server in servers:
            server.kill()
            self._kills[server.command] += 1
        for name in LOADS:
            if name in victims:
                self._end(self._loads[name])
                self._kills["consumers"] += 1
        for server in servers:
            server.start()
        for name in LOADS:
            if name in victims:
                self._begin(name)
        self._look()
        if self._kills.total() % 20 < len(victims):
            self.report("so far")

    def _stand_still(self, server: RealServer) -> None:
        self._kills["stopped"] += 1
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)  # how long it stands still is the fault
        os.kill(server.pid, signal.SIGCONT)

    def _settle(self) -> None:
        """Everything goes through; the consumers stop as they should; what is there then is all."""
        if self._feeder.failure is not None:
            raise AssertionError(f"the feeder broke: {self._feeder.failure!r}")
        before: list[dict[str, int]] = [{}]

        def through() -> bool:
            """All of them, and nothing came of late."""
            self._look()
            begun = {piece.job for queue in self._found[SIDES].values() for piece in queue}
            wanted = sum(map(pieces_of, begun.union(self._feeder.sent)))
            before.append(self._counts())
            time.sleep(QUIET_S)  # for what would come of late; the next look sees it
            return before[-1][ENDS] >= wanted and before[-1] == before[-2]

        until(through, lambda: f"of {len(self._feeder.sent)} jobs {self._counts()}", END_S)
        for load in self._loads.values():
            load.communicate(timeout=60)
        self._look()

    def _look(self) -> None:
        """Read on in the topics that follow."""
        consumers = [server for server in self._servers if "consumer" in server.ports]
        address = f"127.0.0.1:{consumers[0].ports['consumer']}"
        with RangeReader(address, "cwp-reader", (PARTS, SIDES, ENDS), timeout_ms=60_000) as reader:
            for queue in reader.bounds():
                at = self._at.get((queue.topic, queue.queue), 0)
                pieces = self._found[queue.topic].setdefault(queue.queue, [])
                while at < queue.end:
                    read = reader.read(queue.topic, queue.queue, at)
                    pieces += [Piece(*json.loads(each.body)) for each in read.messages]
                    at = self._at[queue.topic, queue.queue] = read.next_offset
        self._feeder.through = sum(map(len, self._found[SIDES].values()))

    def _counts(self) -> dict[str, int]:
        return {name: sum(map(len, queues.values())) for name, queues in self._found.items()}

    def report(self, when: str) -> None:
        """One line."""
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self._kills.items()))
        order = "by key" if self.ordered else "without order"
        self._say(f"{when}: {len(self._feeder.sent)} jobs {order}, found {self._counts()}; kills {kills}")


def run(
    folder: Path,
    seed: int,
    jobs: int,
    say: Callable[[str], None] = print,
    *,
    stops: bool = False,
    engine: str = "file_log",
) -> int:
    """The number of broken promises; what was seen is said."""
    options = f"--seed {seed} --jobs {jobs}" + " --stops" * stops + " --kafka" * (engine == "kafka")
    say(f"seed {seed}; the same again: python -m tests.crash.reply_run {options}")
    with installed(engine) as made:
        one = ReplyRun(folder, seed, jobs, say, made, stops)
        try:
            broken = one.run()
        except (NotReady, AssertionError) as error:
            broken = [f"the run broke off: {error}"]
    one.report("end")
    for text in broken[:SHOWN_MAX]:
        say(f"BROKEN: {text}")
    say(f"{len(broken)} promises broken" if broken else "every job once and whole, through both steps")
    return len(broken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--stops", action="store_true", help="proxies stand still, too")
    parser.add_argument("--kafka", action="store_true", help="on a Kafka broker, not on the file log")
    parser.add_argument("--dir", type=Path, help="where the data lies (default: the temporary folder)")
    given = parser.parse_args()
    logging.getLogger("ddmq_client").setLevel(logging.CRITICAL)
    with scratch(given.dir) as folder:
        engine = "kafka" if given.kafka else "file_log"
        if run(folder, given.seed, given.jobs, stops=given.stops, engine=engine):
            print(f"kept for inspection: {folder}")
            sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
