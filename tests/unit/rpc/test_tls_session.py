"""The engine of TLS against OpenSSL itself, whatever the pieces in which bytes arrive."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddmq_common.security.certificate_names import CertificateNames, read_names
from ddmq_common.security.certificates import build_contexts
from ddmq_common.security.settings import TlsConfig
from ddmq_rpc.tls_session import PLAIN_BYTES_MAX, RECORD_BYTES_MAX, TlsSession
from tests.support.certificates import write_certificates

MESSAGES = st.lists(st.integers(1, 3 * PLAIN_BYTES_MAX), max_size=6)
VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


class NaivePeer:
    """A client of OpenSSL over memory buffers, that reads whatever there is."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.plain = b""
        self.established = self.ended = False
        self.feed(b"")

    def feed(self, data: bytes) -> None:
        self.incoming.write(data)
        try:
            if not self.established:
                self.tls.do_handshake()
                self.established = True
            while not self.ended:
                data = self.tls.read(1 << 20)
                self.plain += data
                self.ended = not data
        except ssl.SSLWantReadError:
            pass

    def write(self, data: bytes) -> None:
        for at in range(0, len(data), PLAIN_BYTES_MAX):
            self.tls.write(data[at : at + PLAIN_BYTES_MAX])

    def take(self) -> bytes:
        return self.outgoing.read() if self.outgoing.pending else b""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server_context(folder: Path) -> ssl.SSLContext:
    config = TlsConfig(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    context = build_contexts(config).server
    assert context is not None
    return context


def client_context(folder: Path, version: ssl.TLSVersion, certificate: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.minimum_version = context.maximum_version = version
    if certificate:
        context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")
    return context


def connect(session: TlsSession, peer: NaivePeer) -> bytes:
    """Pass bytes on until neither side has any; return the plain text that came."""
    plain = b""
    while data := peer.take():
        plain += session.receive_bytes(data)
        peer.feed(session.take_output())
    return plain


def established(
    folder: Path, context: ssl.SSLContext, version: ssl.TLSVersion
) -> tuple[TlsSession, NaivePeer]:
    session, peer = TlsSession(context), NaivePeer(client_context(folder, version))
    connect(session, peer)
    assert session.established
    assert peer.established
    return session, peer


@given(data=st.data(), version=st.sampled_from(VERSIONS), lengths=MESSAGES)
def test_plain_text_arrives_whatever_the_chunks(
    data: st.DataObject,
    version: ssl.TLSVersion,
    lengths: list[int],
    folder: Path,
    server_context: ssl.SSLContext,
) -> None:
    session, peer = TlsSession(server_context), NaivePeer(client_context(folder, version))
    while not (session.established and peer.established):
        for chunk in chunks(data, peer.take()):
            assert session.receive_bytes(chunk) == b""
            peer.feed(session.take_output())
    expected, received = b"", b""
    for number, length in enumerate(lengths):
        expected += bytes([number + 1]) * length
        peer.write(bytes([number + 1]) * length)
    for chunk in chunks(data, peer.take()):
        received += session.receive_bytes(chunk)
        assert session.buffered_bytes < RECORD_BYTES_MAX
    assert received == expected
    assert session.buffered_bytes == 0
    for chunk in chunks(data, session.encrypt_bytes(expected) if expected else b""):
        peer.feed(chunk)
    assert peer.plain == expected


def chunks(data: st.DataObject, text: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if end > start]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_comes_with_the_end_of_the_handshake_is_not_forgotten(
    folder: Path, server_context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    session, peer = TlsSession(server_context), NaivePeer(client_context(folder, version))
    while not peer.established:
        assert session.receive_bytes(peer.take()) == b""
        peer.feed(session.take_output())
    peer.write(b"first call")
    assert session.receive_bytes(peer.take()) == b"first call"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_clients_end_is_seen_behind_its_data(
    folder: Path, server_context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    session, peer = established(folder, server_context, version)
    peer.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        peer.tls.unwrap()
    assert session.receive_bytes(peer.take()) == b"last"
    assert session.ended


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_sees_that_nothing_was_cut_off(
    folder: Path, server_context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    session, peer = established(folder, server_context, version)
    peer.feed(session.close())
    assert peer.ended


def test_a_client_of_tls_1_1_is_sent_an_alert(folder: Path, server_context: ssl.SSLContext) -> None:
    old = client_context(folder, ssl.TLSVersion.TLSv1_3)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    session, peer = TlsSession(server_context), NaivePeer(old)
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        session.receive_bytes(peer.take())
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        peer.feed(session.take_output())


@pytest.mark.parametrize(
    "garbage", [b"\x16" + bytes(40), b"\x16\x03\x01\xff\xff" + bytes(40), b"\x16GET / HTTP"]
)
def test_garbage_behind_the_first_byte_is_an_error_at_once(
    server_context: ssl.SSLContext, garbage: bytes
) -> None:
    with pytest.raises(ssl.SSLError):
        TlsSession(server_context).receive_bytes(garbage)


def test_damaged_records_are_an_error(folder: Path, server_context: ssl.SSLContext) -> None:
    session, peer = established(folder, server_context, ssl.TLSVersion.TLSv1_3)
    peer.write(b"call")
    record = bytearray(peer.take())
    record[-1] ^= 1
    with pytest.raises(ssl.SSLError):
        session.receive_bytes(bytes(record))


def test_the_names_of_a_certificate(folder: Path, server_context: ssl.SSLContext) -> None:
    session = TlsSession(server_context)
    connect(session, NaivePeer(client_context(folder, ssl.TLSVersion.TLSv1_3, "client")))
    assert session.certificate_names == CertificateNames(
        ("ddmq:billing",), ("billing.example",), ("billing",)
    )
    nameless, peer = established(folder, server_context, ssl.TLSVersion.TLSv1_3)
    assert nameless.certificate_names is None
    assert peer.established


def test_a_certificate_without_alternative_names() -> None:
    certificate = {"subject": ((("organizationName", "A"),), (("commonName", "a"), ("commonName", "b")))}
    assert read_names(certificate) == CertificateNames((), (), ("a", "b"))
    assert read_names({}) is None


@pytest.mark.parametrize("name", ["stranger", "expired"])
def test_a_certificate_that_is_not_valid_ends_the_handshake(
    folder: Path, server_context: ssl.SSLContext, name: str
) -> None:
    session = TlsSession(server_context)
    peer = NaivePeer(client_context(folder, ssl.TLSVersion.TLSv1_2, name))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        connect(session, peer)
