"""T5: order keys with work on each message: many keys at once, each in order; floor keys ÷ work time.

Work is simulated by the load generator, which holds a message for its work time and acknowledges it then
(workers.py; its own lateness is among the figures). 0 order violations are asserted, per key. With
`chain_batch` 1 only the first of a key is in a client's hands; with 16 a client gets up to 16 of a key
and works on them one after the other. Messages stand in the log before consuming begins; 128 B bodies;
deliveries and acknowledgements go over Thrift on loopback, and acknowledgements are durable.

Set-ups as published, to stand side by side:
* 1,000 keys × 100 ms: KPipe 5,210/s in key order (eschizoid/kpipe, benchmarks/results/2026-06-07.md; its
  Confluent Parallel Consumer: 968/s). Equal: 25,000 records stored before, 1,000 keys, 8 queues, work by
  waiting, timed until the last record is worked on. Different: theirs is a library in one JVM (Java 25) on 6
  cores (12 threads) of a laptop; here the round ends when every acknowledgement is durable. Not known: in
  which turn their keys come, and how large the bodies of that run were.
* 3 queues × 10 at once × 10 ms: Decaton 2,875/s (ocadaruma/decaton-benchmark-comparison, results/
  result.decaton10.10ms.json). Equal: 3 queues, 10 messages of each at once, 10 ms each. Different: 100,000
  tasks there, 30,000 here; there 10 threads a queue with up to 10,000 tasks pending in the process,
  on two 10-core processors; here 10 keys a queue make the 10 at once. Not known: whether the tasks of that
  run had keys; the version of its generator that was read sends none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bench import groups, keyed
from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq
from bench.workers import Workers

BODY = 128


@dataclass
class SetUp:
    """One topic, its group, and how it is consumed."""

    title: str
    queues: int
    keys: int
    work_s: float
    per_key: int
    chain_batch: int
    reach: str = ""
    first: int = 0  # the number that each key's next message has

    @property
    def name(self) -> str:
        """Of the series."""
        return f"{self.title}, chain_batch {self.chain_batch}"

    @property
    def topic(self) -> bytes:
        """Of this set-up alone; its group has the same name."""
        return b"keys-%d-%d-%d" % (self.queues, self.keys, self.chain_batch)

    def establish(self, server: Running) -> None:
        """Topic and group."""
        groups.establish(
            server,
            self.topic,
            self.topic,
            self.queues,
            order_key="KEY",
            order_scope="queue",
            chain_batch=self.chain_batch,
            concurrency=max(1024, self.keys * self.chain_batch),
        )

    def measure(self, server: Running) -> dict[str, float]:
        """One round; raises on any violation of order, and when something is missing or not acknowledged."""
        first, self.first = self.first, self.first + self.per_key
        numbers = ((key, first + index) for index in range(self.per_key) for key in range(self.keys))
        stored = keyed.fill(server, self.topic, BODY, numbers)
        workers = Workers(server, self.topic, self.topic, stored, self.work_s, first)

        def act() -> int:
            workers.run()
            return stored

        cost_us = server.cpu_us(act)
        lag = groups.lag(server, self.topic)
        if lag:
            raise AssertionError(f"all {stored} acknowledged, lag is {lag}")
        return workers.figures() | {"cpu_us": cost_us}

    def floor(self) -> dict[str, float]:
        """Keys ÷ work time: no more is possible with one message of a key at a time."""
        return {"per_s": self.keys / self.work_s}


def set_ups() -> list[SetUp]:
    """All that is measured."""
    many = sized(10_000, 500), sized(1.0, 0.1), sized(8, 2)
    thousand = sized(1_000, 200), sized(0.1, 0.02), sized(25, 4)
    ten, per_ten = sized(10, 5), sized(1_000, 20)
    cases = []
    for batch in (1, 16):
        if batch == 1:
            cases.append(SetUp("1 queue, 10,000 keys × 1 s", 1, *many, batch, "10,000 in hand at once"))
        cases.append(SetUp("8 queues, 1,000 keys × 100 ms", 8, *thousand, batch, "≥ 9,000/s"))
        cases.append(SetUp("3 queues × 10 keys × 10 ms", 3, 3 * ten, 0.01, per_ten, batch, "≥ 2,910/s"))
    return cases


def series(server: Running, all_of_them: list[SetUp]) -> list[Series]:
    """Each with its floor before it, once."""
    rows: dict[str, Series] = {}
    for one in all_of_them:
        floor = f"keys ÷ work time, {one.title}"
        rows.setdefault(floor, Series(floor, one.floor))
        rows[one.name] = Series(one.name, partial(one.measure, server), floor, one.reach)
    return list(rows.values())


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as server:
        every = set_ups()
        for one in every:
            one.establish(server)
        run("t05_order_keys", __doc__ or "", series(server, every), body=BODY)


if __name__ == "__main__":
    main()
