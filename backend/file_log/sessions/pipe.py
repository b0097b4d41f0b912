"""The session protocol's frames, and the socket that passes them, on the hub's loop, without a greenlet.

A frame is a 9-byte head (body length, kind, id; little-endian) and a MessagePack body. `id` ties an
answer to its request, or names a membership; 0 where there is nothing to tie. docs/formats-sessions.md
describes every byte.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MAGIC = "ddmq-session"
VERSION = 5
HEAD = struct.Struct("<IBI")
IDENT_MAX = 0xFFFF_FFFF
TIMEOUT_MS_MAX = 86_400_000  # what a deadline further away is cut to


class FrameKind(IntEnum):
    """The kinds of frames. Below 64: member to writer; from 64 on: writer to member."""

    HELLO = 1
    PING = 2
    APPEND = 3
    COMMIT = 4
    PUT_TOPIC = 5
    DELETE_TOPIC = 6
    READ = 7
    WAIT = 8
    UNWAIT = 9
    BOUNDS = 10
    OFFSET_FOR_TIME = 11
    FIND = 12
    PROGRESS = 13
    JOIN = 14
    RELEASE = 15
    LEAVE = 16
    READS_FILES = 17
    HOLDERS = 18
    WELCOME = 64
    READY = 65
    PONG = 66
    ANSWER = 67
    ERROR = 68
    TOPICS = 69
    SETTINGS = 70
    ASSIGNED = 71
    REVOKED = 72
    LOST = 73
    GOING = 74


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of the writer's socket. docs/formats-sessions.md describes the effect of each."""

    sessions_max: int = 64
    frame_bytes_max: int = 32 << 20  # of one body
    in_flight_bytes_max: int = 64 << 20  # requests not answered yet, per session
    out_bytes_max: int = 64 << 20  # answers and pushes not yet taken by the other side
    requests_max: int = 65_536  # outstanding per session, parked waits included
    memberships_max: int = 16_384  # per session
    silence_s: float = 10.0  # a side that sends nothing for so long is disconnected
    request_timeout_s: float = 10.0  # for requests whose call has no deadline of its own
    batch_bytes: int = 256 << 10  # appends of one iteration of the hub are joined up to here

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0")

    @property
    def ping_s(self) -> float:
        """Return the seconds between two pings of a member."""
        return self.silence_s / 4


def encode_frame(kind: FrameKind, ident: int, body: bytes) -> bytes:
    """Encode one frame, ready to send."""
    return HEAD.pack(len(body), kind, ident) + body


def timeout_ms(deadline: float, now: float) -> int:
    """Convert a deadline into the milliseconds left, as sent over a session: rounded up, never below 0."""
    return math.ceil(min(max(deadline - now, 0.0) * 1000, TIMEOUT_MS_MAX))


def deadline_of(remaining_ms: int, now: float) -> float:
    """Convert received milliseconds left into a deadline on this process's monotonic clock."""
    return now + min(max(remaining_ms, 0), TIMEOUT_MS_MAX) / 1000


class ProtocolError(Exception):
    """The other side sent something that the protocol does not allow; the session ends."""


RECEIVE_BYTES = 256 << 10
READABLE, WRITABLE = 1, 2


class Pipe:
    """Sends and receives frames on one socket.

    `frame_bytes_max` bounds one body, `out_bytes_max` the bytes waiting to be sent.

    * All frames of one iteration of the hub leave with one system call.
    * `on_frame(kind, id, body)` runs on the hub; it may close the pipe. The body is the frame's own bytes.
    * `on_closed(reason, text)` runs once when the other side goes ("gone"), breaks the protocol ("malformed")
      or does not take what it is sent ("untaken"); never after `close`.
    * A paused pipe reads nothing more (the kernel's buffers then stop the other side); `on_drained` is
      called when everything queued has left, so that the owner may resume.
    """

    def __init__(
        self,
        loop: Any,
        sock: socket.socket,
        frame_bytes_max: int,
        out_bytes_max: int,
        on_frame: Callable[[int, int, bytes], None],
        on_closed: Callable[[str, str], None],
        on_drained: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._frame_bytes_max = frame_bytes_max
        self._out_bytes_max = out_bytes_max
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_drained = on_drained
        self._chunks: list[bytes] = []
        self._have, self._need = 0, HEAD.size
        self._out: list[bytes | memoryview] = []
        self._flushing = False
        self.closed = False
        self.paused = False
        self.out_bytes = 0
        self._readable = loop.io(sock.fileno(), READABLE)
        self._writable = loop.io(sock.fileno(), WRITABLE)
        self._readable.start(self._receive)

    def send(self, kind: FrameKind, ident: int, body: bytes) -> None:
        """Queue one frame to be sent at the end of this turn of the hub. Does nothing once closed."""
        self.send_frame(encode_frame(kind, ident, body))

    def send_frame(self, data: bytes) -> None:
        """Queue a frame that is already encoded, so that one encoding serves many sessions."""
        if self.closed:
            return
        self._out.append(data)
        self.out_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.run_callback(self._flush)
        elif self.out_bytes > self._out_bytes_max and self._writable.active:
            self._loop.run_callback(self._close_untaken)

    def flush(self) -> None:
        """Write queued frames to the socket now, as far as it accepts them."""
        if not self.closed and self._out:
            self._flush()

    def pause_reading(self) -> None:
        """Stop reading from the socket until `resume_reading`."""
        if not self.paused and not self.closed:
            self.paused = True
            self._readable.stop()

    def resume_reading(self) -> None:
        """Resume reading; frames that were already received are handled in the next turn of the hub."""
        if self.paused and not self.closed:
            self.paused = False
            self._readable.start(self._receive)
            self._loop.run_callback(self._parse)

    def close(self) -> None:
        """Close the socket and drop queued frames. Does nothing once closed."""
        if self.closed:
            return
        self.closed = True
        for watcher in (self._readable, self._writable):
            watcher.stop()
            watcher.close()
        self._sock.close()
        self._out.clear()
        self._chunks.clear()

    def _close_with(self, reason: str, text: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(reason, text)

    def _close_untaken(self) -> None:
        self._close_with("untaken", f"the other side left more than {self._out_bytes_max} bytes untaken")

    # --- out

    def _flush(self) -> None:
        if self.closed or not self._out:
            self._flushing = False
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._close_with("gone", f"sending failed: {error.strerror}")
            return
        self.out_bytes -= sent
        if sent == len(data):
            self._out.clear()
            self._flushing = False
            self._writable.stop()
            if self.paused and self._on_drained is not None:
                self._on_drained()
            return
        self._out = [memoryview(data)[sent:]]
        if self.out_bytes > self._out_bytes_max:
            self._close_untaken()
        elif not self._writable.active:
            self._writable.start(self._flush)

    # --- in

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._close_with("gone", f"receiving failed: {error.strerror}")
            return
        if not data:
            self._close_with("gone", "the other side closed the session")
            return
        self._chunks.append(data)
        self._have += len(data)
        self._parse()

    def _parse(self) -> None:
        if self.closed or self.paused or self._have < self._need:
            return
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        try:
            at = self._take_frames(data)
        except ProtocolError as error:
            self._close_with("malformed", str(error))
            return
        if not self.closed:
            self._have = len(data) - at
            if self._have:
                self._chunks.append(data[at:] if at else data)

    def _take_frames(self, data: bytes) -> int:
        """Pass the complete frames in `data` to `on_frame`.

        Return where the first incomplete frame starts.
        """
        at, end = 0, len(data)
        while end - at >= HEAD.size:
            length, kind, ident = HEAD.unpack_from(data, at)
            if length > self._frame_bytes_max:
                raise ProtocolError(f"a frame of {length} bytes; allowed: {self._frame_bytes_max}")
            stop = at + HEAD.size + length
            if stop > end or self.paused:
                self._need = HEAD.size + length
                return at
            self._on_frame(kind, ident, data[at + HEAD.size : stop])
            if self.closed:
                return at
            at = stop
        self._need = HEAD.size
        return at
