"""T2: sendBatchSync, 100 × 1 KiB, durable, 8 connections; server on one core, and with a second one.

Floor: decoding the same frames and nothing else, in this process, on one core.
"""

from __future__ import annotations

import time

from bench import frames, load
from bench.harness import CLIENT_CORE, SERVER_CORE, Series, percentiles, pin, run
from bench.servers import Running, ddmq
from ddmq_client.idl import producer
from ddmq_rpc.codec import Codec
from ddmq_rpc.envelope import read_header
from ddmq_rpc.limits import RpcLimits
from ddmq_rpc.structs import methods

CONNECTIONS = 8
CALLS = 3_000
BATCH = 100
BODY = 1024


def batch(shift: int) -> bytes:
    """One frame of BATCH messages over all queues."""
    return frames.send_batch_sync(
        [frames.producer_message(b"batch", b"k%d" % n, bytes(BODY), n + shift) for n in range(BATCH)]
    )


def measure(server: Running) -> dict[str, float]:
    """One round; raises when a batch is not stored."""
    connections = load.connect(server.addresses["producer"], CONNECTIONS)
    requests = [batch(index) for index in range(CONNECTIONS)]
    left = CALLS

    def next_frame(index: int, reply: bytes | None) -> bytes | None:
        nonlocal left
        if reply is not None and not frames.reply_ok(reply):
            raise AssertionError(f"not stored: {reply!r}")
        left -= 1
        return requests[index] if left >= 0 else None

    began = time.perf_counter()
    latencies = load.closed_loop(connections, next_frame)
    seconds = time.perf_counter() - began
    for one in connections:
        one.close()
    return {"per_s": CALLS * BATCH / seconds} | percentiles(latencies)


def floor() -> dict[str, float]:
    """Messages a second through the codec alone."""
    pin(SERVER_CORE)
    limits = RpcLimits()
    codec = Codec(limits.frame_bytes_max, limits.container_elements_max, limits.decode_cpu_s)
    arguments = methods(producer, "ProducerService")["sendBatchSync"].args
    payload = batch(0)
    rounds = 800
    began = time.perf_counter()
    for _ in range(rounds):
        header = read_header(payload)
        codec.decode(header.wire, payload, header.body_at, arguments)
    seconds = time.perf_counter() - began
    pin(CLIENT_CORE)
    return {"per_s": rounds * BATCH / seconds}


def main() -> None:
    pin(CLIENT_CORE)
    with ddmq() as one_core, ddmq(cores={0, 1}) as two_cores:
        every = [
            Series("decode only", floor),
            Series("one core", lambda: measure(one_core), "decode only"),
            Series("two cores", lambda: measure(two_cores), "decode only"),
        ]
        run("t02_batch", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS, batch=BATCH, body=BODY)


if __name__ == "__main__":
    main()
