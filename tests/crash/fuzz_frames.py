"""Mutated frames, both protocols, both services: no crash, no hang over 100 ms, no memory rise.

`python -m tests.crash.fuzz_frames --seed 1 --frames 10000000` (R4). Frames of recorded and made-up calls
are mutated by a seeded generator and decoded as a server decodes them; every SOCKET_EVERY-th slice goes
through a real server with handlers that echo, over a socket, and every frame must get its one answer.
A finding is printed with the command that replays its slice. Exit code 1 on any.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import gevent
from gevent import socket

from ddmq_client.idl import consumer, producer
from ddmq_common.clock import SystemClock
from ddmq_common.metrics.registry import Registry
from ddmq_rpc.api import Call, Service, Wire
from ddmq_rpc.client_side import ReplyError, decode_reply, encode_call
from ddmq_rpc.codec import ENCODERS, Codec, DecodeError, Method, methods, structs
from ddmq_rpc.envelope import CALL, ONEWAY, Envelope, Header, HeaderError, read_header
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import DECODE_CPU_S, RpcLimits

SLICE_FRAMES = 5_000
SOCKET_EVERY = 20  # of the slices
BURST_FRAMES = 40  # sent together on one connection
HANG_S = 0.1
RSS_RISE_BYTES_MAX = 96 << 20
RECORDINGS = Path(__file__).resolve().parents[1] / "interop" / "recordings"
SERVICES = ((producer, "ProducerService"), (consumer, "ConsumerService"))
P, C = structs(producer), structs(consumer)


class Finding(Exception):
    """Something that must not happen, with the frame that made it happen."""


class Seed(NamedTuple):
    """An intact frame and the service it is for."""

    service: int
    frame: bytes


# --- what is mutated


def corpus() -> list[Seed]:
    """Recorded requests, made-up calls with every field and our additions, in both protocols."""
    seeds = [seed for line in _recorded_lines() if (seed := _as_seed(bytes.fromhex(line))) is not None]
    seeds += [Seed(0, frame) for frame in _producer_calls()]
    seeds += [Seed(1, frame) for frame in _consumer_calls()]
    return seeds + [Seed(seed.service, _in_binary(seed)) for seed in seeds if seed.frame[4] == 0x82]


def _recorded_lines() -> Iterator[str]:
    for path in sorted(RECORDINGS.rglob("*.hex")):
        lines = [line for line in path.read_text().split("\n") if line and line[0] != "#"]
        yield lines[0]


def _as_seed(frame: bytes) -> Seed | None:
    name = read_header(frame).name.decode()
    for index, (idl, service) in enumerate(SERVICES):
        if name in methods(idl, service):
            return Seed(index, frame)
    return None


def _in_binary(seed: Seed) -> bytes:
    header = read_header(seed.frame)
    args = methods(*SERVICES[seed.service])[header.name.decode()].args
    value = Codec(1 << 24, 1 << 20, 10.0).decode(header.wire, seed.frame, header.body_at, args)
    body = ENCODERS[Wire.BINARY](value, args)
    return Envelope(header.name, header.kind).build_frame(Wire.BINARY, b"\x00\x00\x00\x07", body)


def _producer_calls() -> Iterator[bytes]:
    message = P.Message(
        topic="topic", key="key", value="", hashId=-5, tags="a||b", partitionId=3, body=b"body" * 8,
        version="v", properties={"traceId": "1", "é": "ü"}, clientId="me", producerGroup="us",
    )  # fmt: skip
    large = P.Message(topic="topic", body=bytes(100_000))
    for method, fields in {
        "sendSync": {"message": message, "timeout": 50},
        "sendAsync": {"message": message},
        "sendOneway": {"message": message},
        "sendBatchSync": {"messages": [message] * 5},
        "sendBatch": {"messages": [message, large], "timeout": -1},
        "callEngine": {"data": bytes(range(256)), "timeout": 50},
    }.items():
        yield encode_call(producer, "ProducerService", method, sequence=300, **fields)
    transaction, group = "018bcfe5680070008000000000000001", "us"
    names = {"transactionId": transaction, "producerGroup": group, "clientId": "me"}
    requests = {
        "sendPrepared": P.PrepareRequest(**names, messages=[message] * 3, timeout=50, checkAfterMs=1 << 40),
        "endTransaction": P.EndTransactionRequest(
            **names, action=8, throughOffset=7, check=1, forwardedBy="x"
        ),
        "pollTransactionChecks": P.PollChecksRequest(
            producerGroup=group, clientId="me", countMax=5, timeout=10, forwardedBy="x"
        ),
    }
    for method, request in requests.items():
        yield encode_call(producer, "ProducerService", method, sequence=300, request=request)


def _consumer_calls() -> Iterator[bytes]:
    chain = None
    for _ in range(40):
        context = C.Context(groupId="g", topic="t", qid="R_default_0")
        chain = C.ConsumeResult(
            context=context, successOffsets=[1, 2, 1 << 40], failOffsets=[-1], nextResult=chain,
            successLeases=[9], failLeases=[8], failDelaysMs=[7], extendLeases=[6],
        )  # fmt: skip
    request = C.PullRequest(
        groupId="g", topic="t", maxBatchSize=8, maxLingerTime=50, result=chain, version="v",
        clientId="me", filterType="TAG", filter="a",
    )  # fmt: skip
    names = {"consumerId": "me", "groupId": "g", "cluster": "c"}
    yield encode_call(consumer, "ConsumerService", "pull", sequence=300, request=request)
    yield encode_call(consumer, "ConsumerService", "submit", result=chain)
    offsets = {"t": {"R_default_0": 5, "R_default_1": 1 << 50}}
    yield encode_call(consumer, "ConsumerService", "ack", result=C.AckResult(**names, offsets=offsets))
    yield encode_call(
        consumer, "ConsumerService", "fetch", request=C.FetchRequest(**names, fetchOffset=offsets)
    )


# --- how


_EDGE_BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 10)
_EDGE_BYTES += (
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\x1c",
    b"\xac",
    b"\x0c\x00\x0a",
    b"\xf9\xff\xff\x03",
)


def _flip(body: bytearray, rng: random.Random, _: bytes) -> None:
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)


def _set(body: bytearray, rng: random.Random, _: bytes) -> None:
    body[rng.randrange(len(body))] = rng.randrange(256)


def _overwrite(body: bytearray, rng: random.Random, _: bytes) -> None:
    at, chunk = rng.randrange(len(body)), rng.choice(_EDGE_BYTES)
    body[at : at + len(chunk)] = chunk


def _insert(body: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(body))
    body[at:at] = rng.choice(_EDGE_BYTES) * rng.choice((1, 1, 1, 100))


def _delete(body: bytearray, rng: random.Random, _: bytes) -> None:
    at = rng.randrange(len(body))
    del body[at : at + 1 + rng.randrange(8)]


def _truncate(body: bytearray, rng: random.Random, _: bytes) -> None:
    del body[rng.randrange(len(body)) :]


def _repeat(body: bytearray, rng: random.Random, _: bytes) -> None:
    at, end = sorted((rng.randrange(len(body)), rng.randrange(len(body))))
    body[at:at] = body[at : min(end, at + 64)] * rng.choice((1, 2, 50))


def _splice(body: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randrange(len(other))
    body[rng.randrange(len(body)) :] = other[at : at + 4_096]


_WAYS: tuple[Callable[[bytearray, random.Random, bytes], None], ...] = (
    _flip, _flip, _set, _set, _overwrite, _overwrite, _insert, _delete, _truncate, _repeat, _splice,
)  # fmt: skip


def mutated(seeds: list[Seed], rng: random.Random) -> Seed:
    """One mutated frame with a true length prefix."""
    seed = rng.choice(seeds)
    body = bytearray(memoryview(seed.frame)[4:])
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_WAYS)(body, rng, rng.choice(seeds).frame)
        if not body:
            break
    return Seed(seed.service, len(body).to_bytes(4, "big") + body)


# --- against the codec


class Decoding:
    """Decodes as a connection does, with the default limits."""

    def __init__(self) -> None:
        limits = RpcLimits()
        self.codec = Codec(limits.frame_bytes_max, limits.container_elements_max, DECODE_CPU_S)
        self.methods = [methods(*service) for service in SERVICES]
        self.decoded = self.refused = 0
        self.slowest_s = 0.0

    def method(self, seed: Seed, header: Header) -> Method | None:
        return self.methods[seed.service].get(header.name.decode("utf-8", "replace"))

    def take(self, seed: Seed) -> None:
        started = time.thread_time()
        try:
            header = read_header(seed.frame)
            method = self.method(seed, header)
            if method is not None:
                self.codec.decode(header.wire, seed.frame, header.body_at, method.args)
            self.decoded += 1
        except (HeaderError, DecodeError):
            self.refused += 1
        except Exception as error:
            raise Finding(f"{type(error).__name__}: {error}; frame {seed.frame[:2_000].hex()}") from error
        spent = time.thread_time() - started
        self.slowest_s = max(self.slowest_s, spent)
        if spent > HANG_S:
            raise Finding(f"{spent * 1000:.0f} ms of processor time; frame {seed.frame[:2_000].hex()}")


# --- over a socket


class Echoes:
    """Servers of both services whose handlers send back what they got."""

    def __init__(self) -> None:
        self.servers = [self._serve(*service) for service in SERVICES]

    @staticmethod
    def _serve(idl: ModuleType, name: str) -> RpcServer:
        handlers = {method: _echo(method) for method in methods(idl, name)}
        server = RpcServer(
            Service(idl, name, handlers), "127.0.0.1", 0, RpcLimits(), Registry(), SystemClock()
        )
        server.start()
        return server

    def burst(self, service: int, frames: list[bytes], silent: int) -> None:
        """Send frames and a sound call; each frame that has an answer must get it, in time."""
        idl, name = SERVICES[service]
        with gevent.Timeout(30, Finding(f"no answer within 30 s to frames {b''.join(frames)[:4_000].hex()}")):
            client = socket.create_connection(self.servers[service].address)
            sender = gevent.spawn(client.sendall, b"".join([*frames, SOUND[service]]))
            answers = 0
            while not self._is_sound(idl, name, _read_frame(client)):
                answers += 1
            sender.get()
            client.close()
        if answers != len(frames) - silent:
            raise Finding(
                f"{answers} answers to {len(frames) - silent} calls {b''.join(frames)[:4_000].hex()}"
            )

    @staticmethod
    def _is_sound(idl: ModuleType, name: str, frame: bytes) -> bool:
        try:
            return decode_reply(idl, name, frame).sequence == SOUND_SEQUENCE
        except (ReplyError, HeaderError, DecodeError, KeyError, UnicodeDecodeError):
            return False  # a fault, or the echo of a mutated name

    def close(self) -> None:
        for server in self.servers:
            server.close()


SOUND_SEQUENCE = 0x5EED5EED
SOUND = [
    encode_call(producer, "ProducerService", "sendSync", sequence=SOUND_SEQUENCE, message=P.Message()),
    encode_call(consumer, "ConsumerService", "submit", sequence=SOUND_SEQUENCE, result=C.ConsumeResult()),
]


def _echo(method: str) -> Callable[[Call], None]:
    answers: dict[str, Callable[[Any], Any]] = {
        "sendSync": lambda args: P.Result(code=0, msg=args.message.topic, key=args.message.key),
        "sendAsync": lambda args: P.Result(code=0, msg=args.message.body),
        "sendBatchSync": lambda args: P.Result(code=len(args.messages)),
        "sendBatch": lambda args: [P.Result(code=0, msg=one.topic) for one in args.messages],
        "sendDelaySync": lambda args: P.DelayResult(code=0, uniqDelayMsgId=args.delayMessage.uniqDelayMsgId),
        "sendOneway": lambda args: None,
        "sendPrepared": lambda args: P.PrepareResponse(
            code=0,
            msg=args.request.transactionId,
            results=[P.Result(code=0)] * len(args.request.messages or ()),
        ),
        "endTransaction": lambda args: P.EndTransactionResponse(code=0, msg=args.request.producerGroup),
        "pollTransactionChecks": lambda args: P.PollChecksResponse(code=0, checks=[]),
        "callEngine": lambda args: args.data or b"",
        "pull": lambda args: C.PullResponse(context=C.Context(groupId=args.request.groupId), messages=[]),
        "getConsumeStats": lambda args: [C.ConsumeStats(group=args.request.group)],
        "fetch": lambda args: C.FetchResponse(results=[]),
    }
    answer = answers.get(method, lambda args: args.result is not None)
    return lambda call: call.reply(answer(call.args))


def _read_frame(client: Any) -> bytes:
    data: bytes = client.recv(4)
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        frame_bytes = 4 if len(data) < 4 else 4 + int.from_bytes(data[:4], "big")
        chunk = client.recv(frame_bytes - len(data))
        if not chunk:
            raise Finding("the server closed a connection because of a frame's content")
        data += chunk
    return data


def is_silent(decoding: Decoding, seed: Seed) -> bool:
    """Whether the contract gives this frame no answer: a oneway method, or an unknown one sent as oneway."""
    try:
        header = read_header(seed.frame)
    except HeaderError:
        return False
    method = decoding.method(seed, header)
    if method is None or header.kind not in (CALL, ONEWAY):
        return header.kind == ONEWAY
    return method.oneway


# --- the run


def run_slice(
    seeds: list[Seed], seed: int, index: int, decoding: Decoding, echoes: Echoes, count: int
) -> None:
    """`count` frames that depend on nothing but (seed, index)."""
    rng = random.Random(f"{seed}/{index}")
    if index % SOCKET_EVERY:
        for _ in range(count):
            decoding.take(mutated(seeds, rng))
        return
    for _ in range(0, count, BURST_FRAMES):
        burst = [mutated(seeds, rng) for _ in range(BURST_FRAMES)]
        for service in range(len(SERVICES)):
            mine = [each for each in burst if each.service == service]
            silent = sum(is_silent(decoding, each) for each in mine)
            echoes.burst(service, [each.frame for each in mine], silent)


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def run(seed: int, frames: int, first_slice: int = 0, print_line: Callable[[str], None] = print) -> int:
    """All slices; 1 when something was found, else 0."""
    seeds, decoding, echoes = corpus(), Decoding(), Echoes()
    started, slices = time.monotonic(), range(first_slice, first_slice + -(-frames // SLICE_FRAMES))
    warm = rss_bytes()
    try:
        for index in slices:
            run_slice(seeds, seed, index, decoding, echoes, min(frames, SLICE_FRAMES))
            if index - first_slice == 2 * SOCKET_EVERY:
                warm = rss_bytes()
            if rss_bytes() - warm > RSS_RISE_BYTES_MAX:
                raise Finding(f"resident memory rose from {warm >> 20} to {rss_bytes() >> 20} MiB")
    except Finding as finding:
        print_line(f"FOUND in slice {index}: {finding}")
        print_line(
            f"replay: python -m tests.crash.fuzz_frames --seed {seed} --slice {index} --frames {SLICE_FRAMES}"
        )
        return 1
    finally:
        echoes.close()
    took = time.monotonic() - started
    print_line(
        f"seed {seed}: {len(slices) * min(frames, SLICE_FRAMES):,} frames in {took:.0f} s "
        f"({len(slices) * min(frames, SLICE_FRAMES) / took:,.0f}/s), {decoding.decoded:,} decoded, "
        f"{decoding.refused:,} refused, slowest {decoding.slowest_s * 1000:.1f} ms, "
        f"memory {(rss_bytes() - warm) / (1 << 20):+.1f} MiB"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--slice", type=int, default=0, help="the first slice; with the seed it names a run")
    arguments = parser.parse_args()
    return run(arguments.seed, arguments.frames, arguments.slice)


if __name__ == "__main__":
    sys.exit(main())
