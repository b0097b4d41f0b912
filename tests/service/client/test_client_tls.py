"""Clients with TLS and servers that require it (docs/security.md): what works, what each error says."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddmq_client import Admin, Consumer, NotStoredError, OptionError, Producer, TlsOptions, UnavailableError
from ddmq_client.aio import AsyncAdmin, AsyncConsumer, AsyncProducer
from ddmq_client.core.nodes import ProxyAddress, SecureAddress, parse_addresses
from ddmq_client.errors import RejectedError
from ddmq_client.received import Message
from ddmq_client.security.tls import choose_tls, secure_addresses
from tests.scenarios.real_server import RealServer, ddmq_command, running
from tests.support.certificates import write_certificates, write_pair
from tests.support.waits import until

pytestmark = pytest.mark.slow  # server processes

SECURED = (
    "tls: {certificate: server.crt, key: server.key, client_ca: ca.crt,"
    " producer: required, consumer: required, admin: required}"
)


class SecuredServer(NamedTuple):
    """A `ddmq serve` whose ports require TLS. `folder`: its configuration, with all certificates."""

    server: RealServer
    folder: Path

    def address(self, component: str) -> str:
        return self.server.address(component)

    def options(self, client: str = "", ca: str = "ca", server_name: str | None = None) -> TlsOptions:
        """The options of a client with that certificate, which trusts that CA."""
        trusted = self.folder / f"{ca}.crt"
        if not client:
            return TlsOptions(trusted, server_name=server_name)
        own = (self.folder / f"{client}.crt", self.folder / f"{client}.key")
        return TlsOptions(trusted, *own, server_name)


@contextmanager
def run_secured(folder: Path, processes: bool = False) -> Iterator[SecuredServer]:
    conf = folder / "conf"
    conf.mkdir()
    write_certificates(conf)
    (conf / "security.yaml").write_text(SECURED)
    with running(folder, conf, processes) as server:
        yield SecuredServer(server, conf)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    with run_secured(tmp_path_factory.mktemp("secured")) as server:
        yield server


def send_one(secured: SecuredServer, tls: TlsOptions | bool, proxies: str = "") -> None:
    with Producer(proxies or secured.address("producer"), timeout_ms=2_000, tls=tls) as producer:
        producer.send("orders", b"hello")


def consume_one(secured: SecuredServer, tls: TlsOptions, group: str) -> bytes:
    bodies: list[bytes] = []
    with Consumer(
        secured.address("consumer"), group, "orders", handler=lambda message: bodies.append(message.body),
        start="first", tls=tls,
    ):  # fmt: skip
        until(lambda: bodies, "a message arrives")
    return bodies[0]


@pytest.mark.parametrize("client", ["", "client"])
def test_messages_are_sent_and_received(secured: SecuredServer, client: str) -> None:
    tls = secured.options(client)
    send_one(secured, tls)
    assert consume_one(secured, tls, f"group-{client}") == b"hello"


def test_asyncio_clients_do_the_same(secured: SecuredServer) -> None:
    tls = secured.options("client")

    async def send_and_receive() -> tuple[bytes, list[str]]:
        received: asyncio.Queue[bytes] = asyncio.Queue()

        async def handle(message: Message) -> None:
            received.put_nowait(message.body)

        async with AsyncProducer(secured.address("producer"), tls=tls) as producer:
            await producer.send("orders", bytes(300_000))
        async with (
            AsyncConsumer(
                secured.address("consumer"), "aio", "orders", handler=handle, start="first", tls=tls
            ),
            AsyncAdmin(secured.address("admin"), tls=tls) as admin,
        ):
            body = b""
            while len(body) < 300_000:
                body = await asyncio.wait_for(received.get(), 60)
            return body, [topic.name for topic in await admin.list_topics()]

    body, topics = asyncio.run(send_and_receive())
    assert body == bytes(300_000)
    assert "orders" in topics


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"ca": "other_ca"},
            "certificate is not trusted (self-signed certificate in certificate chain)",
        ),
        ({"server_name": "elsewhere.example"}, "certificate is not for elsewhere.example (Hostname mismatch"),
        (
            {"client": "stranger"},
            "the server rejected the TLS connection: unknown ca; check the client",
        ),
        ({"client": "expired"}, "the server rejected the TLS connection: certificate expired; check the "),
    ],
)
def test_an_error_says_what_is_wrong(secured: SecuredServer, options: Any, text: str) -> None:
    with pytest.raises(NotStoredError) as caught:
        send_one(secured, secured.options(**options))
    assert text in str(caught.value)

    async def send() -> None:
        async with AsyncProducer(
            secured.address("producer"), timeout_ms=2_000, tls=secured.options(**options)
        ) as producer:
            await producer.send("orders", b"hello")

    with pytest.raises(NotStoredError) as caught:
        asyncio.run(send())
    assert text in str(caught.value)


def test_a_file_that_is_missing_or_damaged_is_named(secured: SecuredServer, tmp_path: Path) -> None:
    with pytest.raises(NotStoredError, match=r"No such file or directory: .*nowhere\.crt"):
        send_one(secured, TlsOptions(tmp_path / "nowhere.crt"))
    (tmp_path / "damaged.crt").write_text("damaged")
    with pytest.raises(NotStoredError, match=r"no PEM file of its kind, of .*damaged\.crt"):
        send_one(secured, TlsOptions(tmp_path / "damaged.crt"))


def test_plain_clients_are_told_that_tls_is_required(secured: SecuredServer) -> None:
    with pytest.raises(NotStoredError, match="this port requires TLS and the connection is plain text"):
        send_one(secured, False)
    with (
        Admin(secured.address("admin"), tls=False) as admin,
        pytest.raises(RejectedError, match="requires TLS; use https"),
    ):
        admin.list_topics()


def test_the_admin_client_says_what_is_wrong(secured: SecuredServer) -> None:
    with (
        Admin(secured.address("admin"), tls=secured.options(ca="other_ca")) as admin,
        pytest.raises(UnavailableError, match="certificate is not trusted"),
    ):
        admin.list_topics()


def test_events_are_streamed_over_https(secured: SecuredServer) -> None:
    host, _, port = secured.address("admin").rpartition(":")
    context = ssl.create_default_context(cafile=secured.folder / "ca.crt")
    connection = http.client.HTTPSConnection(host, int(port), timeout=60, context=context)
    connection.request("GET", "/events")
    response = connection.getresponse()
    lines = {response.readline() for _ in range(4)}
    connection.close()
    assert b"event: snapshot\n" in lines


def test_a_half_open_handshake_leaves_the_admin_port_open(secured: SecuredServer) -> None:
    host, _, port = secured.address("admin").rpartition(":")
    half_open = [socket.create_connection((host, int(port)), 60) for _ in range(60)]
    for connection in half_open:
        connection.sendall(b"\x16\x03\x01\x02\x00")
    with Admin(secured.address("admin"), tls=secured.options()) as admin:
        assert admin.list_topics() is not None
    for connection in half_open:
        connection.close()


def test_commands_use_the_environment(secured: SecuredServer) -> None:
    def run(ca: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        where = {f"DDMQ_{name.upper()}": secured.address(name) for name in ("producer", "consumer", "admin")}
        return subprocess.run(
            ddmq_command(*arguments), env=os.environ | where | {"DDMQ_CA": ca},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    ca = str(secured.folder / "ca.crt")
    assert run(ca, "send", "orders", "from the shell").returncode == 0
    assert "orders" in run(ca, "topic", "list").stdout
    untrusted = run("system", "topic", "list")
    assert untrusted.returncode == 1
    assert "the server's certificate is not trusted" in untrusted.stderr
    plain = run("", "topic", "list")
    assert "this port requires TLS; use https (commands: with DDMQ_CA in the environment)" in plain.stderr


def test_a_client_with_tls_at_a_plain_server(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        tls = TlsOptions(write_certificates(tmp_path) / "ca.crt")
        with (
            pytest.raises(NotStoredError, match="ended the TLS handshake; it may speak plain text"),
            Producer(server.address("producer"), timeout_ms=2_000, tls=tls) as producer,
        ):
            producer.send("orders", b"hello")
        with (
            Admin(server.address("admin"), tls=tls) as admin,
            pytest.raises(UnavailableError, match="speaks plain text, not TLS"),
        ):
            admin.list_topics()


def test_certificates_are_renewed_while_clients_are_connected(tmp_path: Path) -> None:
    with run_secured(tmp_path) as secured:
        with Producer(secured.address("producer"), tls=secured.options()) as producer:
            producer.send("orders", b"before")
            write_pair(secured.folder, "elsewhere")
            os.kill(secured.server.pid, signal.SIGHUP)
            until(lambda: "certificates reloaded" in secured.server.log, "the files are read", 60)
            with pytest.raises(NotStoredError, match="certificate is not for"):
                send_one(secured, secured.options())
            assert producer.send("orders", b"after").code == 0
        send_one(secured, secured.options(server_name="elsewhere.example"))
        (secured.folder / "server.key").write_text("damaged")
        until(lambda: "certificates not reloaded" in secured.server.log, "the files are looked at", 60)
        send_one(secured, secured.options(server_name="elsewhere.example"))


def test_processes_of_an_installation_reach_each_other(tmp_path: Path) -> None:
    with run_secured(tmp_path, processes=True) as secured:
        tls = secured.options()
        with (
            Producer(secured.address("producer"), producer_group="bank", tls=tls) as producer,
            producer.transaction() as transaction,
        ):
            transaction.send("orders", b"hello")
        assert consume_one(secured, tls, "billing") == b"hello"
        with Admin(secured.address("admin"), tls=tls) as admin:
            assert "orders" in [topic.name for topic in admin.list_topics()]
        assert "no answer of another process" not in secured.server.log


# --- the choice of a client, without a server


def test_the_environment_decides_unless_the_argument_does() -> None:
    environment = {"DDMQ_CA": "ca.crt", "DDMQ_CERT": "a.crt", "DDMQ_KEY": "a.key"}
    for argument in (None, True):
        chosen = choose_tls(argument, environment)
        assert chosen is not None
        assert chosen.options == TlsOptions("ca.crt", "a.crt", "a.key")
    assert choose_tls(False, environment) is None
    assert choose_tls(None, {}) is None
    assert choose_tls(None, {"DDMQ_CERT": "a.crt"}) is None
    for system in (choose_tls(None, {"DDMQ_CA": "system"}), choose_tls(True, {})):
        assert system is not None
        assert system.options == TlsOptions()
    with pytest.raises(OptionError, match="tls='yes'; allowed: True, False, a TlsOptions, or None"):
        choose_tls("yes")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="key is set and certificate is not"):
        TlsOptions(key="a.key")


def test_resolved_addresses_keep_the_name_that_is_verified() -> None:
    (address,) = secure_addresses(parse_addresses("mq.example:9613", 1), TlsOptions())
    assert isinstance(address, SecureAddress)
    (resolved,) = address.secure_like([ProxyAddress("10.0.0.1", 9613)])
    assert isinstance(resolved, SecureAddress)
    assert (resolved.host, resolved.server_name) == ("10.0.0.1", "mq.example")
    assert resolved == ProxyAddress("10.0.0.1", 9613)
