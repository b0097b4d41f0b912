"""One connected socket: frames in and out, on the hub's loop, without a greenlet.

Rules:
* What is sent during one turn of the hub leaves with one system call.
* `on_frame(kind, id, body)` runs on the hub; it may close the pipe. The body is the frame's own bytes.
* `on_closed(reason, text)` runs once when the other side goes ("gone"), breaks the protocol ("malformed")
  or does not take what it is sent ("untaken"); never after `close`.
* A paused pipe reads nothing more (the kernel's buffers then stop the other side); `on_drained` tells
  its owner when everything queued has left, so that it may resume.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from backend.file_log.sessions.wire.protocol import HEAD, FrameKind, ProtocolError, frame

RECEIVE_BYTES = 256 << 10
READABLE, WRITABLE = 1, 2


class Pipe:
    """See the module's text. `frame_bytes_max` and `out_bytes_max` bound one body and what waits to leave."""

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
        """Queue one frame; it leaves at the end of this turn of the hub. Does nothing once closed."""
        self.send_frame(frame(kind, ident, body))

    def send_frame(self, data: bytes) -> None:
        """The same for a frame that is already built (one push to many sessions)."""
        if self.closed:
            return
        self._out.append(data)
        self.out_bytes += len(data)
        if not self._flushing:
            self._flushing = True
            self._loop.run_callback(self._flush)
        elif self.out_bytes > self._out_bytes_max and self._writable.active:
            self._loop.run_callback(self._untaken)

    def flush(self) -> None:
        """Hand what is queued to the kernel now, as far as it takes it."""
        if not self.closed and self._out:
            self._flush()

    def pause(self) -> None:
        """Read nothing more until `resume`."""
        if not self.paused and not self.closed:
            self.paused = True
            self._readable.stop()

    def resume(self) -> None:
        """Read again; frames that were already received come at the next turn."""
        if self.paused and not self.closed:
            self.paused = False
            self._readable.start(self._receive)
            self._loop.run_callback(self._parse)

    def close(self) -> None:
        """Drop everything. Harmless when closed."""
        if self.closed:
            return
        self.closed = True
        for watcher in (self._readable, self._writable):
            watcher.stop()
            watcher.close()
        self._sock.close()
        self._out.clear()
        self._chunks.clear()

    def _gone(self, reason: str, text: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(reason, text)

    def _untaken(self) -> None:
        self._gone("untaken", f"the other side left more than {self._out_bytes_max} bytes untaken")

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
            self._gone("gone", f"sending failed: {error.strerror}")
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
            self._untaken()
        elif not self._writable.active:
            self._writable.start(self._flush)

    # --- in

    def _receive(self) -> None:
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._gone("gone", f"receiving failed: {error.strerror}")
            return
        if not data:
            self._gone("gone", "the other side closed the session")
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
            at = self._frames(data)
        except ProtocolError as error:
            self._gone("malformed", str(error))
            return
        if not self.closed:
            self._have = len(data) - at
            if self._have:
                self._chunks.append(data[at:] if at else data)

    def _frames(self, data: bytes) -> int:
        """Hand out the whole frames in `data`; returns where the first incomplete one starts."""
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
