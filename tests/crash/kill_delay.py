"""R1 for delay messages: a delay service is killed by SIGKILL at random moments while it takes in and fires.

    python -m tests.crash.kill_delay --seed 7 --rounds 200

A round is a life of the process that ends with a kill; some meet it while it starts. After every few of them
a last life fires what is left, and everything is checked: each message once, none early, each cancel's
answer true. Prints the seed and what was broken; the exit code is 1 then.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from select import select
from uuid import UUID

from backend.file_log import open_log
from backend.records import AppendStatus, NewRecord, TopicInfo
from ddmq_common.clock import SystemClock
from ddmq_common.delays.command import (
    ADD,
    ALREADY_FIRED,
    CANCEL,
    CANCELLED,
    COMMAND_PROPERTY,
    LOOP,
    SCHEDULE,
    DelayCommand,
    Schedule,
    decode_outcome,
    encode_command,
    shard_of,
)
from ddmq_common.delivery import decode, encode
from ddmq_common.metrics.registry import Registry
from ddmq_common.names import DELAY_TOPIC, OUTCOME_TOPIC
from tests.crash.delaying_process import OPTIONS, SHARDS
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.crash.kit.reading import read_records

WAIT_S = 60.0
LIVES = 6  # to one load
MESSAGES = 240  # of one load
SPREAD_MS = 2_500  # of their due times
SERIES = 4  # deliveries of a schedule
TARGETS = ("here", "there", "gone")
_REPOSITORY = Path(__file__).resolve().parents[2]


class Life:
    """One process."""

    def __init__(self, directory: Path, *rest: str) -> None:
        command = [sys.executable, "-m", "tests.crash.delaying_process", str(directory), *rest]
        self.log = (directory.parent / "process.log").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, cwd=_REPOSITORY)

    def says(self, word: bytes, seconds: float) -> bool:
        """Whether it says `word` in time; so a random moment after its start, or after `ready`."""
        assert self.process.stdout is not None
        give_up = time.monotonic() + seconds
        while (remaining_s := give_up - time.monotonic()) > 0:
            if not select([self.process.stdout], [], [], remaining_s)[0]:
                return False
            line = self.process.stdout.readline()
            if line.strip() == word or not line:
                return bool(line)
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


class Story:
    """What was asked for in one directory, and what came."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.directory = folder / "log"
        self.random = random
        self.clock = SystemClock()
        self.due: dict[int, list[int]] = {}  # message → due times of its deliveries
        self.dead: set[int] = set()  # to a topic that is gone
        self.cancels: dict[int, int] = {}  # reply id → message
        self.number = 0
        self.log = open_log(self.directory, OPTIONS, clock=self.clock, metrics=Registry())
        for name, queues in ((DELAY_TOPIC, SHARDS), (OUTCOME_TOPIC, 1), *((name, 1) for name in TARGETS)):
            self.log.put_topic(TopicInfo(name, 0, queues), self.deadline()).wait(WAIT_S)
        self.log.delete_topic("gone", self.deadline()).wait(WAIT_S)
        self.shut()

    def deadline(self) -> float:
        return self.clock.monotonic() + WAIT_S

    def open(self) -> None:
        """Be the writer, while no process is there."""
        self.log = open_log(self.directory, OPTIONS, clock=self.clock, metrics=Registry())

    def shut(self) -> None:
        self.log.drain(self.deadline()).wait(WAIT_S)
        self.log.close()

    # --- asking

    def load(self) -> None:
        """Messages of all kinds, some cancelled before or around their due times."""
        self.open()
        records: list[NewRecord] = []
        now = self.clock.wall_ms()
        for _ in range(MESSAGES):
            self.number += 1
            order = self._add(self.number, now)
            records.append(self._record(order, encode(b"", b"%d" % self.number, b"", None)))
            if self.random.random() < 0.1:
                records.append(records[-1])  # sent again
        for message in self.random.sample(range(self.number - MESSAGES + 1, self.number + 1), MESSAGES // 5):
            if len(self.due[message]) == 1:
                self.cancels[len(self.cancels) + 1] = message
                cancel = DelayCommand(
                    CANCEL, _uuid(message), reply_queue=0, reply_id=len(self.cancels), due_ms=now
                )
                records.insert(self.random.randint(0, len(records)), self._record(cancel, b""))
        for start in range(0, len(records), 50):
            results = self.log.append(records[start : start + 50], self.deadline()).wait(WAIT_S)
            assert {result.status for result in results} == {AppendStatus.STORED}
        self.shut()

    def _add(self, number: int, now: int) -> DelayCommand:
        due = now + self.random.randint(300, SPREAD_MS)
        topic = self.random.choices(TARGETS, (10, 10, 1))[0]
        kind = self.random.random()
        if topic == "gone":
            self.dead.add(number)
            self.due[number] = [due]
        elif kind < 0.1:
            period = self.random.randint(1, 200)
            self.due[number] = [due + period * one for one in range(SERIES)]
            schedule = Schedule(period_ms=period, repeat=SERIES - 1, catch_up="all")
            return DelayCommand(ADD, _uuid(number), topic, SCHEDULE, due, schedule=schedule)
        elif kind < 0.15:
            second = now // 1000 - 7
            self.due[number] = [(second + 3 * one) * 1000 for one in range(SERIES)]
            return DelayCommand(
                ADD, _uuid(number), topic, LOOP, second * 1000, second, second + 100, 3, SERIES
            )
        else:
            self.due[number] = [due]
        return DelayCommand(ADD, _uuid(number), topic, due_ms=due, timestamp_s=due // 1000)

    @staticmethod
    def _record(order: DelayCommand, delivery: bytes) -> NewRecord:
        shard = shard_of(order.uuid, SHARDS)
        return NewRecord(
            DELAY_TOPIC,
            shard,
            UUID(order.uuid).bytes,
            1,
            delivery,
            system={COMMAND_PROPERTY: encode_command(order)},
        )

    # --- lives

    def life(self) -> str:
        """One that is killed; when."""
        life = Life(self.directory)
        try:
            if self.random.random() < 0.2:
                life.says(b"never", self.random.uniform(0.1, 0.6))
                return "starting"
            assert life.says(b"ready", WAIT_S), f"it did not start; see {self.folder}/process.log"
            life.says(b"never", self.random.uniform(0.0, 0.5))
            return "running"
        finally:
            life.kill()

    def last_life(self) -> None:
        """Fire what is left."""
        life = Life(self.directory, "until-idle")
        try:
            assert life.says(b"ready", WAIT_S), f"it did not start; see {self.folder}/process.log"
            assert life.says(b"idle", WAIT_S), f"it does not come to an end; see {self.folder}/process.log"
        finally:
            life.kill()

    # --- checking

    def violations(self) -> list[str]:
        """What is not as it should be."""
        self.open()
        try:
            return [*self._find_violations()]
        finally:
            self.shut()

    def _find_violations(self) -> list[str]:
        violations, fired = [], Counter[int]()
        times: dict[int, list[int]] = {}
        for topic in ("here", "there"):
            for value, stored_ms in self._read(topic):
                fired[int(value)] += 1
                times.setdefault(int(value), []).append(stored_ms)
        letters = Counter(int(value) for value, _ in self._read("%DLQ%%DELAY"))
        cancelled = self._answers(violations, fired, letters)
        for message, due in self.due.items():
            expected_count = 0 if message in cancelled else len(due)
            delivery_count = letters[message] if message in self.dead else fired[message]
            if delivery_count != expected_count:
                violations.append(f"message {message} came {delivery_count} times, wanted {expected_count}")
            early = [
                at for at, stored in zip(due, sorted(times.get(message, [])), strict=False) if stored < at
            ]
            violations += [f"message {message} due at {at} came early" for at in early]
        return violations

    def _answers(self, violations: list[str], fired: Counter[int], letters: Counter[int]) -> set[int]:
        """Messages whose cancel was in time; each told the truth, as often as it was told."""
        codes_of: dict[int, set[int]] = {}
        for value, _ in self._read(OUTCOME_TOPIC):
            outcome = decode_outcome(value)
            codes_of.setdefault(outcome.reply_id, set()).add(outcome.code)
        cancelled = set()
        for reply, message in self.cancels.items():
            delivery_count = fired[message] + letters[message]
            codes = codes_of.get(reply, set())
            if len(codes) != 1:
                violations.append(f"cancel of message {message} was told {sorted(codes)}")
            if codes == {ALREADY_FIRED} and not delivery_count:
                violations.append(f"message {message} 'already fired' and is not there")
            if codes == {CANCELLED} and delivery_count:
                violations.append(f"message {message} 'cancelled' and came")
            if codes != {ALREADY_FIRED}:
                cancelled.add(message)
        return cancelled

    def _read(self, topic: str) -> list[tuple[bytes, int]]:
        return [(decode(each.delivery).value, each.stored_ms) for each in read_records(self.log, topic)]


def _uuid(number: int) -> str:
    return str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128)))


def run_lives(
    folder: Path, seed: int, rounds: int, lives: int, live: Callable[[Story, int], str], print_line: PrintLine
) -> tuple[list[str], Counter[str]]:
    """Run lives of the process by `live`, some to one load; return what is broken, and how lives ended."""
    story = Story(folder, Random(seed))
    ends: Counter[str] = Counter()
    broken: list[str] = []
    while ends.total() < rounds and not broken:
        story.load()
        for _ in range(min(lives, rounds - ends.total())):
            ends[live(story, ends.total())] += 1
        story.last_life()
        broken = story.violations()
        print_line(f"{ends.total()} lives, {story.number} messages, {len(broken)} broken promises")
    return broken, ends


def report_lives(
    folder: Path, command: str, broken: list[str], ends: Counter[str], print_line: PrintLine
) -> list[str]:
    """Report a run, and return what was broken."""
    print_line(", ".join(f"{what} {count}" for what, count in sorted(ends.items())))
    for text in broken[:50] or ["each message once, none early, every cancel told the truth"]:
        print_line(text)
    if broken:
        print_line((folder / "process.log").read_text()[-6_000:])
        print_line(command)
    return broken


def run(
    folder: Path, seed: int, rounds: int, print_line: PrintLine = print
) -> tuple[list[str], Counter[str]]:
    """Return what is broken, and how often what was killed."""
    return run_lives(folder, seed, rounds, LIVES, lambda story, _: story.life(), print_line)


def run_reported(folder: Path, seed: int, rounds: int, print_line: PrintLine) -> list[str]:
    """Report a run, and return what was broken."""
    command = replay_command("kill_delay", seed=seed, rounds=rounds)
    return report_lives(folder, command, *run(folder, seed, rounds, print_line), print_line)


def main() -> int:
    return long_run(__doc__, "kill-delay", run_reported, seed=1, rounds=200)


if __name__ == "__main__":
    sys.exit(main())
