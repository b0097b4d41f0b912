"""As much of AMQP 0-9-1 as a benchmark needs: publish with confirms, consume, acknowledge; one channel.

Written from the protocol's own specification (frames, classes 10, 20, 50, 60 and 85). Blocking, but for who
takes a channel's socket.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

HEADER = b"AMQP\x00\x00\x09\x01"
METHOD, CONTENT, BODY, END = 1, 2, 3, b"\xce"
FRAME = struct.Struct(">BHI")
WHICH = struct.Struct(">HH")
CONFIRM = struct.Struct(">QB")
PERSISTENT, EXPIRING = 0x1000, 0x0100  # property flags: delivery mode, expiration
DURABLE, PASSIVE = b"\x02", b"\x01"
START, TUNE, OPENED, CHANNEL, DECLARED = (10, 10), (10, 30), (10, 41), (20, 11), (50, 11)
CONFIRMING, QOS, CONSUMING, DELIVER, ACK = (85, 11), (60, 11), (60, 21), (60, 60), (60, 80)


def short(text: str) -> bytes:
    raw = text.encode()
    return bytes([len(raw)]) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def table(values: Mapping[str, str]) -> bytes:
    return long(b"".join(short(name) + b"S" + long(value.encode()) for name, value in values.items()))


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return FRAME.pack(kind, channel, len(payload)) + payload + END


def message(queue: str, body: bytes, wait_ms: int | None = None) -> bytes:
    """The frames that publish it, persistent; `wait_ms`: its time to live."""
    flags, properties = PERSISTENT, b"\x02"
    if wait_ms is not None:
        flags, properties = flags | EXPIRING, properties + short(str(wait_ms))
    publish = WHICH.pack(60, 40) + b"\0\0" + short("") + short(queue) + b"\0"
    head = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    return frame(METHOD, publish) + frame(CONTENT, head) + frame(BODY, body)


class Confirm(NamedTuple):
    """Of one message, or (`multiple`) of all up to it."""

    tag: int
    multiple: bool


def confirms(data: bytes) -> Iterator[Confirm]:
    """Those in the whole frames of what has come. Raises AssertionError for anything else."""
    at = 0
    while len(data) >= at + FRAME.size:
        kind, _, size = FRAME.unpack_from(data, at)
        end = at + FRAME.size + size + 1
        if len(data) < end:
            return
        if kind != METHOD or WHICH.unpack_from(data, at + FRAME.size) != ACK:
            raise AssertionError(f"a confirm was to come, {data[at:end][:200]!r} came")
        tag, flags = CONFIRM.unpack_from(data, at + FRAME.size + WHICH.size)
        yield Confirm(tag, bool(flags & 1))
        at = end


class Channel:
    """A connection with its one channel, logged in as guest."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._published = 0
        self._confirmed = 0
        self.socket.sendall(HEADER)
        self._wait(START)
        login = table({}) + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self._method((10, 11), login, channel=0)
        self._method((10, 31), self._wait(TUNE)[:6] + b"\0\0", channel=0)
        self._method((10, 40), short("/") + b"\0\0", channel=0)
        self._wait(OPENED)
        self._call((20, 10), b"\0", CHANNEL)

    def close(self) -> None:
        self.socket.close()

    def declare(self, queue: str, arguments: Mapping[str, str]) -> None:
        """A durable queue."""
        self._call((50, 10), b"\0\0" + short(queue) + DURABLE + table(arguments), DECLARED)

    def waiting(self, queue: str) -> int:
        """How many messages of a queue nobody has taken."""
        payload = self._call((50, 10), b"\0\0" + short(queue) + PASSIVE + table({}), DECLARED)
        count: int = struct.unpack_from(">I", payload, 1 + payload[0])[0]
        return count

    def confirms(self) -> None:
        """What is published from now on is confirmed by the server."""
        self._call((85, 10), b"\0", CONFIRMING)

    def publish(self, queue: str, messages: Iterable[tuple[int, bytes]]) -> None:
        """(milliseconds to live, body) each; comes back when all are confirmed."""
        publishes = [message(queue, body, wait_ms) for wait_ms, body in messages]
        self._published += len(publishes)
        self.socket.sendall(b"".join(publishes))
        while self._confirmed < self._published:
            tag, multiple = CONFIRM.unpack_from(self._wait(ACK))
            self._confirmed = tag if multiple & 1 else self._confirmed + 1

    def consume(self, queue: str, prefetch: int) -> None:
        """Deliveries follow."""
        self._call((60, 10), struct.pack(">IHB", 0, prefetch, 0), QOS)
        self._call((60, 20), b"\0\0" + short(queue) + short("bench") + b"\0" + table({}), CONSUMING)

    def delivered(self) -> list[bytes]:
        """Bodies of what came, at least one; acknowledged herewith. Raises TimeoutError."""
        bodies: list[bytes] = []
        tag = 0
        while not bodies or len(self._buffer) >= FRAME.size:
            if bodies and not self._has_frame():
                break
            kind, payload = self._read()
            if kind == METHOD and WHICH.unpack_from(payload) == DELIVER:
                at = 5 + payload[4]
                tag = struct.unpack_from(">Q", payload, at)[0]
            elif kind == BODY:
                bodies.append(payload)
        self._method((60, 80), CONFIRM.pack(tag, 1))
        return bodies

    # --- frames

    def _call(self, which: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        self._method(which, arguments)
        return self._wait(answer)

    def _method(self, which: tuple[int, int], arguments: bytes, channel: int = 1) -> None:
        self.socket.sendall(frame(METHOD, WHICH.pack(*which) + arguments, channel))

    def _wait(self, expected: tuple[int, int]) -> bytes:
        """Return the arguments of the next method, which must be `expected`."""
        kind, payload = self._read()
        if kind != METHOD or WHICH.unpack_from(payload) != expected:
            raise AssertionError(f"{expected} was to come, {kind} {payload[:200]!r} came")
        return payload[WHICH.size :]

    def _has_frame(self) -> bool:
        size: int = FRAME.unpack_from(self._buffer)[2]
        return len(self._buffer) >= FRAME.size + size + 1

    def _read(self) -> tuple[int, bytes]:
        buffer = self._buffer
        while len(buffer) < FRAME.size or not self._has_frame():
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            buffer += data
        kind, _, size = FRAME.unpack_from(buffer)
        payload = bytes(buffer[FRAME.size : FRAME.size + size])
        del buffer[: FRAME.size + size + 1]
        return kind, payload
