"""T2: sendBatchSync, 100 × 1 KiB, durable, 8 connections; server on one core, and with a second one.

Floor: decoding the same frames and nothing else, in this process, on one core. (With two cores the load
generator shares the second one with the server's commit thread.)
"""

from __future__ import annotations

import time

from bench import frames, groups, load
from bench.harness import CLIENT_CORE, CORES, SERVER_CORE, Series, percentiles, pin, run, sized
from bench.servers import Running, ddmq
from ddmq_client.idl import producer
from ddmq_rpc.codec import Codec, methods
from ddmq_rpc.envelope import read_header
from ddmq_rpc.traffic import DECODE_CPU_S, RpcLimits

CONNECTIONS = 8
CALLS = sized(3_000, 40)
BATCH = 100
BODY = 1024


def batch(shift: int, topic: bytes = b"batch", body_bytes: int = BODY, size: int = BATCH) -> bytes:
    """One frame of `size` messages over all queues."""
    return frames.send_batch_sync(
        [frames.producer_message(topic, b"k%d" % n, bytes(body_bytes), n + shift) for n in range(size)]
    )


def request(topic: bytes, index: int, size: int, body_bytes: int = BODY) -> bytes:
    """What connection `index` sends: one message, or a batch of `size`."""
    if size == 1:
        return frames.send_sync(topic, b"k%d" % index, bytes(body_bytes), index)
    return batch(index, topic, body_bytes, size)


def fill(server: Running, topic: bytes, body_bytes: int, calls: int) -> list[float]:
    """Store `calls` batches, each answered OK; their latencies in seconds."""
    connections = load.connect(server.addresses["producer"], CONNECTIONS)
    requests = [batch(index, topic, body_bytes) for index in range(CONNECTIONS)]
    try:
        return load.closed_loop(connections, load.answered_ok(requests, calls))
    finally:
        for one in connections:
            one.close()


def measure(server: Running) -> dict[str, float]:
    """One round; raises when a batch is not stored."""
    before = groups.stored(server, b"batch")
    latencies: list[float] = []

    def act() -> int:
        latencies.extend(fill(server, b"batch", BODY, CALLS))
        return CALLS * BATCH

    began = time.perf_counter()
    cost_us = server.cpu_us(act)
    seconds = time.perf_counter() - began
    after = groups.stored(server, b"batch")
    if after - before != CALLS * BATCH:
        raise AssertionError(f"{CALLS * BATCH} answered OK, {after - before} stored")
    return {"per_s": CALLS * BATCH / seconds} | percentiles(latencies) | {"cpu_us": cost_us}


def floor() -> dict[str, float]:
    """Messages a second through the codec alone."""
    pin(SERVER_CORE)
    limits = RpcLimits()
    codec = Codec(limits.frame_bytes_max, limits.container_elements_max, DECODE_CPU_S)
    arguments = methods(producer, "ProducerService")["sendBatchSync"].args
    payload = batch(0)
    rounds = sized(2_000, 20)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        header = read_header(payload)
        codec.decode(header.wire, payload, header.body_at, arguments)
    seconds, spent = time.perf_counter() - began, time.process_time() - cpu
    pin(CLIENT_CORE)
    return {"per_s": rounds * BATCH / seconds, "cpu_us": spent / rounds / BATCH * 1e6}


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as one_core, ddmq(cores=CORES) as two_cores:
        for server in (one_core, two_cores):
            groups.send_once(server, b"batch")
        every = [
            Series("decode only", floor),
            Series(
                "one core",
                lambda: measure(one_core),
                "decode only",
                "≥ 140,000/s, ≥ 0.17 of the floor",
            ),
            Series(
                "two cores",
                lambda: measure(two_cores),
                "decode only",
                "≥ 180,000/s, ≥ 0.22 of the floor",
            ),
        ]
        run("t02_batch", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS, batch=BATCH, body=BODY)


if __name__ == "__main__":
    main()
