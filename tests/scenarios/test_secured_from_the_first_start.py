"""`ddmq secure init`, a server that requires TLS and logins, and clients by profile (docs/security.md).

The server listens at an address of loopback that is not 127.0.0.1, so that nothing is reached by accident."""

from __future__ import annotations

import json
import shutil
import ssl
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
RULES = {
    "till": "send orders",
    "billing": "consume orders, consume billing, create billing",
}  # the least that each application needs


class ServerBehindTls(RealServer):
    host = "127.0.0.2"


def ddmq(*words: str) -> Result:
    """Run a command in this process, which takes less time than one of its own."""
    return CliRunner().invoke(root, words)


@pytest.fixture(params=[False, True], ids=["one process", "processes"])
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[ServerBehindTls]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    server = ServerBehindTls(tmp_path, tmp_path / "conf", request.param)
    write_config(tmp_path / "conf", ddmq={component: server.address(component) for component in COMPONENTS})
    made = ddmq("secure", "init", "--host", server.host, "--dir", str(tmp_path / "conf"), "--profile", "lab")
    assert made.exit_code == 0, made.output
    try:
        yield server.start()
    finally:
        server.end()


def make_applications(server: ServerBehindTls) -> dict[str, str]:
    """Make each identity of RULES with a token and a profile of its name; return the tokens' ids."""
    assert server.config is not None
    rules = server.config / "security.yaml"
    text = "".join(f"\n  {name}: {{allow: [{allow}]}}\n" for name, allow in RULES.items())
    rules.write_text(rules.read_text().replace("\nroles:", f"{text}\nroles:", 1))
    return {name: make_token(server, name) for name in RULES}


def make_token(server: ServerBehindTls, name: str) -> str:
    """Make a token and a profile for an identity; return the token's id."""
    home = server.folder / "home" / "ddmq"
    shutil.copy(home / "lab.yaml", home / f"{name}.yaml")
    text = (home / f"{name}.yaml").read_text().replace("lab.token", f"{name}.token")
    (home / f"{name}.yaml").write_text(text)
    token = home / f"{name}.token"
    made = ddmq("auth", "token", "create", name, "--out", str(token), "--config", str(server.config))
    assert made.exit_code == 0, made.output
    return token.read_text().split("_")[1]


def test_from_init_to_a_token_that_is_revoked_while_its_client_pulls(server: ServerBehindTls) -> None:
    created = ddmq("--profile", "lab", "topic", "create", "orders")
    assert created.exit_code == 0, created.output
    tokens = make_applications(server)
    with Producer(profile="till") as producer:
        until(lambda: sent(producer), "the server knows the new identity")
    with Consumer(None, "billing", "orders", profile="billing", start="first") as consumer:
        (message,) = until(lambda: consumer.pull(1, timeout_ms=2_000), "the message")
        assert (message.text(), message.ack()) == ("hello", True)
    with Admin(profile="lab") as admin:
        assert admin.get_topic("orders").messages == 1
    with Producer(profile="billing", timeout_ms=5_000) as producer:
        assert not sent(producer), "it may only receive"
    denied = ddmq("--profile", "billing", "topic", "delete", "orders", "--yes")
    assert denied.exit_code == 1
    assert "identity 'billing' lacks the right" in denied.output
    check_explanations_and_usage(server)

    failed = threading.Event()
    pulling = Consumer(
        None, "billing", "orders", profile="billing", linger_ms=LINGER_MS, handler=print,
        on_error=lambda _: failed.set(),
    )  # fmt: skip
    with pulling:
        until(lambda: server_waits(server), "a pull waits")
        begin = time.monotonic()
        revoked = ddmq("auth", "token", "revoke", tokens["billing"], "--config", str(server.config))
        assert revoked.exit_code == 0, revoked.output
        assert failed.wait(LINGER_MS / 2_000)
        print(f"revoked after {time.monotonic() - begin:.2f} s")
        assert time.monotonic() - begin < LINGER_MS / 2_000, "long before the pull would have ended"
    with Producer(profile="billing", timeout_ms=1_000) as producer:
        assert not sent(producer), "its token is over"
    with Producer(profile="till") as producer:
        assert sent(producer), "others are not concerned"
    check_audit(server)


def check_explanations_and_usage(server: ServerBehindTls) -> None:
    config = ("--config", str(server.config))
    allowed = ddmq("auth", "explain", "billing", "consume", "orders", *config)
    assert (allowed.exit_code, "rule `consume orders`" in allowed.output) == (0, True), allowed.output
    missing = ddmq("auth", "explain", "till", "consume", "orders", *config)
    assert (missing.exit_code, "identity 'till' lacks the right `consume orders`" in missing.output) == (
        1,
        True,
    )
    usage = ddmq("--profile", "lab", "auth", "usage", "--json")
    assert usage.exit_code == 0, usage.output
    assert {row["identity"] for row in json.loads(usage.output) if row["requests"]} >= {"admin", "billing"}


def check_audit(server: ServerBehindTls) -> None:
    """Who did what, and what was rejected, is in the audit logs of the processes."""

    def lines() -> list[dict[str, str]]:
        files = server.data_dir.glob("audit/*.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    wanted = [
        {"event": "change", "who": "admin", "action": "POST /topics/{topic}", "object": "topic=orders"},
        {"event": "login", "who": "till", "action": "authenticate"},
        {"event": "login", "who": "billing", "action": "authenticate"},
        {"event": "rejected", "who": "billing", "action": "sendSync",
         "reason": "identity 'billing' lacks the right `send orders`"},
        {"event": "rejected", "who": "billing", "action": "DELETE /topics/{topic}"},
        {"event": "login_rejected", "action": "authenticate"},
    ]  # fmt: skip
    for fields in wanted:
        until(lambda fields=fields: any(fields.items() <= line.items() for line in lines()), str(fields))


def test_a_renewed_certificate_is_used_and_open_connections_stay(server: ServerBehindTls) -> None:
    assert ddmq("--profile", "lab", "topic", "create", "orders").exit_code == 0
    make_applications(server)
    assert server.config is not None
    authority = str(server.config / "ca.crt")

    def read_certificate(component: str) -> str:
        return ssl.get_server_certificate((server.host, server.ports[component]), ca_certs=authority)

    before = {component: read_certificate(component) for component in COMPONENTS}
    with Producer(profile="till") as producer:
        until(lambda: sent(producer), "the server knows the new identity")
        renewed = ddmq("secure", "renew", "--dir", str(server.config))
        assert renewed.exit_code == 0, renewed.output
        for component in COMPONENTS:
            until(lambda component=component: read_certificate(component) != before[component], component)
        assert sent(producer), "on its old connection"
    with Producer(profile="till") as producer:
        assert sent(producer), "on a new one, with the same CA"


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
