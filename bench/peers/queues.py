"""Queues side by side: we, Redis Streams, RabbitMQ, NATS JetStream, Kafka, beanstalkd; the same load.

Messages of 1 KiB: one a call by 64 connections, each with one call under way; 100 a call by 8; then all of
them are taken by 8 connections, 100 at a time, and acknowledged. Every system makes what it takes durable
before it answers (Redis: appendfsync always; RabbitMQ: a quorum queue, confirms; NATS: sync_interval always;
Kafka: each record flushed; beanstalkd: binlog with fsync). One node each, on one core; the client has the
other. `cpu_us` is the server's processor time a message. The systems take turns, round after round; the
others are idle meanwhile.

Acknowledgements: ours are durable before the next pull is answered, so are those of Kafka (a commit each
100) and beanstalkd (a delete each); Redis syncs them with its next write; RabbitMQ and NATS take them
without an answer, so each is measured until its server says that nothing is left. A beanstalkd job is
reserved one at a time, 100 requests in a row. Kafka's client has one process for each figure.
"""

from __future__ import annotations

from functools import partial

from bench.harness import CLIENT_CORE, Series, pin, run, sized
from bench.peers.kafka import Kafka
from bench.peers.queued import DdmqQueue, Queued
from bench.peers.queues_of_others import BeanstalkTube, NatsJetStream, RabbitQuorum, RedisStreams
from bench.peers.system import started

ALL: tuple[type[Queued], ...] = (DdmqQueue, RedisStreams, RabbitQuorum, NatsJetStream, Kafka, BeanstalkTube)
SINGLE, BATCHED = (64, 1, sized(10_000, 200)), (8, 100, sized(400, 8))  # connections, messages a call, calls
STORED = SINGLE[1] * SINGLE[2] + BATCHED[1] * BATCHED[2]
SENDS, BATCHES, PULLS = "one a call", "100 a call", "pull and ack"


def main() -> None:
    pin(CLIENT_CORE)
    every: list[Series] = []
    with started(ALL) as systems:
        for system in systems:
            every += [
                Series(
                    f"{system.name}, {SENDS}", partial(system.sends, *SINGLE), f"{DdmqQueue.name}, {SENDS}"
                ),
                Series(
                    f"{system.name}, {BATCHES}",
                    partial(system.sends, *BATCHED),
                    f"{DdmqQueue.name}, {BATCHES}",
                ),
                Series(
                    f"{system.name}, {PULLS}", partial(system.pulls, STORED), f"{DdmqQueue.name}, {PULLS}"
                ),
            ]
        versions = {system.name: system.version() for system in systems}
        run("queue_peers", __doc__ or "", every, versions=versions, single=SINGLE, batched=BATCHED)
