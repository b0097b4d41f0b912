"""One HTTP connection over an asyncio stream; `net.http` has the same for threads."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ddmq_client.admin.http import HttpRequest, HttpResponse, ResponseReader
from ddmq_client.aio.connection import check_transport
from ddmq_client.core.nodes import ProxyAddress, UnixAddress
from ddmq_client.security.tls import asyncio_options

READ_BYTES = 64 * 1024


class AsyncHttpConnection:
    """A connection to one server, for one request at a time."""

    def __init__(self, address: ProxyAddress) -> None:
        self.address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether the server has closed the connection."""
        return self._reader is None or self._reader.at_eof() or self._reader.exception() is not None

    async def open(self, deadline: float) -> None:
        """Connect to the server. Raises OSError."""
        async with asyncio.timeout_at(deadline):
            self._reader, self._writer = await (
                asyncio.open_unix_connection(self.address.host)
                if isinstance(self.address, UnixAddress)
                else asyncio.open_connection(*self.address, **asyncio_options(self.address))
            )
        if self.address.login is not None and self.address.login.read_token():
            check_transport(self._writer.transport, self.address)

    async def call(self, request: HttpRequest, reader: ResponseReader, deadline: float) -> HttpResponse:
        """Send the request and wait for its answer. Raises OSError (TimeoutError) or HttpError."""
        if self._reader is None or self._writer is None:
            raise ConnectionAbortedError("the connection is closed")
        async with asyncio.timeout_at(deadline):
            self._writer.write(request.encode(self.address))
            await self._writer.drain()
            while True:
                response = reader.feed_bytes(await self._reader.read(READ_BYTES))
                if response is not None:
                    return response

    def close(self) -> None:
        """Close the connection; a call that waits on it fails."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            with suppress(RuntimeError):  # its event loop is closed, and has no more use for it
                writer.transport.abort()
