"""T20c, on Kafka: send → delivered, open loop, beside bare produce → poll at the same rate.

Each body has the moment when its sending was due, so a late generator counts as lateness. Floor: a producer
in the load generator, a consumer on the server's core that only polls. A share group commits each answer, and
does not wait for that.
"""

from __future__ import annotations

import time

from confluent_kafka import Producer

from bench import frames, groups
from bench.harness import SERVER_CORE, Series, percentiles, sized
from bench.kafka.bare import MARK, PRODUCER, STAMP
from bench.kafka.rig import QUEUES, Rig, figures, settled
from bench.servers import Running
from bench.t04_latency import LINGER_MS, OpenLoop

RATE = 1_000
SECONDS = sized(4.0, 0.5)
BODY = 1024
TOTAL = int(RATE * SECONDS)
REACH = "p50 ≤ 1.5 ms above the floor"


def floor(rig: Rig, topic: str, what: str = "latency", *arguments: object) -> dict[str, float]:
    """Produce on schedule; a bare consumer measures."""
    producer = Producer({**PRODUCER, "bootstrap.servers": rig.bootstrap})
    for number in range(QUEUES):
        producer.produce(topic, b"warm", partition=number)
    producer.flush(10)
    with rig.bare_started(what, topic, *(arguments or (QUEUES,)), TOTAL, core=SERVER_CORE) as consumer:
        late_s, began = 0.0, time.perf_counter() + 0.2
        for number in range(TOTAL):
            due = began + number / RATE
            while (pause := due - time.perf_counter()) > 0:
                producer.poll(0)
                time.sleep(max(0.0, pause - 0.0001))
            late_s = max(late_s, -pause)
            body = MARK + STAMP.pack(due) + bytes(BODY - 13)
            producer.produce(topic, body, partition=number % QUEUES)
        producer.flush(10)
        return figures(consumer) | {"generator_late_ms": late_s * 1e3}


class Sends(OpenLoop):
    """T4's load on a topic of our own, with one waiting client for each queue."""

    def __init__(self, server: Running, topic: bytes, total: int) -> None:
        super().__init__(server, total, RATE)
        self._topic = topic

    def request(self, index: int, due: float) -> bytes:
        return frames.send_sync(self._topic, b"", MARK + STAMP.pack(due) + bytes(BODY - 13), index)

    def pull(self, done: frames.Done | None) -> bytes:
        return frames.pull_with(self._topic, self._topic, 100, LINGER_MS, [done] if done else [])


def measure(server: Running, topic: str, total: int = TOTAL) -> dict[str, float]:
    """One round; raises when a message did not come, or came twice."""
    loop = Sends(server, topic.encode(), total)
    before = server.cpu_seconds()
    latencies = loop.run()
    spent = server.cpu_seconds() - before
    if len(latencies) != total:
        raise AssertionError(f"{total} sent, {len(latencies)} delivered")
    settled(server, topic)
    late = {"generator_late_ms": loop.late_s * 1e3}
    return percentiles(latencies) | {"cpu_us": spent / total * 1e6} | late


def main(rig: Rig) -> None:
    with rig.server() as server:
        topic, bare = rig.name("latency"), rig.name("bare")
        groups.establish(server, topic.encode(), topic.encode(), QUEUES)
        rig.make_topic(bare)
        measure(server, topic, sized(500, 100))
        below = Series("bare produce to poll", lambda: floor(rig, bare))
        shared = rig.name("shared")
        rig.make_topic(shared)
        share = Series("share group", lambda: floor(rig, shared, "share_latency", shared))
        delivery = Series("send to delivered", lambda: measure(server, topic), below.name, REACH)
        rig.run("t20c_kafka_latency", __doc__ or "", [below, share, delivery], rate=RATE, body=BODY)
