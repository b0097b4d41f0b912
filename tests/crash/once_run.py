"""Sends that are stored once, while the servers that store them are killed with SIGKILL again and again.

    python -m tests.crash.once_run --seed 7 --rounds 100

Two producer proxies and a consumer proxy are processes of their own over one directory; one of them writes,
and another takes over when it is killed. Each round kills one of them, or several, now and then while they
start. Real Producers send all the time, and many senders repeat keys (once_load.py); the rules are in
once_ledger.py. At the end all keys are sent once more, and the topics are read. Prints the seed and the
command that runs the same again; the exit code is 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from ddmq_client import Producer
from ddmq_client.ranges import RangeReader
from tests.crash.kill_nine import START_KILL_S, START_KILL_SHARE, scratch
from tests.crash.once_ledger import OnceLedger, StoredAt
from tests.crash.once_load import TOPICS, KeySender, NumberedSender, OnceWorker
from tests.scenarios.real_server import NotReady, RealServer, write_config

NUMBERED, KEYED = 4, 3
COMMANDS = ("producer", "producer", "consumer")
LOAD_S = (0.05, 1.5)  # from ready to the kill
END_S = 120.0
REPORT_EVERY = 10
QUEUES = 4


def configuration(folder: Path, random: Random) -> Path:
    """Segments, checkpoints and tails are small, so that kills meet all of them."""
    mib = 1 << 20
    return write_config(
        folder,
        file_log={
            "segment_bytes": random.choice([1, 4, 64]) * mib,
            "allocate_bytes": mib,
            "checkpoint_bytes": random.choice([mib, 256 * mib]),
            "checkpoint_ms": random.choice([50, 500, 5_000]),
            "written_sync_ms": random.choice([10, 1_000]),
        },
        ddmq={"log_level": "warning"},
    )


class OnceRun:
    """One run."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self.random = Random(f"{seed}/killer")
        self.say = say
        self.ledger = OnceLedger()
        config = configuration(folder / "conf", Random(f"{seed}/conf"))
        self.servers = [RealServer(folder, config, command=command) for command in COMMANDS]
        self.kills = {"serving": 0, "starting": 0}
        self.workers: list[OnceWorker] = [
            NumberedSender(f"numbered-{n}", seed, self.ledger, self._ports) for n in range(NUMBERED)
        ]
        self.keyed = [KeySender(f"keyed-{n}", seed, self.ledger, self._ports) for n in range(KEYED)]
        self.workers += self.keyed

    def _ports(self) -> list[int]:
        return [server.ports["producer"] for server in self.servers if "producer" in server.ports]

    def run(self, rounds: int) -> int:
        """Number of violations."""
        try:
            for server in self.servers:
                server.start()
            for topic, durability in zip(TOPICS, ("sync", "written"), strict=True):
                body = {"create": True, "queues": QUEUES, "durability": durability}
                self.servers[0].admin("POST", "topics", topic, body=body)
            for worker in self.workers:
                worker.start()
            for number in range(1, rounds + 1):
                self._round(number)
                if self.ledger.violations_count or any(worker.failure for worker in self.workers):
                    break
            self._end()
            assert self.ledger.counts.confirmed > 10 * rounds, "too little was done to prove a thing"
        finally:
            for server in self.servers:
                server.kill()
        return self.ledger.violations_count

    def _round(self, number: int) -> None:
        self.workers[0].stopping.wait(self.random.uniform(*LOAD_S))
        victims = self.random.sample(self.servers, self.random.choice((1, 1, 1, 2, 3)))
        self._kill(victims, "serving")
        if self.random.random() < START_KILL_SHARE:
            for server in victims:
                server.launch()
            self.workers[0].stopping.wait(self.random.uniform(*START_KILL_S))
            self._kill(victims, "starting")
        for server in victims:
            server.start()
        if number % REPORT_EVERY == 0:
            self.report(f"round {number}")

    def _kill(self, victims: list[RealServer], when: str) -> None:
        for server in victims:
            server.kill()
            self.kills[when] += 1

    # --- the end

    def _end(self) -> None:
        for worker in self.workers:
            worker.stop()
        for worker in self.workers:
            worker.join()
        self._all_keys()
        self.ledger.finish(self._stored())

    def _all_keys(self) -> None:
        """Once more, by somebody else: what was stored before is known."""
        keyed, numbers = self.keyed[0], max(sender.newest for sender in self.keyed)
        with Producer([f"127.0.0.1:{port}" for port in self._ports()], timeout_ms=int(END_S * 1_000)) as last:
            messages = [keyed.message(number) for number in range(numbers)]
            for message, result in zip(messages, last.send_batch(messages), strict=True):
                self.ledger.key(bytes(message.body))
                keyed.note(message, result)

    def _stored(self) -> list[tuple[StoredAt, bytes]]:
        """All that is in the topics."""
        (address,) = [f"127.0.0.1:{s.ports['consumer']}" for s in self.servers if "consumer" in s.ports]
        found: list[tuple[StoredAt, bytes]] = []
        with RangeReader(address, "once-reader", TOPICS, timeout_ms=int(END_S * 1_000)) as reader:
            for queue in reader.bounds():
                at = queue.first
                while at < queue.end:
                    read = reader.read(queue.topic, queue.queue, at)
                    for each in read.messages:
                        place = StoredAt(queue.topic, queue.number, each.offset, each.message_id or "")
                        found.append((place, bytes(each.body)))
                    at = read.next_offset
        return found

    def report(self, when: str) -> None:
        """One line."""
        counts = dataclasses.asdict(self.ledger.counts)
        said = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        kills = ", ".join(f"{count} {what}" for what, count in self.kills.items())
        self.say(f"{when}: kills {kills}; {said}")


def run(folder: Path, seed: int, rounds: int, say: Callable[[str], None] = print) -> int:
    """The number of broken promises; what was seen is said."""
    logging.getLogger("thrift").setLevel(logging.CRITICAL)  # it tells of every failed connect
    logging.getLogger("ddmq_client").setLevel(logging.CRITICAL)
    say(f"seed {seed}; the same again: python -m tests.crash.once_run --seed {seed} --rounds {rounds}")
    one = OnceRun(folder, seed, say)
    try:
        broken = one.run(rounds)
    except (NotReady, AssertionError) as error:
        one.ledger.violated(f"the run broke off: {error}")
        broken = one.ledger.violations_count
    one.report("end")
    for text in one.ledger.violations:
        say(f"BROKEN: {text}")
    say(f"{broken} promises broken" if broken else "0 lost, 0 stored twice, 0 answered for another place")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--dir", type=Path, help="where the data lies (default: the temporary folder)")
    given = parser.parse_args()
    with scratch(given.dir) as folder:
        if run(folder, given.seed, given.rounds):
            print(f"kept for inspection: {folder}")
            sys.exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
