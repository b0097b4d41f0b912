"""R1: real servers are killed with SIGKILL at random moments under load, started again, and checked.

    python -m tests.crash.kill_nine --seed 7 --rounds 200                one process with all parts
    python -m tests.crash.kill_nine --seed 7 --rounds 200 --processes    writer and proxies as their own

With --processes the producer proxy and the consumer proxy are processes of their own over one directory;
each round kills one of them, or both; whichever is there becomes the writer. Some kills hit a server that
is still starting. The rules are in kill_nine_ledger.py, the load in kill_nine_load.py. Prints the seed and
the command that runs the same again; the exit code is 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.crash.kill_nine_ledger import Ledger, Place
from tests.crash.kill_nine_load import BROKEN, GROUP, QUEUES, TOPIC, Consumer, Sender, queue_of
from tests.interop.apache_client import Client, done
from tests.scenarios.real_server import NotReady, RealServer, write_config
from tests.support.waits import until

SENDERS, CONSUMERS = 4, 4
LOAD_S = (0.05, 1.2)  # from ready to the kill
START_KILL_SHARE = 0.15  # of the kills hit a starting server
START_KILL_S = (0.0, 0.8)
DRAIN_S = 120.0
REPORT_EVERY = 20
DEAD_GROUP = "failing"
RETRY_INTERVALS_MS = [20, 40]  # so the third failure buries


def configuration(folder: Path, random: Random) -> Path:
    """Leases end soon; segments, checkpoints and tails are small, so that kills meet all of them."""
    mib = 1 << 20
    return write_config(
        folder,
        proxy_consumer={
            "defaults": {
                "ack_timeout_ms": random.choice([300, 1_000]),
                "retry_intervals_ms": RETRY_INTERVALS_MS,
                "max_timeout_redeliveries": -1,
                "retry_steps": 0,
                "start": "first",
            }
        },
        file_log={
            "segment_bytes": random.choice([1, 4, 64]) * mib,
            "allocate_bytes": mib,
            "checkpoint_bytes": random.choice([mib, 256 * mib]),
            "checkpoint_ms": random.choice([50, 500, 5_000]),
            "tail_bytes_max": random.choice([4096, 8 * mib]),
            "tail_ms": random.choice([10, 200]),
        },
        ddmq={"log_level": "warning"},
    )


class Killing:
    """One run."""

    def __init__(self, folder: Path, seed: int, processes: bool, say: Callable[[str], None]) -> None:
        self.random = Random(f"{seed}/killer")
        self.say = say
        self.ledger = Ledger(fails_to_bury=len(RETRY_INTERVALS_MS) + 1)
        config = configuration(folder / "conf", Random(f"{seed}/conf"))
        commands = ("consumer", "producer") if processes else ("serve",)
        self.servers = [RealServer(folder, config, command=command) for command in commands]
        self.kills = dict.fromkeys(commands, 0) | {"while starting": 0}
        self.ready_s: list[float] = []
        self.senders = [Sender(n, seed, self.ledger, self._port("producer")) for n in range(SENDERS)]
        self.consumers = [Consumer(n, seed, self.ledger, self._port("consumer")) for n in range(CONSUMERS)]
        self._watch_stop = threading.Event()
        self._looking = threading.Lock()  # answers are heard in the order in which they were asked for
        self._watcher = threading.Thread(target=self._watch, name="stats", daemon=True)
        self.failure: BaseException | None = None

    def _port(self, part: str) -> Callable[[], int]:
        (server,) = [each for each in self.servers if part in each.ports]
        return lambda: server.ports[part]

    # --- the run

    def run(self, rounds: int) -> int:
        """Number of violations."""
        try:
            for server in self.servers:
                server.start()
            self._prepare()
            for worker in (*self.senders, *self.consumers):
                worker.start()
            self._watcher.start()
            for number in range(1, rounds + 1):
                self._round(number)
                if self.ledger.violations_count:
                    break
            self._drain()
            self.ledger.finish(self._dead())
            counts = self.ledger.counts
            assert min(counts.acknowledged, counts.acks_binding) > rounds, (
                "too little was done to prove a thing"
            )
        finally:
            for server in self.servers:
                server.kill()
        return self.ledger.violations_count

    def _prepare(self) -> None:
        consumer = self.servers[0]
        consumer.admin("POST", "topics", TOPIC, body={"create": True, "queues": QUEUES})
        consumer.admin("POST", "groups", GROUP, body={"topics": [TOPIC]})

    def _round(self, number: int) -> None:
        self._watch_stop.wait(self.random.uniform(*LOAD_S))
        victims = self._victims()
        self._kill(victims)
        if self.random.random() < START_KILL_SHARE:
            for server in victims:
                server.launch()
            self._watch_stop.wait(self.random.uniform(*START_KILL_S))
            self._kill(victims)
            self.kills["while starting"] += 1
        self.random.shuffle(victims)
        for server in victims:
            self._start(server)
        if number % REPORT_EVERY == 0:
            self.report(f"round {number}")

    def _victims(self) -> list[RealServer]:
        if len(self.servers) == 1 or self.random.random() < 0.2:
            return list(self.servers)
        return [self.random.choice(self.servers)]

    def _kill(self, victims: list[RealServer]) -> None:
        for server in victims:
            server.kill()
            self.kills[server.command] += 1
        self.ledger.killed()

    def _start(self, server: RealServer) -> None:
        began = time.monotonic()
        server.start()
        self.ready_s.append(time.monotonic() - began)

    # --- looking on

    def _watch(self) -> None:
        """Asks for committed offsets all the time."""
        try:
            while not self._watch_stop.wait(0.02):
                self._look()
        except BaseException as error:
            self.failure = error

    def _look(self) -> bool:
        """One look; whether everything is consumed."""
        with self._looking:
            return self._look_alone()

    def _look_alone(self) -> bool:
        try:
            with Client(self._port("consumer")(), timeout_s=10.0) as client:
                found = client.stats(GROUP, TOPIC)
        except BROKEN:
            return False
        if not found:
            return False
        self.ledger.committed({queue_of(qid): offset for qid, offset in found[0].consumeOffsets.items()})
        return bool(found[0].consumeOffsets == found[0].produceOffsets)

    # --- the end

    def _drain(self) -> None:
        for sender in self.senders:
            sender.stop()
        for sender in self.senders:
            sender.join()
        for consumer in self.consumers:
            consumer.gentle = True
        try:
            until(self._look, "everything is consumed", DRAIN_S)
        except AssertionError as error:
            self.ledger.violations.append(f"stuck: {error}; {self._where()}")
            self.ledger.violations_count += 1
        self._watch_stop.set()
        self._watcher.join(30)
        for consumer in self.consumers:
            consumer.stop()
        for consumer in self.consumers:
            consumer.join()
        if self.failure is not None:
            raise self.failure

    def _where(self) -> str:
        with Client(self._port("consumer")(), timeout_s=10.0) as client:
            return str(client.stats(GROUP, TOPIC))

    def _dead(self) -> list[Place]:
        """Origins of all dead letters."""
        consumer = self.servers[0]
        found: list[Place] = []
        dead_topic = f"%DLQ%{GROUP}"
        if consumer.ask("GET", f"/topics/{dead_topic.replace('%', '%25')}")[0] != 200:
            return found
        consumer.admin("POST", "groups", DEAD_GROUP, body={"topics": [dead_topic], "start": "first"})
        with Client(self._port("consumer")()) as client:
            until(lambda: self._bury(client, dead_topic, found), "all dead letters", DRAIN_S)
        return found

    @staticmethod
    def _bury(client: Client, topic: str, found: list[Place]) -> bool:
        answer = client.pull(DEAD_GROUP, topic, maxLingerTime=100)
        for letter in answer.messages:
            told = letter.properties
            assert told["dead-letter-topic"] == TOPIC
            found.append((int(told["dead-letter-queue"]), int(told["dead-letter-offset"])))
        client.submit(done(answer))
        stats = client.stats(DEAD_GROUP, topic)
        return bool(stats) and stats[0].consumeOffsets == stats[0].produceOffsets

    def report(self, when: str) -> None:
        """One line."""
        ready = sorted(self.ready_s) or [0.0]
        kills = ", ".join(f"{count} {what}" for what, count in self.kills.items())
        counts = ", ".join(
            f"{name} {value}" for name, value in dataclasses.asdict(self.ledger.counts).items()
        )
        self.say(
            f"{when}: kills {kills}; ready p50 {ready[len(ready) // 2]:.2f} max {ready[-1]:.2f} s; {counts}"
        )


def run(
    folder: Path, seed: int, rounds: int, processes: bool = False, say: Callable[[str], None] = print
) -> int:
    """The number of broken promises; what was seen is said."""
    logging.getLogger("thrift").setLevel(logging.CRITICAL)  # it tells of every failed connect
    command = f"python -m tests.crash.kill_nine --seed {seed} --rounds {rounds}"
    say(f"seed {seed}; the same again: {command}{' --processes' if processes else ''}")
    killing = Killing(folder, seed, processes, say)
    try:
        broken = killing.run(rounds)
    except (NotReady, AssertionError) as error:
        killing.ledger.violations.append(f"the run broke off: {error}")
        broken = killing.ledger.violations_count + 1
    killing.report("end")
    for text in killing.ledger.violations:
        say(f"BROKEN: {text}")
    say(
        f"{broken} promises broken"
        if broken
        else "0 lost, 0 out of order, 0 acknowledged again, 0 past unfinished"
    )
    return broken


@contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """A folder that is removed when nothing went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="kill-nine-", dir=keep))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--processes", action="store_true", help="each part its own process")
    parser.add_argument(
        "--dir", type=Path, help="where the data lies (default: the system's temporary folder)"
    )
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        broken = run(folder, given.seed, given.rounds, given.processes)
        if broken:
            print(f"kept for inspection: {folder}")
            sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
