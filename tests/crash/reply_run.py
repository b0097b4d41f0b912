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

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

from ddmq_client import Producer, SendError, UnknownOutcomeError
from tests.crash.kit.boundaries import make_boundary_servers
from tests.crash.kit.boundary_process import PROGRESS, REPLY, SEND
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.kill_run import configuration, judged
from tests.crash.kit.process_rounds import ProcessRounds
from tests.crash.kit.reading import Reached, read_on
from tests.crash.reply_load import ENDS, FIRST, JOBS, PARTS, SECOND, SIDES, Work, count_parts
from tests.scenarios.real_server import RealServer, write_config
from tests.support.installations import Installation, installed
from tests.support.waits import until

COMMANDS = ("producer", "consumer", "consumer")
KEYS = 12
QUEUES = 3
AHEAD_MAX = 400  # jobs that are sent and not through
END_S = 240.0
QUIET_S = 1.0
STOPPED_S = 12.0  # others have its queues after 10
WorkByQueue = Mapping[int, Sequence[Work]]  # by queue, in order


def broken_rules(
    jobs: Iterable[str],
    parts: WorkByQueue,
    sides: WorkByQueue,
    ends: WorkByQueue,
    *,
    ordered: bool,
    uncertain: Iterable[str] = (),
) -> list[str]:
    """Return what does not agree. `jobs`: those that are stored, each once; `uncertain`: those that may be;
    the others: what is in the topics."""
    broken: list[str] = []
    sides_of = {work.job for queue in sides.values() for work in queue}
    expected = set(jobs) | sides_of.intersection(uncertain)
    for name, queues in (("parts", parts), ("sides", sides), ("ends", ends)):
        works_of: dict[str, list[Work]] = {}
        for work in (work for queue in queues.values() for work in queue):
            works_of.setdefault(work.job, []).append(work)
        broken += [f"{job} is in {name}, and nobody sent it" for job in works_of.keys() - expected]
        for job in expected:
            broken += _of_job(name, job, works_of.get(job, []))
        if ordered:
            broken += _out_of_order(name, queues, set(uncertain))
    tokens = {work.job: work.token for queue in parts.values() for work in queue}
    others = [work for queue in sides.values() for work in queue if tokens.get(work.job) != work.token]
    broken += [f"the parts and the side of {work.job} are of two handlings" for work in others]
    return broken


def _of_job(name: str, job: str, works: Sequence[Work]) -> list[str]:
    count = 1 if name == "sides" else count_parts(job)
    times = Counter(work.index for work in works)
    if times != Counter(range(count)):
        return [f"{name} of {job} are {dict(times)}; {count} are wanted, each once"]
    if name != "ends" and len({work.token for work in works}) > 1:
        return [f"{name} of {job} are of several handlings"]
    return []


def _out_of_order(name: str, queues: WorkByQueue, uncertain: Container[str]) -> list[str]:
    """Of those whose place in their own topic is known."""
    broken, last = [], dict[str, tuple[int, int]]()
    for work in (work for queue in queues.values() for work in queue if work.job not in uncertain):
        key, _, number = work.job.partition("/")
        at = (int(number), work.index)
        if at <= last.get(key, (-1, -1)):
            broken.append(f"{name}: {work.job}, {work.index} comes after {last[key]}")
        last[key] = at
    return broken


class Feeder(threading.Thread):
    """Sends jobs, one key's in the order of their numbers; each is sent until it is answered for, where it is
    known again (`once`)."""

    def __init__(self, seed: int, jobs: int, addresses: Callable[[], list[str]], once: bool) -> None:
        super().__init__(name="feeder", daemon=True)
        self.sent: list[str] = []
        self.uncertain: list[str] = []
        self.through = 0  # how many the run has seen in the end
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._jobs = jobs
        self._addresses = addresses
        self._once = once
        self._random = Random(f"{seed}/feeder")

    def run(self) -> None:
        try:
            with Producer(self._addresses(), timeout_ms=20_000) as producer:
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
                self.uncertain.append(job)
            return not self._once
        except SendError:
            return False
        self.sent.append(job)
        return True


class ReplyRun(ProcessRounds):
    """One run."""

    module = "tests.crash.reply_load"
    load_kind = "consumers"
    boundary_names = {"producer": (SEND,), "consumer": (REPLY, PROGRESS)}

    def __init__(
        self,
        folder: Path,
        seed: int,
        jobs: int,
        print_line: PrintLine,
        installation: Installation,
        stops: bool,
    ) -> None:
        config = configuration(folder / "conf", seed)
        lease_ms = Random(f"{seed}/lease").choice([500, 2_000])
        retries = {"retry_intervals_ms": [20, -1], "max_timeout_redeliveries": -1, "start": "first"}
        write_config(folder / "conf", proxy_consumer={"defaults": {"ack_timeout_ms": lease_ms, **retries}})
        kafka = installation.engine == "kafka"
        servers = make_boundary_servers(folder, config, COMMANDS, installation)
        super().__init__(folder, seed, print_line, servers)
        self.ordered = seed % 2 == 1
        self._stops = stops
        self._reached: Reached = {}
        self._read: dict[str, dict[int, list[Work]]] = {name: {} for name in (PARTS, SIDES, ENDS)}
        self._feeder = Feeder(seed, jobs, self.addresses, once=not kafka)

    def prepare(self) -> None:
        admin = self.servers[0].admin
        for topic in (JOBS, PARTS, SIDES, ENDS):
            admin("POST", "topics", topic, body={"create": True, "queues": QUEUES})
        order = {"order_key": "KEY", "order_scope": "topic"} if self.ordered else {}
        for group, topic in ((FIRST, JOBS), (SECOND, PARTS)):
            self.servers[1].admin(
                "POST", "groups", group, body={"topics": [topic], "start": "first", **order}
            )

    def words(self, name: str, seed: str) -> list[str]:
        return [name, seed, *map(str, self.ports("consumer"))]

    def feed(self) -> None:
        self._feeder.start()

    def is_enough(self, length: int) -> bool:
        return not self._feeder.is_alive()

    def progress(self) -> int:
        return len(self._feeder.sent) + len(self._feeder.uncertain) + sum(self._counts().values())

    def broken(self) -> list[str]:
        works_of = (self._read[name] for name in (PARTS, SIDES, ENDS))
        sent, uncertain = self._feeder.sent, self._feeder.uncertain
        return broken_rules(sent, *works_of, ordered=self.ordered, uncertain=uncertain)

    def over(self) -> None:
        self._feeder.stopping.set()
        super().over()

    def inject_fault(self) -> None:
        if self._stops and self.random.random() < 0.3:
            self._stand_still(self.random.choice([s for s in self.servers if s.command == "consumer"]))

    def _stand_still(self, server: RealServer) -> None:
        self.kills["stopped"] += 1
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)  # how long it stands still is the fault
        os.kill(server.pid, signal.SIGCONT)

    def settle(self) -> None:
        """Everything goes through; the consumers stop as they should; what is there then is all."""
        if self._feeder.failure is not None:
            raise AssertionError(f"the feeder broke: {self._feeder.failure!r}")
        before: list[dict[str, int]] = [{}]

        def through() -> bool:
            """All of them, and nothing came of late."""
            self.check_loads_alive()
            self.check_round()
            begun_jobs = {work.job for queue in self._read[SIDES].values() for work in queue}
            expected = sum(map(count_parts, begun_jobs.union(self._feeder.sent)))
            before.append(self._counts())
            time.sleep(QUIET_S)  # for what would come of late; the next look sees it
            return before[-1][ENDS] >= expected and before[-1] == before[-2]

        until(through, lambda: f"of {len(self._feeder.sent)} jobs {self._counts()}", END_S)
        for load in self.loads.values():
            load.communicate(timeout=60)
        self.check_round()

    def check_round(self) -> None:
        """Read on in the topics that follow."""
        for queue, each in read_on(self.addresses("consumer"), (PARTS, SIDES, ENDS), self._reached):
            works = self._read[queue.topic].setdefault(queue.number, [])
            works.append(Work(*json.loads(each.body)))
        self._feeder.through = sum(map(len, self._read[SIDES].values()))

    def _counts(self) -> dict[str, int]:
        return {name: sum(map(len, queues.values())) for name, queues in self._read.items()}

    def numbers(self) -> str:
        order = "by key" if self.ordered else "without order"
        return f"{len(self._feeder.sent)} jobs {order}, found {self._counts()}"


def run(
    folder: Path, seed: int, jobs: int, print_line: PrintLine = print, *, stops: bool = False,
    kafka: bool = False, boundaries: bool = False,
) -> int:  # fmt: skip
    """Report what the run sees, and return the number of broken promises."""
    options = {"seed": seed, "jobs": jobs, "stops": stops, "kafka": kafka, "boundaries": boundaries}
    print_line("the same again: " + replay_command("reply_run", **options))
    with installed("kafka" if kafka else "file_log") as installation:
        one = ReplyRun(folder, seed, jobs, print_line, installation, stops)
        return judged(one, jobs, "every job once and whole, through both steps", boundaries=boundaries)


def main() -> int:
    flags = {"stops": False, "kafka": False, "boundaries": False}
    return long_run(__doc__, "reply-run", run, seed=None, jobs=10_000, **flags)


if __name__ == "__main__":
    sys.exit(main())
