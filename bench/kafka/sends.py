"""T20, on Kafka: sendSync by 64 connections, sendBatchSync of 100 by 8, beside bare confluent-kafka.

Floor: a bare producer on the server's core with as much under way: 64 messages, each followed by the next
when it is stored, and 8 times 100. Same acks, same brokers, same run.
"""

from __future__ import annotations

from bench import groups, load
from bench.harness import SERVER_CORE, Series, sized
from bench.kafka.rig import QUEUES, Rig
from bench.servers import Running
from bench.t02_batch import request

BODY = 1024
SINGLE, BATCHED = (64, 1), (8, 100)  # connections, messages a call
COUNTS = {SINGLE: sized(20_000, 500), BATCHED: sized(100_000, 2_000)}
REACH = "≥ 0.6 of the floor"


def measure(server: Running, topic: bytes, connections: int, batch: int, count: int) -> dict[str, float]:
    """One round; raises unless every message is stored."""
    before = groups.stored(server, topic)
    requests = [request(topic, index, batch, BODY) for index in range(connections)]
    next_frame = load.answered_ok(requests, count // batch)
    figures = load.driven(
        load.connect(server.addresses["producer"], connections), next_frame, count // batch, server.cpu_us
    )
    stored = groups.stored(server, topic) - before
    if stored != count:
        raise AssertionError(f"{count} answered OK, {stored} stored")
    return figures | {"per_s": figures["per_s"] * batch, "cpu_us": figures["cpu_us"] / batch}


def series(rig: Rig, server: Running, shape: tuple[int, int], reach: str) -> list[Series]:
    connections, batch = shape
    topic, bare = rig.name("sends"), rig.name("bare")
    groups.admin(server, "POST", f"/topics/{topic}", {"queues": QUEUES})
    rig.make_topic(bare)
    measure(server, topic.encode(), connections, batch, sized(20 * connections * batch, connections * batch))
    what, count = f"{connections} x {batch}", COUNTS[shape]
    below = f"bare produce, {what}"
    return [
        Series(
            below,
            lambda: rig.bare("produce", bare, QUEUES, *shape, BODY, count, core=SERVER_CORE),
        ),
        Series(
            f"{'sendSync' if batch == 1 else 'sendBatchSync'}, {what}",
            lambda: measure(server, topic.encode(), connections, batch, count),
            below,
            reach,
        ),
    ]


def main(rig: Rig) -> None:
    with rig.server() as server:
        every = series(rig, server, SINGLE, "") + series(rig, server, BATCHED, REACH)
        rig.run("t20_kafka_sends", __doc__ or "", every, body=BODY, queues=QUEUES)
