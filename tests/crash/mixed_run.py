"""A long mixed run over real processes: order keys, failures, time-outs, clients that come and go, kill -9.

    python -m tests.crash.mixed_run --seed 1                       `ddmq serve` and two consumer proxies
    python -m tests.crash.mixed_run --seed 1 --processes           producer, delay service and proxies apart
    python -m tests.crash.mixed_run --seed 1 --kafka 3             on three Kafka brokers
    python -m tests.crash.mixed_run --seed 1 --keys 10000 --messages 40000 --seconds 120 --proxies 2

All processes share one directory; whichever is there becomes the writer. Four groups consume two topics: by
key within a topic, by key within each queue, by a path into the body over both topics, and
unordered with retries over the delay levels. 5 % of what clients get they fail, 1 % they never answer; a
few messages are always failed, or never answered, and end as dead letters. The rules that are proved
afterwards stand in mixed/rules.py. Prints what was broken with the whole history of the messages
concerned, and the command that runs the same again; the exit code is 1 then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.mixed.clients import BROKEN, Load, OldVisit, OurVisit, Proxy, Sender, Surroundings, Visit
from tests.crash.mixed.history import Ending, History, Kill, Plan
from tests.crash.mixed.reading import read_ending
from tests.crash.mixed.rules import Violation, check, coverage
from tests.crash.mixed.storytelling import story
from tests.interop.apache_client import Client
from tests.scenarios.real_server import NotReady, RealServer, write_config
from tests.support.waits import until

MIB = 1 << 20
TOPICS = {"orders": 4, "events": 3}
SENDERS, VISITORS = 2, 3  # VISITORS: at once, per group
VISIT_S = (1.0, 8.0)
KILL_GAP_S = (1.0, 5.0)
DOWN_S = (0.0, 1.5)
BOTH_SHARE = 0.2  # of the kills take two processes
START_KILL_SHARE = 0.15  # of the kills are followed by one of a starting process
START_KILL_S = (0.0, 1.5)
DRAIN_S = 180.0
QUIET_S = 3.0  # longer than a message can be on its way without being seen
SHOWN = 10
REPORT_S = 15.0
ORDERED = {"retry_intervals_ms": [20, 40], "ordered_interval_ms": 100, "ordered_deliveries_max": 6}
RETRIED = {"retry_intervals_ms": [20], "retry_steps": 3}
SETTINGS = {
    "by-topic": {"order_key": "KEY", "order_scope": "topic", **ORDERED},
    "by-queue": {"order_key": "KEY", "order_scope": "queue", **ORDERED},
    "by-group": {"order_key": "$.k", "order_scope": "group", **ORDERED},
    "unordered": RETRIED,
}
ACK_TIMEOUT_S, TIMEOUTS_MAX = 1.0, 2
PLANS = (
    Plan("by-topic", ("orders",), "topic", ACK_TIMEOUT_S, 2, TIMEOUTS_MAX, 6, 0),
    Plan("by-queue", ("orders",), "queue", ACK_TIMEOUT_S, 2, TIMEOUTS_MAX, 6, 0),
    Plan("by-group", ("orders", "events"), "group", ACK_TIMEOUT_S, 2, TIMEOUTS_MAX, 6, 0),
    Plan("unordered", ("events",), "", ACK_TIMEOUT_S, 1, TIMEOUTS_MAX, -1, 3),
)


def configuration(folder: Path) -> Path:
    """Leases and levels are short; what proxies log can be read by a program."""
    return write_config(
        folder,
        proxy_consumer={
            "idle_ms": 3_600_000,
            "defaults": {
                "ack_timeout_ms": int(ACK_TIMEOUT_S * 1000),
                "max_timeout_redeliveries": TIMEOUTS_MAX,
                "start": "first",
            },
        },
        delay_service={"levels": [f"{50 * number}ms" for number in range(1, 7)]},
        file_log={"segment_bytes": 64 * MIB, "allocate_bytes": MIB, "checkpoint_ms": 500},
        ddmq={"log_level": "info", "log_format": "json"},
    )


class MixedRun:
    """One run over one directory; `on_kafka.py` has the other kind."""

    plans: Sequence[Plan] = PLANS
    settings: Mapping[str, Mapping[str, object]] = SETTINGS

    def __init__(
        self,
        folder: Path,
        seed: int,
        load: Load,
        seconds: float,
        proxies: int,
        processes: bool,
        print_line: PrintLine,
    ) -> None:
        self.random = Random(f"{seed}/killer")
        self.seed, self.seconds, self.print_line = seed, seconds, print_line
        self.history = History()
        self.ending = Ending()
        commands = ["producer", "delay-service"] if processes else ["serve"]
        names = commands + [f"consumer-{number + 1}" for number in range(proxies)]
        config = self.configuration(folder / "conf")
        self.servers = {name: self.server(folder, config, name) for name in names}
        self.proxies = {name: Proxy(name, self._port(name, "consumer")) for name in names}
        self.kills = dict.fromkeys(names, 0)
        consuming = [self.proxies[name] for name in names if "consumer" in self.servers[name].ports]
        self.around = Surroundings(self.history, consuming, threading.Event(), threading.Event())
        sent_to = Proxy(names[0], self._port(names[0], "producer"))
        self.senders = [Sender(n, SENDERS, seed, load, self.around, sent_to) for n in range(SENDERS)]
        for sender in self.senders:
            sender.pace_s = seconds / load.messages
        self._slots = [
            threading.Thread(target=self._visits, args=(plan, number), daemon=True)
            for plan in self.plans
            for number in range(VISITORS)
        ]
        self._failures: list[BaseException] = []
        self._stuck: list[Violation] = []
        self._reported_at = time.monotonic()

    def configuration(self, folder: Path) -> Path:
        """Where everything is set."""
        return configuration(folder)

    def server(self, folder: Path, config: Path, name: str) -> RealServer:
        """One process."""
        command = "consumer" if name.startswith("consumer") else name
        server = RealServer(folder, config, command=command)
        server.log_path = folder / f"{name}.log"
        return server

    def _port(self, name: str, component: str) -> Callable[[], int]:
        return lambda: self.servers[name].ports[component]

    # --- the run

    def run(self) -> list[Violation]:
        """All of it; what was broken."""
        try:
            for name in self.servers:
                self._start(name)
            self._prepare()
            for thread in (*self.senders, *self._slots):
                thread.start()
            self._kill_until(time.monotonic() + self.seconds)
            self._drain()
        finally:
            self.around.over.set()
            for server in self.servers.values():
                server.kill()
        for thread in self._slots:
            thread.join(60)
        for failure in [*(sender.failure for sender in self.senders), *self._failures]:
            if failure is not None:
                raise failure
        return self._check()

    def _prepare(self) -> None:
        admin = self.servers[self.around.proxies[0].name]
        for topic, queues in TOPICS.items():
            admin.admin("POST", "topics", topic, body={"create": True, "queues": queues})
        for plan in self.plans:
            admin.admin("POST", "groups", plan.name, body={"topics": plan.topics, **self.settings[plan.name]})

    def _start(self, name: str) -> None:
        self.proxies[name].life += 1
        self.servers[name].start()

    def _kill_until(self, end: float) -> None:
        while time.monotonic() < end or any(sender.is_alive() for sender in self.senders):
            self.around.over.wait(self.random.uniform(KILL_GAP_S[0], min(KILL_GAP_S[1], self.seconds / 2)))
            names = list(self.servers)
            victims = self.random.sample(names, 2 if self.random.random() < BOTH_SHARE else 1)
            for name in victims:
                self._kill(name)
            self.around.over.wait(self.random.uniform(*DOWN_S))
            if self.random.random() < START_KILL_SHARE:
                self._kill_starting(victims[0])
            for name in victims:
                self._start(name)
            self._report(REPORT_S)

    def _kill(self, name: str) -> None:
        self.history.kills.append(Kill(name, self.proxies[name].life, time.monotonic()))
        self.servers[name].kill()
        self.kills[name] += 1

    def _kill_starting(self, name: str) -> None:
        self.proxies[name].life += 1
        self.servers[name].launch()
        self.around.over.wait(self.random.uniform(*START_KILL_S))
        self._kill(name)

    def _visits(self, plan: Plan, slot: int) -> None:
        random = Random(f"{self.seed}/{plan.name}/{slot}")
        number = 0
        while not self.around.over.is_set():
            number += 1
            kind = OurVisit if random.random() < 0.5 else OldVisit
            name = f"{plan.name}/{slot}/{number}"
            visit: Visit = kind(name, self.seed, plan, self.around, random.uniform(*VISIT_S))
            visit.start()
            visit.join()
            if visit.failure is not None:
                self._failures.append(visit.failure)

    # --- the end

    def _drain(self) -> None:
        self.around.gentle.set()
        self._report(0)
        quiet_from = time.monotonic()

        def quiet() -> bool:
            nonlocal quiet_from
            if not self._done():
                quiet_from = time.monotonic()
            self._report(REPORT_S)
            return time.monotonic() > quiet_from + QUIET_S

        try:
            until(quiet, "everything is done", DRAIN_S)
        except AssertionError as error:
            self._stuck.append(Violation("stuck", f"{error}; {self._where()}", ""))

    def _done(self) -> bool:
        try:
            with Client(self.around.proxies[0].port(), timeout_s=10.0) as client:
                for plan in self.plans:
                    violations = client.stats(plan.name)
                    if not violations or any(
                        each.consumeOffsets != each.produceOffsets for each in violations
                    ):
                        return False
        except BROKEN:
            return False
        return self._unresolved() == 0

    def _unresolved(self) -> int:
        """Messages of the unordered group that are on the retry path, as far as can be told."""
        plan = self.plans[-1]
        open_bodies = {
            each.body for each in list(self.history.sent) if each.code == 0 and each.topic in plan.topics
        }
        open_bodies |= {each.body for each in list(self.history.deliveries) if each.group == plan.name}
        open_bodies -= {
            each.delivery.body
            for each in list(self.history.settlements)
            if each.ack and each.delivery.group == plan.name
        }
        rows = self.servers[self.around.proxies[0].name].admin("GET", "dlq")
        return len(open_bodies) - sum(int(row["letters"]) for row in rows if row["group"] == plan.name)

    def _where(self) -> str:
        with Client(self.around.proxies[0].port(), timeout_s=10.0) as client:
            return (
                "; ".join(str(client.stats(plan.name)) for plan in self.plans)
                + f"; unresolved {self._unresolved()}"
            )

    def read(self, logs: dict[str, Path], offset_s: float) -> Ending:
        """What is left; no process runs any more."""
        (server, *_) = self.servers.values()
        return read_ending(server.data_dir, self.plans, logs, offset_s)

    def _check(self) -> list[Violation]:
        logs = {proxy.name: self.servers[proxy.name].log_path for proxy in self.around.proxies}
        self.ending = self.read(logs, time.time() - time.monotonic())
        return self._stuck + check(self.history, self.ending, self.plans)

    def _report(self, every_s: float) -> None:
        if time.monotonic() < self._reported_at + every_s:
            return
        self._reported_at = time.monotonic()
        self.print_line(self.counts())

    def counts(self) -> str:
        """One line."""
        history = self.history
        settlements = list(history.settlements)
        acks = sum(each.ack for each in settlements)
        kills = ", ".join(f"{name} {count}" for name, count in self.kills.items())
        return (
            f"sent {len(history.sent)}; given {len(history.deliveries)}; acknowledged {acks}, failed "
            f"{len(settlements) - acks}; answers missed {len(history.unseen)}; killed: {kills}; dead letters "
            f"{len(self.ending.letters)}"
        )


def run(
    folder: Path,
    seed: int,
    load: Load,
    seconds: float,
    proxies: int = 2,
    processes: bool = False,
    print_line: PrintLine = print,
    kafka: int = 0,
) -> int:
    """The number of broken rules; what was seen is said."""
    options = {"seed": seed, "keys": load.keys, "messages": load.messages, "seconds": seconds}
    command = replay_command("mixed_run", **options, proxies=proxies, processes=processes, kafka=kafka)
    print_line(f"the same again: {command}")
    if kafka:
        from tests.crash.mixed.on_kafka import KafkaMixedRun  # needs what only those have who use Kafka

        mixed: MixedRun = KafkaMixedRun(folder, seed, load, seconds, proxies, processes, print_line, kafka)
    else:
        mixed = MixedRun(folder, seed, load, seconds, proxies, processes, print_line)
    try:
        violations = mixed.run()
    except NotReady as error:
        print_line(f"BROKEN: a process did not start: {error}")
        return 1
    print_line(mixed.counts())
    print_line(coverage(mixed.history, mixed.ending, mixed.plans))
    for violation in violations[:SHOWN]:
        print_line(f"BROKEN: {violation}")
        print_line(story(mixed.history, mixed.ending, violation))
    print_line(
        f"{len(violations)} broken; the same again: {command}" if violations else "every rule was kept"
    )
    return len(violations)


def run_load(folder: Path, seed: int, keys: int, messages: int, seconds: float, **options: Any) -> int:
    """Run with so many messages of so many keys."""
    return run(folder, seed, Load(messages, keys, TOPICS), seconds, **options)


def main() -> int:
    size = {"keys": 10_000, "messages": 40_000, "seconds": 120.0, "proxies": 2}
    return long_run(__doc__, "mixed-run", run_load, seed=None, **size, processes=False, kafka=(0, 1, 3))


if __name__ == "__main__":
    sys.exit(main())
