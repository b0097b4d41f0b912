"""T20e, on Kafka: delayed messages: how late they are, one after another and all due in the same millisecond.

Lateness is from the due time to the moment that a waiting client has the answer; never early. Its floor is
bare produce → poll at the same rate; a storm's is a bare producer that writes as many. Producer and consumer
proxy are one process, the delay service another, on the load generator's core.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench import frames, groups, load
from bench.delay_rig import STATE_FILE, Receiver, lateness, send, stored_ahead
from bench.delay_rig import Rig as DelayRig
from bench.harness import SERVER_CORE, Series, sized
from bench.kafka.latency import floor as produce_to_poll
from bench.kafka.rig import QUEUES, Rig
from bench.servers import Running
from bench.t07_delay_lateness import adds

RATE = 500  # latency's floor is taken at twice that
SECONDS = sized(6.0, 0.4)
STORM = sized(20_000, 500)
SENT_PER_S = 400  # the slowest sending that the due times leave room for
LEAD_S = 6.0
SETTLED_S = 20.0
BODY = 1024
REACH = "never early"


@contextmanager
def delays(rig: Rig) -> Iterator[DelayRig]:
    """Servers with a delay service."""
    data = rig.folder / rig.name("delays") / "data"
    data.mkdir(parents=True)
    (data.parent / STATE_FILE).write_text(json.dumps({"numbers": 0}))
    with rig.server() as server, rig.delay_service() as service:
        one = DelayRig(data, server, service, {})
        wait_ready(one)
        yield one


def wait_ready(one: DelayRig) -> None:
    """Until the proxy has heard of the delay service."""
    topic, give_up = one.topic("first"), time.monotonic() + SETTLED_S
    while True:
        try:
            send(one.server, adds(topic, one.numbers(1), 1, time.time() + 1_000))
            return
        except AssertionError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def delivered(one: DelayRig, count: int, rate: float) -> tuple[dict[str, float], float]:
    """Lateness and the service's processor time for each message; seconds from the first due time to the end.

    Raises unless each came once, none early, and all were in the store before the first was due.
    """

    def put(due_s: float) -> bytes:
        topic = one.topic("delayed")
        send(one.server, adds(topic, one.numbers(count), count, due_s, rate))
        return topic

    topic, due_s = stored_ahead(one.service, LEAD_S + count / SENT_PER_S, count, put)
    receiver, spent = Receiver(one.server, {topic: count}, gaps=True), one.service.cpu_seconds()
    receiver.run(due_s + count / rate)
    spent = one.service.cpu_seconds() - spent
    settle(one.server, topic)
    figures = lateness(receiver.late[topic]) | {"service_cpu_us": spent / count * 1e6}
    return figures, receiver.last_at[topic] - due_s


def settle(server: Running, topic: bytes) -> None:
    """Pull until the ends of the transactions are behind the group, too; raises when something more comes."""
    consumer = load.connect(server.addresses["consumer"], 1)
    give_up = time.monotonic() + SETTLED_S

    def next_frame(_: int, reply: bytes | None) -> bytes | None:
        if reply is not None and frames.pulled(reply) is not None:
            raise AssertionError("more came than were sent")
        if lag := groups.lag(server, topic):
            if time.monotonic() > give_up:
                raise AssertionError(f"all is acknowledged, lag is {lag}")
            return frames.pull(topic, topic, 100, 20, None)
        return None

    load.closed_loop(consumer, next_frame)
    consumer[0].close()


def storm(one: DelayRig) -> dict[str, float]:
    figures, seconds = delivered(one, STORM, math.inf)
    return {"seconds": seconds, "per_s": STORM / seconds} | figures


def produced(rig: Rig, topic: str) -> dict[str, float]:
    figures = rig.bare("produce", topic, QUEUES, 8, 100, BODY, STORM, core=SERVER_CORE)
    return {"seconds": STORM / figures["per_s"]} | figures


def main(rig: Rig) -> None:
    bare = rig.name("bare")
    rig.make_topic(bare)
    with delays(rig) as one:
        delivered(one, sized(500, 100), RATE)
        below, written = "bare produce to poll", f"{STORM:,} bare"
        every = [
            Series(below, lambda: produce_to_poll(rig, bare)),
            Series("due to delivered", lambda: delivered(one, int(RATE * SECONDS), RATE)[0], below, REACH),
            Series(written, lambda: produced(rig, bare)),
            Series(f"{STORM:,} due at once", lambda: storm(one), written, REACH),
        ]
        rig.run("t20e_kafka_delays", __doc__ or "", every, rate=RATE, body=BODY)
