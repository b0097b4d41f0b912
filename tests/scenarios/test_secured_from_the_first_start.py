"""`ddmq secure init`, a server that requires TLS and logins, and clients by profile (docs/security.md).

The server listens at an address of loopback that is not 127.0.0.1, so that nothing is reached by accident."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddmq.cli.root import root
from ddmq_client import Admin, Consumer, Producer
from ddmq_client.errors import ClientError
from tests.scenarios.real_server import COMPONENTS, RealServer, write_config
from tests.support.waits import until

LINGER_MS = 25_000
BILLING = "\n  billing: {allow: [send orders, consume orders, consume billing, create billing]}\n"


class ServerBehindTls(RealServer):
    host = "127.0.0.2"


def ddmq(*words: str) -> Result:
    """Run a command in this process, which takes less time than one of its own."""
    return CliRunner().invoke(root, words)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerBehindTls]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    server = ServerBehindTls(tmp_path, tmp_path / "conf")
    write_config(tmp_path / "conf", ddmq={component: server.address(component) for component in COMPONENTS})
    made = ddmq("secure", "init", "--host", server.host, "--dir", str(tmp_path / "conf"), "--profile", "lab")
    assert made.exit_code == 0, made.output
    try:
        yield server.start()
    finally:
        server.end()


def make_application(server: ServerBehindTls) -> str:
    """Make the identity billing with a token and the profile billing; return the token's id."""
    assert server.config is not None
    rules = server.config / "security.yaml"
    rules.write_text(rules.read_text().replace("\nroles:", BILLING + "\nroles:", 1))
    home = server.folder / "home" / "ddmq"
    shutil.copy(home / "lab.yaml", home / "billing.yaml")
    text = (home / "billing.yaml").read_text().replace("lab.token", "billing.token")
    (home / "billing.yaml").write_text(text)
    token = home / "billing.token"
    made = ddmq("auth", "token", "create", "billing", "--out", str(token), "--config", str(server.config))
    assert made.exit_code == 0, made.output
    return token.read_text().split("_")[1]


def test_from_init_to_a_token_that_is_revoked_while_its_client_pulls(server: ServerBehindTls) -> None:
    created = ddmq("--profile", "lab", "topic", "create", "orders")
    assert created.exit_code == 0, created.output
    token_id = make_application(server)
    with Producer(profile="billing") as producer:
        until(lambda: sent(producer), "the server knows the new identity")
    with Consumer(None, "billing", "orders", profile="billing", start="first") as consumer:
        (message,) = until(lambda: consumer.pull(1, timeout_ms=2_000), "the message")
        assert (message.text(), message.ack()) == ("hello", True)
    with Admin(profile="lab") as admin:
        assert admin.get_topic("orders").messages == 1
    denied = ddmq("--profile", "billing", "topic", "delete", "orders", "--yes")
    assert denied.exit_code == 1
    assert "identity 'billing' lacks the right" in denied.output

    failed = threading.Event()
    pulling = Consumer(
        None, "billing", "orders", profile="billing", linger_ms=LINGER_MS, handler=print,
        on_error=lambda _: failed.set(),
    )  # fmt: skip
    with pulling:
        until(lambda: server_waits(server), "a pull waits")
        begin = time.monotonic()
        revoked = ddmq("auth", "token", "revoke", token_id, "--config", str(server.config))
        assert revoked.exit_code == 0, revoked.output
        assert failed.wait(LINGER_MS / 2_000)
        assert time.monotonic() - begin < LINGER_MS / 2_000, "long before the pull would have ended"


def test_a_client_without_tls_is_told_so(server: ServerBehindTls) -> None:
    words = "this port requires TLS and the connection is plain text"
    plain_producer = Producer(server.address("producer"), tls=False, timeout_ms=5_000)
    with plain_producer as producer, pytest.raises(ClientError, match=words):
        producer.send("orders", b"x")
    plain = ddmq("topic", "list", "--admin", server.address("admin"))
    assert plain.exit_code == 1
    assert "this port requires TLS" in plain.output


def sent(producer: Producer) -> bool:
    try:
        producer.send("orders", b"hello")
    except ClientError:
        return False
    return True


def server_waits(server: ServerBehindTls) -> bool:
    """Whether a pull of billing waits at the server."""
    with Admin(profile="lab") as admin:
        return admin.get_group("billing").waiting_pulls > 0
