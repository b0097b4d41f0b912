"""T20b, on Kafka: pull 100 with the last 100 acknowledged in the same call, beside a bare consumer.

8 connections. Floor: a bare consumer on the server's core that takes the same messages, 100 at a time, and
commits after each 100 before it goes on. A second one commits without waiting; that one has promised nothing
when it goes on. A share group accepts each message and commits each answer; it chooses how many messages an
answer has. Two rounds of ours are not counted: brokers that have just started take several times as long
for the same progress.
"""

from __future__ import annotations

import time

from bench import groups, load
from bench.harness import SERVER_CORE, Series, sized
from bench.kafka.rig import QUEUES, Rig, settled
from bench.servers import Running
from bench.t02_batch import BATCH, fill
from bench.t03_pull import CONNECTIONS, Consumers

BODY = 1024
MESSAGES = sized(100_000, 2_000)
REACH = "≥ 0.5 of the floor"
UNCOUNTED = sized(2, 0)  # rounds


class Pulls:
    """One topic that is filled at each round, then taken by a bare consumer, and by ours."""

    def __init__(self, rig: Rig, server: Running) -> None:
        self._rig, self._server = rig, server
        self._topic = rig.name("pulls")
        self._first = ""
        groups.establish(server, self._topic.encode(), self._topic.encode(), QUEUES)

    def warm(self) -> None:
        """What is not counted."""
        for _ in range(UNCOUNTED):
            fill(self._server, self._topic.encode(), BODY, MESSAGES // BATCH)
            self.measure_pulls()

    def _begins(self) -> str:
        status = groups.admin(self._server, "GET", f"/topics/{self._topic}")
        nexts = {int(queue["queue"]): int(queue["next"]) for queue in status["by_queue"]}
        return ",".join(str(nexts[number]) for number in range(QUEUES))

    def bare(self, how: str) -> dict[str, float]:
        """The first one of a round fills the topic."""
        if how == "sync":
            self._first = self._begins()
            fill(self._server, self._topic.encode(), BODY, MESSAGES // BATCH)
        return self._rig.bare(
            "consume", self._topic, QUEUES, f"bare-{how}", self._first, MESSAGES, how, core=SERVER_CORE
        )

    def share(self) -> dict[str, float]:
        """A share group on a new topic, which it fills itself."""
        topic = self._rig.name("shared")
        self._rig.make_topic(topic, QUEUES)
        return self._rig.bare("share", topic, topic, MESSAGES, BODY, core=SERVER_CORE)

    def measure_pulls(self) -> dict[str, float]:
        """Raises unless every message came once and is acknowledged."""
        topic = self._topic.encode()
        consumers = Consumers(topic, topic, MESSAGES)
        connections = load.connect(self._server.addresses["consumer"], CONNECTIONS)

        def act() -> int:
            load.closed_loop(connections, consumers.next_frame)
            return MESSAGES

        began = time.perf_counter()
        cost_us = self._server.cpu_us(act)
        for one in connections:
            one.close()
        consumers.check()
        settled(self._server, self._topic)
        return {"per_s": MESSAGES / (consumers.last_at - began), "cpu_us": cost_us}


def main(rig: Rig) -> None:
    with rig.server() as server:
        pulls = Pulls(rig, server)
        pulls.warm()
        below = "bare consume, commit each 100"
        every = [
            Series(below, lambda: pulls.bare("sync")),
            Series("bare consume, commit not waited for", lambda: pulls.bare("async")),
            Series("share group, commit each answer", pulls.share),
            Series("pull and ack", pulls.measure_pulls, below, REACH),
        ]
        rig.run("t20b_kafka_pulls", __doc__ or "", every, messages=MESSAGES, batch=BATCH, body=BODY)
