"""Cancels against their due times, on a real server: does a cancel tell the truth?

    python -m tests.crash.cancel_race --seed 1 --cancels 100000

Each message is due a short while after its add; its cancel leaves some milliseconds before or after that
moment, as the seed says. After one that came too late the next ones leave a little earlier, and the other way
round, so that about half of them win and the two really meet in the delay service. In the end the topic is
read from its first message to its last, and compared with what every cancel was told:

* told "cancelled": never delivered;
* told "already fired": delivered once, and not before it was due;
* told anything else: a fault (a "pending" one is asked again, and must then say one of the two).

Prints one line of numbers, and one for each fault. Exit code 1 when there are any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import NamedTuple

from ddmq_client import CancelOutcome, Consumer, DelayResult, DelayStatus, Message
from ddmq_client.aio import AsyncProducer
from tests.crash.kit.command import PrintLine, long_run
from tests.scenarios.real_server import RealServer, running
from tests.support.waits import until

TOPIC, GROUP = "raced", "counter"
AT_A_TIME = 128
TIMEOUT_MS = 60_000


class CancelAnswer(NamedTuple):
    """What one cancel was told."""

    due_ms: int
    outcome: CancelOutcome


class Result(NamedTuple):
    """The outcome of a race. `violations` are sentences."""

    statuses: Counter[DelayStatus]
    delivered: int
    violations: list[str]

    def line(self) -> str:
        """The numbers."""
        counts = ", ".join(f"{status.value} {count:,}" for status, count in self.statuses.items())
        total = f"{self.statuses.total():,} cancels: {counts}"
        return f"{total}; delivered {self.delivered:,}; faults {len(self.violations)}"


class Race:
    """`spread_ms`: how far from the due time a cancel leaves, one standard deviation."""

    def __init__(self, server: RealServer, seed: int, cancels: int, spread_ms: float) -> None:
        self._server = server
        self._random = Random(seed)
        self._cancels = cancels
        self._spread_ms = spread_ms
        self._lead_ms = 0.0
        self._answers: dict[str, CancelAnswer] = {}

    def run(self) -> Result:
        """Blocks until every message is accounted for."""
        self._server.admin("POST", "topics", TOPIC, body={"create": True, "queues": 4})
        self._server.admin("POST", "groups", GROUP, body={"topics": [TOPIC], "start": "first"})
        asyncio.run(self._all())
        delivered = self._delivered()
        statuses = Counter(each.outcome.status for each in self._answers.values())
        return Result(statuses, delivered.total(), list(self._find_violations(delivered)))

    async def _all(self) -> None:
        numbers = iter(range(self._cancels))
        async with AsyncProducer(
            f"127.0.0.1:{self._server.ports['producer']}", connections_max=AT_A_TIME
        ) as producer:

            async def work() -> None:
                for number in numbers:
                    await self._one(producer, str(number))

            await asyncio.gather(*[work() for _ in range(AT_A_TIME)])

    async def _one(self, producer: AsyncProducer, key: str) -> None:
        loop = asyncio.get_running_loop()
        wait_s = self._random.uniform(0.05, 0.15)
        late_s = (self._random.gauss(0, self._spread_ms) - self._lead_ms) / 1000
        began = loop.time()
        due = datetime.now(UTC) + timedelta(seconds=wait_s)
        sent = await producer.send(TOPIC, b"b", key=key, deliver_at=due, timeout_ms=TIMEOUT_MS)
        moment = loop.create_future()
        loop.call_at(began + wait_s + late_s, moment.set_result, None)
        await moment
        outcome = await producer.cancel(sent, timeout_ms=TIMEOUT_MS)
        if outcome.status is DelayStatus.PENDING:
            outcome = await producer.cancel(sent, timeout_ms=TIMEOUT_MS)
        self._lead_ms += 0.1 if outcome.status is DelayStatus.FIRED else -0.1
        assert isinstance(sent, DelayResult)
        self._answers[key] = CancelAnswer(sent.due_ms or 0, outcome)

    def _delivered(self) -> Counter[str]:
        """How often each key lies in the topic; read to its end."""
        stored = self._server.admin("GET", "topics", TOPIC)["messages"]
        delivered: Counter[str] = Counter()
        times: dict[str, int] = {}

        def take(messages: list[Message]) -> None:
            for message in messages:
                delivered[message.key or ""] += 1
                times.setdefault(message.key or "", message.stored_ms or 0)

        address = f"127.0.0.1:{self._server.ports['consumer']}"
        with Consumer(address, GROUP, TOPIC, batch_handler=take, threads=1, max_batch=100, prefetch=400):
            until(lambda: delivered.total() >= stored, f"{stored} deliveries", 300)
        self._stored_ms = times
        return delivered

    def _find_violations(self, delivered: Counter[str]) -> list[str]:
        violations = [
            f"{key!r} was delivered and never sent" for key in delivered if key not in self._answers
        ]
        for key, (due_ms, outcome) in self._answers.items():
            count = delivered[key]
            fired = outcome.status is DelayStatus.FIRED
            if outcome.status not in (DelayStatus.CANCELLED, DelayStatus.FIRED):
                violations.append(f"{key}: told {outcome.status.value!r}")
            elif count != fired:
                violations.append(f"{key}: told {outcome.status.value!r} and delivered {count} times")
            elif fired and self._stored_ms[key] < due_ms:
                violations.append(f"{key}: due at {due_ms}, in the topic at {self._stored_ms[key]}")
            elif fired and (outcome.fired_at is None or outcome.fired_at.timestamp() * 1000 < due_ms - 0.5):
                violations.append(f"{key}: due at {due_ms}, told that it fired at {outcome.fired_at}")
        return violations


def run(
    folder: Path, seed: int, cancels: int, spread_ms: float, processes: bool, print_line: PrintLine
) -> list[str]:
    """Report a race, and return its faults."""
    with running(folder, processes=processes) as server:
        result = Race(server, seed, cancels, spread_ms).run()
    print_line(f"seed {seed}: {result.line()}")
    for violation in result.violations[:50]:
        print_line(violation)
    return result.violations


def main() -> int:
    size = {"cancels": 100_000, "spread_ms": 15.0}
    return long_run(__doc__, "cancel-race", run, seed=1, **size, processes=False)


if __name__ == "__main__":
    raise SystemExit(main())
