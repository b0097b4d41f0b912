"""No-op sendSync calls a second: the RPC layer alone, nothing stored.

`python -m bench.rpc_noop [--seconds 5] [--connections 64] [--body 1024] [--wire compact]`: a server on one
core answers "OK" at once; a load generator on the other (epoll, prebuilt frames) asks on every connection
as soon as it is answered. It is the floor of T1: what no change behind the handler can beat.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ddmq_client.idl import producer
from ddmq_rpc.api import Call, Service, Wire
from ddmq_rpc.client_side import decode_reply, encode_call
from ddmq_rpc.codec import constant_result, structs

SERVICE = "ProducerService"


def serve(ready: Connection, core: int | None, profile: str) -> None:
    """The server's process: announces its port, ends when the other side closes the pipe."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    import gevent

    from ddmq_common.clock import SystemClock
    from ddmq_common.metrics.registry import Registry
    from ddmq_rpc.server import RpcServer
    from ddmq_rpc.traffic import RpcLimits

    answer = constant_result(
        producer, SERVICE, "sendSync", success=structs(producer).Result(code=0, msg="OK")
    )

    def send_sync(call: Call) -> None:
        call.reply_encoded(answer[call.wire])

    service = Service(producer, SERVICE, {"sendSync": send_sync})
    server = RpcServer(service, "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock())
    server.start()
    ready.send(server.address)
    watcher = gevent.get_hub().loop.io(ready.fileno(), 1)
    stopped = gevent.event.Event()
    watcher.start(stopped.set)
    if profile:
        import cProfile

        profiler = cProfile.Profile()
        profiler.enable()
        stopped.wait()
        profiler.disable()
        profiler.dump_stats(profile)
    else:
        stopped.wait()
    server.close()


def load(address: tuple[str, int], connections: int, frame: bytes, reply: bytes, seconds: float) -> Any:
    """Calls a second and latencies in µs (p50, p99) of a closed loop on every connection."""
    poll = select.epoll()
    sockets: dict[int, socket.socket] = {}
    sent_at: dict[int, float] = {}
    for _ in range(connections):
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(connection.fileno(), select.EPOLLIN)
        sockets[connection.fileno()] = connection
    now = time.perf_counter
    started = now()
    latencies: list[float] = []
    for descriptor, connection in sockets.items():
        sent_at[descriptor] = now()
        connection.send(frame)
    while now() - started < seconds:
        for descriptor, _ in poll.poll(1.0):
            connection = sockets[descriptor]
            if connection.recv(4096) != reply:
                raise AssertionError("a reply is not what was expected")
            moment = now()
            latencies.append(moment - sent_at[descriptor])
            sent_at[descriptor] = moment
            connection.send(frame)
    took = now() - started
    for connection in sockets.values():
        connection.close()
    latencies.sort()
    quantiles = [round(latencies[int(len(latencies) * q)] * 1e6) for q in (0.5, 0.99)]
    return round(len(latencies) / took), *quantiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--wire", choices=("compact", "binary"), default="compact")
    parser.add_argument("--profile", default="", help="file for the server's cProfile data")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pipe, server_pipe = multiprocessing.Pipe()
    core = cores[0] if len(cores) > 1 else None
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(server_pipe, core, options.profile)
    )
    process.start()
    server_pipe.close()
    address = pipe.recv()
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores[1:]))
    wire = Wire[options.wire.upper()]
    frame, reply = frames(options.body, wire, address)
    before = cpu_s(process.pid)
    rounds = [
        load(address, options.connections, frame, reply, options.seconds) for _ in range(options.rounds)
    ]
    spent = cpu_s(process.pid) - before
    pipe.close()
    process.join(10)
    cost_us = spent / sum(one[0] * options.seconds for one in rounds) * 1e6
    print(json.dumps({"options": vars(options), "rounds": rounds, "server_cpu_us": round(cost_us, 2)}))
    median = statistics.median(one[0] for one in rounds)
    print(f"{median:,} calls/s (median of {len(rounds)}), {cost_us:.1f} µs of the server's core a call")


def cpu_s(pid: int | None) -> float:
    """Processor seconds that a process has used; unlike its speed, hardly touched by a busy machine."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def frames(body_bytes: int, wire: Wire, address: tuple[str, int]) -> tuple[bytes, bytes]:
    """A request as an old Java client sends it, and the reply to expect, asked from the server once."""
    message = structs(producer).Message(
        topic="bench", key="key-1", hashId=1, partitionId=-2, body=bytes(body_bytes), version="java"
    )
    frame = encode_call(producer, SERVICE, "sendSync", wire, 7, message=message, timeout=50)
    with socket.create_connection(address) as connection:
        connection.sendall(frame)
        reply = connection.recv(4096)
    assert decode_reply(producer, SERVICE, reply).result.success.msg == b"OK"
    return frame, reply


if __name__ == "__main__":
    main()
