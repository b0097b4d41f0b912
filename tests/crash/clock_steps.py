"""R5: the wall clock steps by minutes, forward and back, while a delay load runs on real processes.

    python -m tests.crash.clock_steps --seed 1 --seconds 300 [--processes]

Once a second or two the clock of all servers is stepped by up to ten minutes either way. Meanwhile messages
of every kind are sent: due in a moment, due in minutes, at a moment, at a period (`all`), on delay levels;
some are cancelled. In the end the clock is put ahead of every due time, and everything is checked.

What "early" means when the clock goes back: a message may be delivered once the wall clock has shown its due
time at some moment after the send, also if it shows an earlier time by then. So it is early when it arrives
before any clock has shown that time, and that is checked to the millisecond, on the test's own reading of the
same clock. Where the clock stood still around it, its store time must not be before its due time either.
A delay ("in 90 seconds") is counted from the clock as the send found it. A delay level is a wait on the log's
clock, which never goes back: a message on a level is not early either when that wait has passed.

Nothing lost, nothing twice: each message comes as often as it should, each cancelled one never, and each
"already fired" one once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from ddmq_client import CancelOutcome, Consumer, DelayStatus, Message, NotStoredError, Producer
from ddmq_client.delays import DelayResult
from tests.crash.kit.command import PrintLine, long_run
from tests.crash.stepped_process import SteppedClock
from tests.scenarios.real_server import RealServer
from tests.support.waits import until

TOPIC, GROUP = "stepped", "watcher"
STEP_MS_MAX = 600_000
SERIES, PERIOD_MS = 4, 1_000
TIMEOUT_MS = 60_000
QUIET_S = 1.0  # a clock stood still for so long around a delivery: its store time counts, too
COMPONENTS = ("producer", "consumer", "delay-service")
LEVELS_S = {1: 1, 2: 5}


@dataclass
class SentDelay:
    """One message. `due_ms`: of each delivery, on the stepped clock; `sent_s`: monotonic, before the send."""

    due_ms: list[int]
    sent_s: float
    outcome: CancelOutcome | None = None
    wait_s: float = float("inf")  # of its delay level
    came: list[tuple[float, int]] = field(default_factory=list)  # (monotonic, store time) of each delivery


class SteppedServer(RealServer):
    """`ddmq COMMAND` with a clock that steps."""

    def __init__(self, folder: Path, clock: Path, command: str = "serve", config: Path | None = None) -> None:
        super().__init__(folder, config, command=command)
        self._clock = clock

    def _command(self) -> list[str]:
        python, _, _, *rest = super()._command()
        return [python, "-m", "tests.crash.stepped_process", str(self._clock), *rest]


@contextmanager
def servers(folder: Path, clock: Path, processes: bool) -> Iterator[dict[str, int]]:
    """All parts, with topic and group; their ports."""
    commands = COMPONENTS if processes else ("serve",)
    started = [SteppedServer(folder, clock, command) for command in commands]
    try:
        ports: dict[str, int] = {}
        for server in started:
            ports.update(server.start().ports)
        consumer = started[1 if processes else 0]
        consumer.admin("POST", "topics", TOPIC, body={"create": True, "queues": 4})
        consumer.admin("POST", "groups", GROUP, body={"topics": [TOPIC], "start": "first"})
        yield ports
    finally:
        for server in started:
            server.end()


class Steps:
    """Steps the clock, and remembers what it showed."""

    def __init__(self, clock: SteppedClock, random: Random) -> None:
        self.clock = clock
        self._random = random
        self._begun = [(time.monotonic(), clock.offset_ms)]  # (since when, offset)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return len(self._begun) - 1

    def step(self, offset_ms: int | None = None) -> None:
        """To a random place, or to this one."""
        if offset_ms is None:
            offset_ms = self._random.randint(-STEP_MS_MAX, STEP_MS_MAX)
        with self._lock:
            self._begun.append((time.monotonic(), offset_ms))  # before it shows: never too strict
            self.clock.step(offset_ms)

    def highest_ms(self, from_s: float, to_s: float) -> int:
        """The latest time that the clock has shown in a span of the monotonic clock."""
        ahead = time.time_ns() // 1_000_000 - time.monotonic() * 1_000
        highest = 0
        for (step_start, offset), (end, _) in zip(self._begun, [*self._begun[1:], (to_s, 0)], strict=True):
            if step_start <= to_s and end >= from_s:
                highest = max(highest, int(min(end, to_s) * 1_000 + ahead) + 1 + offset)
        return highest

    def stood_still(self, at_s: float) -> bool:
        """Around this moment."""
        return all(abs(step_start - at_s) > QUIET_S for step_start, _ in self._begun)


class Load:
    """Sends, cancels, and takes what comes."""

    def __init__(self, ports: dict[str, int], steps: Steps, random: Random) -> None:
        self._producer = Producer(f"127.0.0.1:{ports['producer']}")
        self._ports = ports
        self._steps = steps
        self._random = random
        self.sent: dict[str, SentDelay] = {}
        self.strange: list[str] = []

    def one(self) -> None:
        """Send one more, of any kind, and perhaps cancel one."""
        key, random = str(len(self.sent)), self._random
        kind = random.random()
        wall_ms, sent_s = self._steps.clock.wall_ms(), time.monotonic()
        ahead = random.choice((random.randint(0, 3_000), random.randint(0, STEP_MS_MAX)))
        if kind < 0.1:
            level = random.choice(list(LEVELS_S))
            self._producer.send(TOPIC, b"x", key=key, level=level, timeout_ms=TIMEOUT_MS)
            self.sent[key] = SentDelay([wall_ms + LEVELS_S[level] * 1_000], sent_s, wait_s=LEVELS_S[level])
            return
        if kind < 0.2:
            result = self._producer.send(
                TOPIC, b"x", key=key, delay=timedelta(milliseconds=ahead),
                every=timedelta(milliseconds=PERIOD_MS), times=SERIES, catch_up="all", timeout_ms=TIMEOUT_MS,
            )  # fmt: skip
        elif kind < 0.6:
            due = datetime.fromtimestamp((wall_ms + ahead) / 1_000, UTC)
            result = self._producer.send(TOPIC, b"x", key=key, deliver_at=due, timeout_ms=TIMEOUT_MS)
        else:
            delay = timedelta(milliseconds=ahead)
            result = self._producer.send(TOPIC, b"x", key=key, delay=delay, timeout_ms=TIMEOUT_MS)
        assert isinstance(result, DelayResult)
        series = SERIES if 0.1 <= kind < 0.2 else 1
        first = result.due_ms or 0
        sent_delay = self.sent[key] = SentDelay(
            [first + PERIOD_MS * index for index in range(series)], sent_s
        )
        if series == 1 and random.random() < 0.2:
            self._pause(random.uniform(0, 0.05))
            sent_delay.outcome = self._producer.cancel(result, timeout_ms=TIMEOUT_MS)

    def _begins(self) -> bool:
        """Whether the first send is taken; refused ones were not sent."""
        try:
            self.one()
        except NotStoredError:
            return False
        return True

    @staticmethod
    def _pause(seconds: float) -> None:
        threading.Event().wait(seconds)

    def take(self, messages: list[Message]) -> None:
        """As they come."""
        now = time.monotonic()
        for message in messages:
            sent = self.sent.get(message.key or "")
            if sent is None:
                until(lambda key=message.key: key in self.sent, "what came was sent", 30)  # type: ignore[misc]
                sent = self.sent[message.key or ""]
            sent.came.append((now, message.stored_ms or 0))

    def run(self, seconds: float) -> None:
        """All of it."""
        until(self._begins, "a delay service runs", 30)
        end = time.monotonic() + seconds
        step_at = time.monotonic() + 0.5
        address = f"127.0.0.1:{self._ports['consumer']}"
        with Consumer(address, GROUP, TOPIC, batch_handler=self.take, threads=1, max_batch=100):
            while time.monotonic() < end:
                self.one()
                if time.monotonic() >= step_at:
                    self._steps.step()
                    step_at += self._random.uniform(0.5, 2.5)
            self._steps.step(3 * STEP_MS_MAX + int(seconds * 1_000))  # past everything
            until(lambda: not self._missing(), "everything came", 120)
            self._pause(1.0)  # a second copy would come now
        self._producer.close()

    def _missing(self) -> list[str]:
        return [key for key, sent in self.sent.items() if len(sent.came) < _expected_count(sent)]

    def find_violations(self) -> list[str]:
        """What is not as it should be."""
        violations = []
        for key, sent in self.sent.items():
            if len(sent.came) != _expected_count(sent):
                violations.append(
                    f"{key}: came {len(sent.came)} times, wanted {_expected_count(sent)}: {sent.outcome}"
                )
            if sent.outcome is not None and sent.outcome.status not in (
                DelayStatus.CANCELLED,
                DelayStatus.FIRED,
            ):
                violations.append(f"{key}: its cancel was told {sent.outcome}")
            for due_ms, (came_s, stored_ms) in zip(sent.due_ms, sorted(sent.came), strict=False):
                highest_ms = self._steps.highest_ms(sent.sent_s, came_s)
                if came_s - sent.sent_s >= sent.wait_s:
                    continue
                if highest_ms < due_ms:
                    violations.append(
                        f"{key}: due at {due_ms}, came when the clock had shown {highest_ms} at most"
                    )
                elif stored_ms < due_ms and self._steps.stood_still(came_s):
                    violations.append(f"{key}: due at {due_ms}, stored at {stored_ms}")
        return violations


def _expected_count(sent: SentDelay) -> int:
    cancelled = sent.outcome is not None and sent.outcome.status is DelayStatus.CANCELLED
    return 0 if cancelled else len(sent.due_ms)


def run(folder: Path, seed: int, seconds: float, processes: bool = False) -> tuple[list[str], Load, Steps]:
    """Faults, and what was done."""
    random = Random(seed)
    clock = SteppedClock(folder / "clock")
    steps = Steps(clock, random)
    with servers(folder, folder / "clock", processes) as ports:
        load = Load(ports, steps, random)
        load.run(seconds)
    return load.find_violations(), load, steps


def run_reported(
    folder: Path, seed: int, seconds: float, processes: bool, print_line: PrintLine
) -> list[str]:
    """Report a run, and return its faults."""
    violations, load, steps = run(folder, seed, seconds, processes)
    delivered_count = sum(len(sent.came) for sent in load.sent.values())
    cancels = sum(sent.outcome is not None for sent in load.sent.values())
    sent = f"{len(load.sent):,} messages, {cancels:,} cancels, {delivered_count:,} deliveries"
    print_line(f"seed {seed}: {steps.count} steps, {sent}")
    for violation in violations[:50]:
        print_line(violation)
    print_line(f"{len(violations)} faults")
    return violations


def main() -> int:
    return long_run(__doc__, "clock-steps", run_reported, seed=1, seconds=300.0, processes=False)


if __name__ == "__main__":
    sys.exit(main())
