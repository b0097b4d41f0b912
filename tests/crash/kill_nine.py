"""R1: real servers are killed with SIGKILL at random moments under load, started again, and checked.

    python -m tests.crash.kill_nine --seed 7 --rounds 200                one process with all parts
    python -m tests.crash.kill_nine --seed 7 --rounds 200 --processes    writer and proxies as their own

With --processes the producer proxy and the consumer proxy are processes of their own over one directory;
each round kills one of them, or both; whichever is there becomes the writer. Some kills hit a server that
is still starting. The rules are in kill_nine_ledger.py, the load in kill_nine_load.py. Prints the seed and
the command that runs the same again; the exit code is 1 when any promise was broken.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from tests.crash.kill_nine_ledger import Ledger, Location
from tests.crash.kill_nine_load import BROKEN, GROUP, QUEUES, TOPIC, Consumer, Sender, queue_of
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.kill_run import describe_counts, judged
from tests.crash.kit.load_thread import stopped
from tests.crash.kit.server_rounds import STARTING, ServerRounds
from tests.interop.apache_client import Client, done
from tests.scenarios.real_server import RealServer, write_config
from tests.support.waits import until

SENDERS, CONSUMERS = 4, 4
DRAIN_S = 120.0
DEAD_GROUP = "failing"
RETRY_INTERVALS_MS = [20, 40]  # so the third failure buries


def configuration(folder: Path, random: Random) -> Path:
    """Leases end soon; segments and checkpoints (and tails) are small, so that kills meet all of them."""
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
        },
        ddmq={"log_level": "warning"},
    )


def choose_tails(random: Random) -> dict[str, int]:
    """Return the constants of the log that bound its tails."""
    return {
        "backend.file_log.options:FileLogOptions.tail_bytes_max": random.choice([4096, 8 << 20]),
        "backend.file_log.options:FileLogOptions.tail_ms": random.choice([10, 200]),
    }


class Killing(ServerRounds):
    """One run."""

    ledger: Ledger
    load_s = (0.05, 1.2)
    report_every = 20

    def __init__(self, folder: Path, seed: int, processes: bool, print_line: PrintLine) -> None:
        random = Random(f"{seed}/conf")
        config, tails = configuration(folder / "conf", random), choose_tails(random)
        commands = ("consumer", "producer") if processes else ("serve",)
        servers = [RealServer(folder, config, command=command) for command in commands]
        for server in servers:
            server.constants = tails
        super().__init__(seed, print_line, servers, Ledger(fails_to_bury=len(RETRY_INTERVALS_MS) + 1))
        self.ready_s: list[float] = []
        self.senders = [Sender(n, seed, self.ledger, self._port("producer")) for n in range(SENDERS)]
        self.consumers = [Consumer(n, seed, self.ledger, self._port("consumer")) for n in range(CONSUMERS)]
        self.workers = [*self.senders, *self.consumers]
        self._watch_stop = threading.Event()
        self._looking = threading.Lock()  # answers are heard in the order in which they were asked for
        self._watcher = threading.Thread(target=self._watch, name="stats", daemon=True)
        self.failure: BaseException | None = None

    def _port(self, component: str) -> Callable[[], int]:
        (server,) = [each for each in self.servers if component in each.ports]
        return lambda: server.ports[component]

    def prepare(self) -> None:
        consumer = self.servers[0]
        consumer.admin("POST", "topics", TOPIC, body={"create": True, "queues": QUEUES})
        consumer.admin("POST", "groups", GROUP, body={"topics": [TOPIC]})
        self._watcher.start()

    def is_proof(self, rounds: int) -> bool:
        return min(self.ledger.counts.acknowledged, self.ledger.counts.acks_binding) > rounds

    # --- a round

    def victims(self) -> list[RealServer]:
        if len(self.servers) == 1 or self.random.random() < 0.2:
            return list(self.servers)
        return [self.random.choice(self.servers)]

    def kill(self, victims: list[RealServer], when: str) -> None:
        for server in victims:
            server.kill()
            self.kills[server.command] += 1
        self.kills["while starting"] += when == STARTING
        self.ledger.killed()

    def start(self, victims: Sequence[RealServer]) -> None:
        for server in self.random.sample(victims, len(victims)):
            began = time.monotonic()
            server.start()
            self.ready_s.append(time.monotonic() - began)

    # --- looking on

    def _watch(self) -> None:
        """Asks for committed offsets all the time."""
        try:
            while not self._watch_stop.wait(0.02):
                self._check_progress()
        except BaseException as error:
            self.failure = error

    def _check_progress(self) -> bool:
        """One look; whether everything is consumed."""
        with self._looking:
            return self._compare_offsets()

    def _compare_offsets(self) -> bool:
        try:
            with Client(self._port("consumer")(), timeout_s=10.0) as client:
                stats = client.stats(GROUP, TOPIC)
        except BROKEN:
            return False
        if not stats:
            return False
        self.ledger.committed({queue_of(qid): offset for qid, offset in stats[0].consumeOffsets.items()})
        return bool(stats[0].consumeOffsets == stats[0].produceOffsets)

    # --- the end

    def end(self) -> None:
        stopped(self.senders)
        for consumer in self.consumers:
            consumer.gentle = True
        try:
            until(self._check_progress, "everything is consumed", DRAIN_S)
        except AssertionError as error:
            self.ledger.violated(f"stuck: {error}; {self._where()}")
        self._watch_stop.set()
        self._watcher.join(30)
        stopped(self.consumers)
        if self.failure is not None:
            raise self.failure
        self.ledger.finish(self._dead())

    def _where(self) -> str:
        with Client(self._port("consumer")(), timeout_s=10.0) as client:
            return str(client.stats(GROUP, TOPIC))

    def _dead(self) -> list[Location]:
        """Origins of all dead letters."""
        consumer = self.servers[0]
        locations: list[Location] = []
        dead_topic = f"%DLQ%{GROUP}"
        if consumer.request("GET", f"/topics/{dead_topic.replace('%', '%25')}")[0] != 200:
            return locations
        consumer.admin("POST", "groups", DEAD_GROUP, body={"topics": [dead_topic], "start": "first"})
        with Client(self._port("consumer")()) as client:
            until(lambda: self._bury(client, dead_topic, locations), "all dead letters", DRAIN_S)
        return locations

    @staticmethod
    def _bury(client: Client, topic: str, locations: list[Location]) -> bool:
        answer = client.pull(DEAD_GROUP, topic, maxLingerTime=100)
        for letter in answer.messages:
            properties = letter.properties
            assert properties["dead-letter-topic"] == TOPIC
            locations.append((int(properties["dead-letter-queue"]), int(properties["dead-letter-offset"])))
        client.submit(done(answer))
        stats = client.stats(DEAD_GROUP, topic)
        return bool(stats) and stats[0].consumeOffsets == stats[0].produceOffsets

    def numbers(self) -> str:
        ready = sorted(self.ready_s) or [0.0]
        counts = describe_counts(self.ledger.counts)
        return f"ready p50 {ready[len(ready) // 2]:.2f} max {ready[-1]:.2f} s; {counts}"


def run(folder: Path, seed: int, rounds: int, processes: bool = False, print_line: PrintLine = print) -> int:
    """Report what the run sees, and return the number of broken promises."""
    print_line(
        "the same again: " + replay_command("kill_nine", seed=seed, rounds=rounds, processes=processes)
    )
    success_text = "0 lost, 0 out of order, 0 acknowledged again, 0 past unfinished"
    return judged(Killing(folder, seed, processes, print_line), rounds, success_text)


def main() -> int:
    return long_run(__doc__, "kill-nine", run, seed=None, rounds=200, processes=False)


if __name__ == "__main__":
    sys.exit(main())
