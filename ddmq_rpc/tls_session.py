"""TLS for one connection without a socket: received bytes in, plain text and bytes to send out. Pure.

OpenSSL reads from one memory buffer and writes to another, so no greenlet has to wait for a handshake.

A memory buffer of OpenSSL keeps the largest size that it ever had. Therefore both get at most one record's
bytes at a time; otherwise one long answer would hold its memory for as long as the connection lives. An
incomplete record waits in `_rest`: OpenSSL would take memory for its whole length, and say nothing of it.
"""

from __future__ import annotations

import ssl

from ddmq_common.security.certificate_names import CertificateNames, read_names

HANDSHAKE = 0x16  # the first byte of TLS; a Thrift frame shorter than 16 MiB begins with 0x00
PLAIN_BYTES_MAX = 16 << 10  # of one record
_HEAD_BYTES = 5
RECORD_BYTES_MAX = _HEAD_BYTES + PLAIN_BYTES_MAX + 2048  # with whatever a cipher of TLS 1.2 adds
_MAJOR_VERSION = 3


class TlsSession:
    """The server's side of one TLS connection. Errors are ssl.SSLError; then the connection must be closed,
    after `take_output`, which has the alert for the client."""

    __slots__ = ("_incoming", "_outgoing", "_rest", "_tls", "ended", "established")

    def __init__(self, context: ssl.SSLContext, *, server_side: bool = True) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._rest = b""
        self.established = False  # the handshake is complete
        self.ended = False  # the client has ended its half

    @property
    def buffered_bytes(self) -> int:
        """The number of received bytes of an incomplete record."""
        return len(self._rest)

    @property
    def certificate_names(self) -> CertificateNames | None:
        """The names in the peer's certificate, which was verified; None if it gave none."""
        return read_names(self._tls.getpeercert())

    def start_handshake(self) -> None:
        """Begin the handshake of a client; the first bytes to send are in `take_output`."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            pass

    def receive_bytes(self, data: bytes) -> bytes:
        """Process received bytes; return the plain text that they complete. Call `take_output` afterwards."""
        records = self._take_records(data)
        if len(records) <= RECORD_BYTES_MAX:
            return self._decrypt_records(records)
        return b"".join(
            [
                self._decrypt_records(records[at : at + RECORD_BYTES_MAX])
                for at in range(0, len(records), RECORD_BYTES_MAX)
            ]
        )

    def encrypt_bytes(self, data: bytes) -> bytes:
        """Return the records of `data`, behind whatever else has to be sent."""
        tls, outgoing = self._tls, self._outgoing
        if len(data) <= PLAIN_BYTES_MAX:
            tls.write(data)
            return outgoing.read()
        records = []
        view = memoryview(data)
        for at in range(0, len(view), PLAIN_BYTES_MAX):
            tls.write(view[at : at + PLAIN_BYTES_MAX])
            records.append(outgoing.read())
        return b"".join(records)

    def take_output(self) -> bytes:
        """Return the bytes of handshakes and alerts that have to be sent; b"" if there are none."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Return the last bytes to send: they tell the client that nothing was cut off."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # the client has not ended its half yet, or the handshake was not complete
        return self.take_output()

    def _take_records(self, data: bytes) -> bytes:
        """Return the complete records, and keep the incomplete one. What is no record is left to OpenSSL."""
        if self._rest:
            data = self._rest + data
        end, size = 0, len(data)
        while size - end >= _HEAD_BYTES:
            length = _HEAD_BYTES + (data[end + 3] << 8 | data[end + 4])
            if data[end + 1] != _MAJOR_VERSION or length > RECORD_BYTES_MAX:
                end = size
            elif length > size - end:
                break
            else:
                end += length
        self._rest = data[end:] if end < size else b""
        return data[:end] if end < size else data

    def _decrypt_records(self, records: bytes) -> bytes:
        tls, incoming = self._tls, self._incoming
        incoming.write(records)
        plain = b""
        try:
            if not self.established:
                tls.do_handshake()
                self.established = True
            while incoming.pending and not self.ended:
                part = tls.read(PLAIN_BYTES_MAX)
                plain += part
                self.ended = not part
        except ssl.SSLWantReadError:
            pass
        return plain
