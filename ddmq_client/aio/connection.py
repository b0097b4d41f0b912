"""One asyncio connection to one proxy, one request at a time, within a deadline; names to addresses.

The asyncio version of `net.connection`: it has the same failures, and a connection whose call failed or was
cancelled is closed too. Times are the event loop's.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress

from ddmq_client.core import verdicts
from ddmq_client.core.frames import FrameBuffer, FrameError, HttpAnswerError
from ddmq_client.core.nodes import ADDRESSES_MAX, ProxyAddress, SecureAddress, from_info
from ddmq_client.idl.codes import FRAME_BYTES_MAX
from ddmq_client.net.connection import CONNECT_MAX_S, make_login_frame
from ddmq_client.security.login import ExposedTokenError, check_peer
from ddmq_client.security.tls import asyncio_options, describe_error, is_rejected_certificate
from ddmq_client.testing.proxies import connect_protocol
from ddmq_client.wire.login import find_login_failure

MakeFrame = Callable[[float, int], bytes]


class _Frames(asyncio.Protocol):
    """Receives the answers on one connection, one at a time."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._buffer = FrameBuffer(frame_bytes_max)
        self._answer: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None
        self._drained = asyncio.Event()
        self._drained.set()
        self.login = b""  # a frame to be sent ahead of the first call
        self.awaits_login = False
        self.name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            payload = self._buffer.feed_bytes(data)
        except FrameError as error:
            self._end(error)
            return
        if payload is not None and self.awaits_login:
            payload = self._take_login(payload)
        if payload is None:
            return
        if self._answer is None or self._answer.done():
            self._end(FrameError("an answer that nobody asked for"))
        else:
            self._answer.set_result(payload)

    def _take_login(self, payload: bytes) -> bytes | None:
        """Take the answer to the login; return the next answer if it is complete, too."""
        self.awaits_login = False
        failure = find_login_failure(self.name, payload)
        if failure is not None:
            self._end(failure)
            return None
        try:
            return self._buffer.feed_bytes(b"")
        except FrameError as error:
            self._end(error)
            return None

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("connection closed"))

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def expect_answer(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[bytes]:
        """Return a future for the next answer."""
        self._answer = loop.create_future()
        return self._answer

    async def wait_written(self) -> None:
        """Wait until all written bytes were sent; raise the error that ended the connection, if any."""
        await self._drained.wait()
        if self.error is not None:
            raise ConnectionResetError(str(self.error))

    def _end(self, error: Exception) -> None:
        self.error = self.error or error
        self._drained.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


class AsyncFramedConnection:
    """One connection with framed requests. Not for use by two tasks at the same time."""

    def __init__(self, address: ProxyAddress, frame_bytes_max: int = FRAME_BYTES_MAX * 2) -> None:
        self.name = str(address)
        self._address = address
        self._frame_bytes_max = frame_bytes_max
        self._frames: _Frames | None = None
        self._sequence_id = 0

    @property
    def closed(self) -> bool:
        """Return whether no socket is open."""
        return self._frames is None or self._frames.error is not None

    async def call(self, make_frame: MakeFrame, deadline: float) -> tuple[bytes, int]:
        """Send a request and return its answer as (payload, sequence id).

        Raises CallFailed otherwise; the connection is then closed.
        """
        loop = asyncio.get_running_loop()
        try:
            connected = await self._get_frames(deadline)
            answer = connected.expect_answer(loop)
            sequence_id = self._write(connected, make_frame, loop.time())
            return await self._answer(answer, deadline), sequence_id
        except BaseException:
            self.close()
            raise

    async def send_only(self, make_frame: MakeFrame, deadline: float) -> None:
        """Send a request that has no answer."""
        loop = asyncio.get_running_loop()
        try:
            connected = await self._get_frames(deadline)
            self._write(connected, make_frame, loop.time())
            async with asyncio.timeout_at(deadline):
                await connected.wait_written()
        except OSError as error:  # a time-out is one, too
            self.close()
            raise verdicts.not_written(self.name, error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket; a call waiting on it fails."""
        frames, self._frames = self._frames, None
        if frames is not None and frames.transport is not None:
            with suppress(RuntimeError):  # its event loop is closed, and has no more use for it
                frames.transport.abort()

    def _write(self, connected: _Frames, make_frame: MakeFrame, now: float) -> int:
        assert connected.transport is not None
        self._sequence_id = self._sequence_id % 0x7FFFFFFF + 1
        frame = make_frame(now, self._sequence_id)
        if connected.login:
            frame, connected.login, connected.awaits_login = connected.login + frame, b"", True
        connected.transport.write(frame)
        return self._sequence_id

    async def _answer(self, answer: asyncio.Future[bytes], deadline: float) -> bytes:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError as error:
            raise verdicts.timed_out(self.name, loop.time() - started) from error
        except HttpAnswerError as error:
            raise verdicts.wrong_server(self.name, error) from error
        except (OSError, FrameError) as error:
            if is_rejected_certificate(error):
                raise verdicts.not_connected(self.name, describe_error(error, self._address)) from error
            raise verdicts.answer_lost(self.name, describe_error(error, self._address)) from error

    async def _get_frames(self, deadline: float) -> _Frames:
        if self._frames is not None and self._frames.error is None:
            return self._frames
        loop = asyncio.get_running_loop()
        login = make_login_frame(self._address)
        self._frames = connect_protocol(self._address, lambda: _Frames(self._frame_bytes_max))
        if self._frames is not None:
            self._frames.login, self._frames.name = login, self.name
            return self._frames
        until = min(deadline, loop.time() + CONNECT_MAX_S)
        try:
            async with asyncio.timeout_at(until):
                _, frames = await loop.create_connection(
                    lambda: _Frames(self._frame_bytes_max), *self._address, **asyncio_options(self._address)
                )
            if login:
                check_transport(frames.transport, self._address)
        except TimeoutError as error:
            raise verdicts.connect_timed_out(self.name, at_deadline=until == deadline) from error
        except ExposedTokenError as error:
            raise verdicts.login_impossible(self.name, error) from error
        except OSError as error:
            raise verdicts.not_connected(self.name, describe_error(error, self._address)) from error
        frames.login, frames.name = login, self.name
        self._frames = frames
        return frames


def check_transport(transport: asyncio.BaseTransport | None, address: ProxyAddress) -> None:
    """Close a connection on which others could read a token, and raise ExposedTokenError."""
    if transport is None:
        return
    try:
        check_peer(transport.get_extra_info("peername"), has_tls=isinstance(address, SecureAddress))
    except OSError:
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        raise


async def resolve_addresses(
    addresses: Iterable[ProxyAddress], cache: dict[ProxyAddress, list[ProxyAddress]]
) -> list[ProxyAddress]:
    """Resolve names to addresses.

    If a name cannot be resolved now, its addresses in `cache` are used; `cache` is updated with those that
    can.
    """
    loop = asyncio.get_running_loop()
    resolved: dict[ProxyAddress, None] = {}
    for address in addresses:
        with suppress(OSError, UnicodeError):
            cache[address] = from_info(await loop.getaddrinfo(*address, type=1), address)
        resolved.update(dict.fromkeys(cache.get(address, ())))
    return list(resolved)[:ADDRESSES_MAX]


async def resolve_in_time(
    addresses: Iterable[ProxyAddress], cache: dict[ProxyAddress, list[ProxyAddress]], timeout_s: float
) -> list[ProxyAddress] | None:
    """Call `resolve_addresses`; return None if a name server has not answered within `timeout_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await resolve_addresses(addresses, cache)
    return None
