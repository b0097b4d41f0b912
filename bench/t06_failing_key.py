"""T6: a key that fails for ever: delivery latency of the other keys, open loop at 1,000/s, durable.

`1 in 100`: every hundredth message has the key whose first message fails for ever (ordered_deliveries_max
-1; retries after 100, 150, 300 ms, then every second). `a million behind it`: that many were stored behind
such a key before. The floor of both is the run without a failing key, with as many keys. Latency counts
from the moment a message's sending was due, so a late generator or server counts as lateness.

Asserted: every message of the other keys comes once, and its key's offsets only rise; of the failing key
nothing but its first message ever comes. `grown_mib`: anonymous memory of the server above what it had
before anything waited behind the failing key; `waiting`: how many do by the end of the round.
"""

from __future__ import annotations

import socket
import time

from bench import frames, groups, keyed
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized
from bench.servers import Running, ddmq
from bench.t04_latency import OpenLoop

RATE = 1_000
SECONDS = sized(6.0, 0.5)
BODY = 1024
WAITING_BODY = 128
KEYS = 1_000
FAILING = 0  # this key; the others are 1 to KEYS
BEHIND = sized(1_000_000, 3_000)
LINGER_MS = 200
SETTINGS = {"order_key": "KEY", "order_scope": "topic", "ordered_deliveries_max": -1}
REACH = "p99 ≤ 1.2 × of the run without it"


class Keys(OpenLoop):
    """An open loop over KEYS keys; `failing_every`: one message in so many has the failing key, 0 = none."""

    def __init__(self, case: Case, total: int, failing_every: int) -> None:
        self._case, self._failing_every = case, failing_every
        of_others = total - (total // failing_every if failing_every else 0)
        super().__init__(case.server, total, RATE, delivery_count=of_others)

    def request(self, index: int, due: float) -> bytes:
        """The failing key's turn comes last in each hundred."""
        every = self._failing_every
        key = FAILING if every and index % every == every - 1 else 1 + index % KEYS
        content = keyed.body(BODY, key, 0, due)
        if key == FAILING:
            self._case.behind += 1
        return frames.send_sync(self._case.topic, b"k%d" % key, content, key)

    def pull(self, done: frames.Done | None) -> bytes:
        """With what became of the last answer."""
        topic = self._case.topic
        return frames.pull_with(topic, topic, 100, LINGER_MS, [done] if done else [])

    def delivered(self, puller: socket.socket, payload: bytes) -> frames.Done | None:
        """Others are acknowledged, the failing key's first fails."""
        now = time.perf_counter()
        answer = frames.pulled(payload)
        if answer is None:
            return None
        succeeded, failed = [], []
        for offset, key, _, due in keyed.read_messages(payload):
            if key == FAILING:
                self._case.failed(answer.qid, offset)
                failed.append(offset)
                continue
            self._case.came(answer.qid, key, offset)
            self.latencies.append(now - due)
            succeeded.append(offset)
        if len(succeeded) + len(failed) != answer.messages:
            raise AssertionError(f"{answer.messages} in an answer, {len(succeeded) + len(failed)} are ours")
        return frames.Done(answer.qid, succeeded, failed)


class Case:
    """One topic with its group of the same name, over all rounds."""

    def __init__(self, server: Running, topic: bytes, failing_every: int, preloaded: int = 0) -> None:
        self.server, self.topic, self._failing_every = server, topic, failing_every
        self.behind = preloaded  # messages of the failing key that were sent
        self._head: tuple[bytes, int] | None = None
        self._tries = 0
        self._last: dict[int, int] = {}
        self._before = 0
        groups.establish(server, topic, topic, **SETTINGS)
        Keys(self, 200, 0).run()
        self._before = server.anonymous_bytes()
        if preloaded:
            keyed.fill(server, topic, WAITING_BODY, ((FAILING, n) for n in range(preloaded)))
        Keys(self, 200, 0).run()  # when these have come, reading has gone past what waits

    def failed(self, qid: bytes, offset: int) -> None:
        """Raises when it is not the failing key's first message."""
        self._tries += 1
        self._head = self._head or (qid, offset)
        if self._head != (qid, offset):
            raise AssertionError(f"{qid!r} {offset} delivered, {self._head} is not finished")

    def came(self, qid: bytes, key: int, offset: int) -> None:
        """Raises when a later message of the key has come already. A key has one queue."""
        if offset <= self._last.get(key, -1):
            raise AssertionError(f"key {key}, {qid!r}: {offset} delivered after {self._last[key]}")
        self._last[key] = offset

    def measure(self) -> dict[str, float]:
        """One round."""
        total = int(RATE * SECONDS)
        loop = Keys(self, total, self._failing_every)
        before = self.server.cpu_seconds()
        latencies = loop.run()
        spent = self.server.cpu_seconds() - before
        if len(latencies) != loop.delivery_count:
            raise AssertionError(f"{loop.delivery_count} to come, {len(latencies)} delivered")
        if self.behind and self._tries < 2:
            raise AssertionError(f"the failing key's first message was tried {self._tries} times")
        figures = percentiles(latencies)
        grown = self.server.anonymous_bytes() - self._before
        return {
            "p99_ms": figures["p99_ms"],
            "p50_ms": figures["p50_ms"],
            "p99.9_ms": figures["p99.9_ms"],
            "generator_late_ms": loop.late_s * 1e3,
            "cpu_us": spent / total * 1e6,
            "waiting": self.behind,
            "grown_mib": grown / (1 << 20),
        }


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as quiet, ddmq() as failing, ddmq() as wall:
        floor = Series("without", Case(quiet, b"quiet", 0).measure)
        one = Case(failing, b"failing", 100)
        many = Case(wall, b"wall", 0, BEHIND)
        every = [
            floor,
            Series("1 in 100 fails for ever", one.measure, floor.name, REACH),
            Series(f"{BEHIND:,} behind it", many.measure, floor.name, REACH),
        ]
        run("t06_failing_key", __doc__ or "", every, rate=RATE, body=BODY, keys=KEYS)


if __name__ == "__main__":
    main()
