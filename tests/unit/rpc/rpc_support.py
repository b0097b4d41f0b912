"""A server with handlers a test can hold back, and a client on raw sockets, both on this thread's hub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from struct import unpack
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

from gevent import socket
from gevent import ssl as gevent_ssl

from ddmq_client.idl import consumer, producer
from ddmq_common.clock import ManualClock
from ddmq_common.metrics.catalogue import RPC_ABANDONED, RPC_CONNECTIONS, RPC_FAULTS, RPC_REFUSED
from ddmq_common.metrics.registry import Registry
from ddmq_common.security.certificates import CertificateFiles
from ddmq_common.security.settings import TlsConfig
from ddmq_rpc.api import Call, Service, Wire
from ddmq_rpc.client_side import DecodedReply, decode_reply, encode_call
from ddmq_rpc.codec import structs
from ddmq_rpc.server import RpcServer
from ddmq_rpc.traffic import RpcLimits, TlsPort
from tests.support.certificates import PEM, write_certificates
from tests.support.waits import until

PRODUCER, CONSUMER = "ProducerService", "ConsumerService"
WAIT_S = 20.0  # a deadline for a loaded machine, never a pause
RECORDINGS = Path(__file__).resolve().parents[2] / "interop" / "recordings"

P, C = structs(producer), structs(consumer)
OK = P.Result(code=0, msg="OK")


class Recorded(NamedTuple):
    """One exchange of tests/interop/recordings."""

    name: str
    idl: ModuleType
    service: str
    request: bytes
    reply: bytes | None


def recordings() -> list[Recorded]:
    """Every request with its reply, from the .hex files."""
    exchanges = []
    for path in sorted(RECORDINGS.rglob("*.hex")):
        frames = [bytes.fromhex(line) for line in path.read_text().split("\n") if line and line[0] != "#"]
        producing = b"send" in frames[0][:30]
        idl, service = (producer, PRODUCER) if producing else (consumer, CONSUMER)
        name = str(path.relative_to(RECORDINGS))
        exchanges.append(Recorded(name, idl, service, frames[0], frames[1] if len(frames) > 1 else None))
    return exchanges


class Client:
    """A raw connection; everything it waits for has a deadline."""

    def __init__(self, address: tuple[str, int], source: str = "127.0.0.1", tls: Any = None) -> None:
        self.socket: Any = socket.create_connection(address, source_address=(source, 0))
        self.socket.settimeout(WAIT_S)
        self.refused = False
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
            except (ConnectionResetError, gevent_ssl.SSLEOFError):
                self.refused = True

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        head = self._read(4)
        return head + self._read(unpack(">i", head)[0])

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.socket.recv(count - len(data))
            assert chunk, f"closed after {len(data)} of {count} bytes"
            data += chunk
        return data

    def call(self, frame: bytes, idl: ModuleType = producer, service: str = PRODUCER) -> DecodedReply:
        self.send(frame)
        return decode_reply(idl, service, self.read_frame())

    def is_closed(self) -> bool:
        """Waits for the server to end the connection."""
        try:
            return self.refused or self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


class Stage:
    """A running server of the producer service; `calls` are those that no handler has answered."""

    def __init__(self, limits: RpcLimits, tls: TlsPort | None = None) -> None:
        self.clock = ManualClock()
        self.metrics = Registry()
        self.calls: list[Call] = []
        self.received_args: list[Any] = []
        handlers = {
            "sendSync": self._answer_now,
            "sendAsync": self.calls.append,
            "sendBatchSync": self._answer_now,
            "sendOneway": self.calls.append,
            "sendDelaySync": self._break,
        }
        service = Service(producer, PRODUCER, handlers)
        self.server = RpcServer(service, "127.0.0.1", 0, limits, self.metrics, self.clock, tls)
        self.server.start()
        self.tls = tls
        self.clients: list[Client] = []

    def client(self, source: str = "127.0.0.1") -> Client:
        """One more, from this address, with TLS if the server requires it."""
        client = Client(self.server.address, source, Transport.client_context() if self.tls else None)
        self.clients.append(client)
        return client

    def raw_client(self, source: str = "127.0.0.1") -> Client:
        """One more without TLS."""
        client = Client(self.server.address, source)
        self.clients.append(client)
        return client

    def rejected(self, reason: str) -> float:
        return self.metrics.cell(RPC_REFUSED, PRODUCER, reason).value

    def errors(self, kind: str) -> float:
        return self.metrics.cell(RPC_FAULTS, PRODUCER, kind).value

    @property
    def traffic(self) -> Any:
        """What the server knows of its connections, which it shows to nobody."""
        return self.server._traffic

    @property
    def abandoned(self) -> float:
        return self.metrics.cell(RPC_ABANDONED, PRODUCER).value

    @property
    def connections(self) -> float:
        return self.metrics.cell(RPC_CONNECTIONS, PRODUCER).value

    def waits_for(self, count: int) -> None:
        until(lambda: len(self.calls) >= count, f"{count} calls reach the handler")

    def _answer_now(self, call: Call) -> None:
        self.received_args.append(call.args)
        call.reply(OK)

    @staticmethod
    def _break(call: Call) -> None:
        raise RuntimeError("the handler breaks")


def client_context(certificate: str = "", folder: Path | None = None) -> Any:
    """A context of gevent that trusts the tests' CA, with a certificate of `folder`."""
    context = gevent_ssl.SSLContext(gevent_ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=PEM["ca.crt"])
    if certificate:
        assert folder is not None
        context.load_cert_chain(folder / f"{certificate}.crt", folder / f"{certificate}.key")
    return context


@cache
def tls_port(required: bool = True) -> TlsPort:
    """TLS with the tests' certificates."""
    with TemporaryDirectory() as name:
        folder = write_certificates(Path(name), "server", "ca")
        config = TlsConfig(folder / "server.crt", folder / "server.key", folder / "ca.crt")
        return TlsPort(CertificateFiles(config), required)


class Transport:
    """How servers of the suites serve, and their clients connect. The fixture `transport` sets it."""

    tls = False

    @classmethod
    def port(cls) -> TlsPort | None:
        return tls_port() if cls.tls else None

    @classmethod
    def client_context(cls) -> Any:
        return client_context() if cls.tls else None


@contextmanager
def stage(**limits: Any) -> Iterator[Stage]:
    running = Stage(RpcLimits(**limits), Transport.port())
    try:
        yield running
    finally:
        for client in running.clients:
            client.close()
        running.server.close()
        assert running.connections == 0


def send_sync(sequence: int = 0, wire: Wire = Wire.COMPACT, **fields: Any) -> bytes:
    message = P.Message(topic="t", body=b"body", **fields)
    return encode_call(producer, PRODUCER, "sendSync", wire, sequence, message=message, timeout=50)


def send_async(sequence: int = 0, wire: Wire = Wire.COMPACT, body: bytes = b"body") -> bytes:
    message = P.Message(topic="t", body=body)
    return encode_call(producer, PRODUCER, "sendAsync", wire, sequence, message=message)


def send_oneway(topic: str = "t") -> bytes:
    return encode_call(producer, PRODUCER, "sendOneway", message=P.Message(topic=topic, body=b"body"))
