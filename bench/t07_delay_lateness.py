"""T7: lateness seen by the client at 5,000 due a second, with 10 million pending; never early.

Five messages a millisecond, sent beforehand by sendDelaySync. Floor: send → delivered as in T4, at the same
servers in the same run. Lateness is from the due time to the moment that a waiting client has the answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import frames, groups
from bench.delay_orders import stamped, uuid_of
from bench.delay_rig import Receiver, Rig, delay_add, lateness, rig, send, stored_ahead
from bench.harness import CLIENT_CORE, Series, percentiles, pin, run, sized
from bench.servers import Running
from bench.t04_latency import LINGER_MS, MARK, STAMP, OpenLoop

RATE = 5_000
SECONDS = sized(6.0, 0.4)
BODY = 1024
SENT_PER_S = 5_000  # the slowest sending that the due times leave room for
REACH = "never early; p50 ≤ 1.5 ms, p99 ≤ 6 ms, p99.9 ≤ 15 ms"


class Sends(OpenLoop):
    """T4's load on a topic of our own."""

    def __init__(self, server: Running, topic: bytes, total: int) -> None:
        super().__init__(server, total)
        self._topic = topic

    def request(self, index: int, due: float) -> bytes:
        return frames.send_sync(self._topic, b"", MARK + STAMP.pack(due) + bytes(BODY - 13), index)

    def pull(self, done: frames.Done | None) -> bytes:
        return frames.pull_with(self._topic, self._topic, 100, LINGER_MS, [done] if done else [])


def adds(topic: bytes, first: int, count: int, due_s: float, rate: float = RATE) -> Iterator[bytes]:
    """Requests for messages due one after another, whole milliseconds."""
    for index in range(count):
        due_ms = int(due_s * 1e3 + index * 1e3 / rate)
        yield delay_add(topic, stamped(due_ms, BODY), due_ms, uuid_of(first + index).encode())


def sent(one: Rig, name: str, count: int, rate: float = RATE) -> tuple[bytes, float]:
    """Send them; to which topic, and when the first one is due. All are in the store before that."""

    def put(due_s: float) -> bytes:
        topic = one.topic(name)
        send(one.server, adds(topic, one.numbers(count), count, due_s, rate))
        return topic

    return stored_ahead(one.service, 3 + count / SENT_PER_S, count, put)


def measure(one: Rig) -> dict[str, float]:
    count = int(RATE * SECONDS)
    topic, due_s = sent(one, "late", count)
    receiver = Receiver(one.server, {topic: count})
    before = one.service.cpu_seconds()
    receiver.run(due_s + SECONDS)
    spent = one.service.cpu_seconds() - before
    if groups.lag(one.server, topic):
        raise AssertionError(f"all {count} acknowledged, lag is not 0")
    return lateness(receiver.late[topic]) | {"service_cpu_us": spent / count * 1e6}


def floor(one: Rig) -> dict[str, float]:
    """Send → delivered."""
    topic, total = one.topic("sent"), int(RATE * SECONDS)
    latencies = Sends(one.server, topic, total).run()
    if len(latencies) != total:
        raise AssertionError(f"{total} sent, {len(latencies)} delivered")
    return percentiles(latencies)


def main() -> None:
    pin(CLIENT_CORE)
    with rig() as one:
        every = [
            Series("send to delivered", lambda: floor(one)),
            Series("due to delivered", lambda: measure(one), "send to delivered", REACH),
        ]
        run("t07_delay_lateness", __doc__ or "", every, rate=RATE, body=BODY, **one.facts)


if __name__ == "__main__":
    main()
