"""The quick start of docs/security.md, command by command, on two machines: network namespaces, in which the
page's names and ports are those of nobody else. Before it, a trial without security; after it, an old client
at an address of its own, and a token that is revoked while its client pulls.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.kafka.namespaces import Namespaces, why_not
from tests.scenarios.real_server import PATIENCE_S
from tests.support.pages import ROOT, page_blocks
from tests.support.waits import until

pytestmark = pytest.mark.slow
HOST = "mq.example"
HOSTS = Path("/etc/netns")  # `ip netns exec` puts NAME/hosts of this folder in the place of /etc/hosts
OLD_CLIENT = """
import sys
from tests.interop.apache_client import Client, done
with Client(9613, host=sys.argv[1]) as producer, Client(9713, host=sys.argv[1]) as consumer:
    while True:  # a group that a pull makes begins behind what there is
        result = producer.send("orders", b"order 18")
        if result.code:
            print(result.code, result.msg)
            break
        answer = consumer.pull("old-app", "orders", maxLingerTime=1_000)
        if answer.messages:
            print([message.value for message in answer.messages], consumer.submit(done(answer)))
            break
"""
PLAIN_LOGIN = """
import socket, sys
from pathlib import Path
from ddmq_client.idl import producer
from ddmq_rpc.client_side import encode_call
from ddmq_rpc.codec import structs
token = (Path.home() / ".config" / "ddmq" / "billing.token").read_bytes().strip()
request = structs(producer).AuthRequest(mechanism="token", credentials=token)
with socket.create_connection((sys.argv[1], 9613), 30) as connection:
    connection.sendall(encode_call(producer, "ProducerService", "authenticate", request=request))
    print(connection.recv(4096))
"""
OLD_APP = "  old-app: {allow: [send orders, consume orders, consume old-app, create old-app]}\n"
PULLING = """
import signal, time
from ddmq_client import Consumer
with Consumer(None, "billing", "orders", profile="billing", linger_ms=30_000, handler=print,
              on_error=lambda error: print("FAILED", time.time(), error, flush=True)):
    print("pulling", flush=True)
    signal.pause()
"""


class Machine:
    """One machine with a home of its own. `run` and `begin` take a line of the page."""

    def __init__(self, nodes: Namespaces, node: str, folder: Path) -> None:
        self.home, self.folder = folder / "home", folder
        self.home.mkdir(parents=True)
        self._before = nodes.before(node)
        self._running: list[subprocess.Popen[str]] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DDMQ_", "XDG_"))}
        self._environment = {**kept, "HOME": str(self.home), "PATH": path, "PYTHONPATH": str(ROOT)}
        self._environment |= {"DDMQ_COMPILED": os.environ.get("DDMQ_COMPILED", "1")}

    def _arguments(self, line: str) -> dict[str, Any]:
        return {"args": [*self._before, "sh", "-c", line], "cwd": self.folder, "env": self._environment}

    def run(self, line: str, *, fails: bool = False) -> str:
        """Run a command to its end; return what it printed. Asserts its outcome."""
        done = subprocess.run(**self._arguments(line), capture_output=True, text=True, timeout=PATIENCE_S)
        assert (done.returncode != 0) is fails, (line, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def begin(self, line: str) -> subprocess.Popen[str]:
        """Start a command that goes on, and return it after its first line on standard output."""
        with (self.folder / "errors").open("ab") as errors:
            process = subprocess.Popen(
                **self._arguments(f"exec {line}"), stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline(), (line, (self.folder / "errors").read_text())
        return process

    def end_all(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(PATIENCE_S)
        self._running.clear()


class Lab:
    """The machine of the server, that of an application, and that of an old client."""

    def __init__(self, nodes: Namespaces, folder: Path) -> None:
        self.nodes = nodes
        self.address = nodes.address("server")
        for node in NODES:
            hosts = HOSTS / nodes.name(node) / "hosts"
            hosts.parent.mkdir(parents=True)
            hosts.write_text(f"127.0.0.1 localhost\n{self.address} {HOST}\n")
        self.server, self.application, self.old = (Machine(nodes, node, folder / node) for node in NODES)

    def end(self) -> None:
        for machine in (self.application, self.old, self.server):
            machine.end_all()
        for node in NODES:
            shutil.rmtree(HOSTS / self.nodes.name(node), ignore_errors=True)


NODES = ("server", "application", "old")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(f"NO SECOND MACHINE IS TESTED: {reason}")
    nodes = Namespaces(NODES)
    lab = None
    try:
        lab = Lab(nodes, tmp_path)
        yield lab
    finally:
        if lab is not None:
            lab.end()
        nodes.close()


def read_quick_start() -> tuple[list[list[str]], list[str]]:
    """The commands of each block of the quick start, and its texts: an identity, and a profile."""
    page = (ROOT / "docs/security.md").read_text()
    begin, end = page.index("## Two machines in ten minutes"), page.index("### Profiles")
    lines = range(page[:begin].count("\n") + 1, page[:end].count("\n") + 1)
    here = [block for block in page_blocks("docs/security.md") if block.line in lines]
    commands = [block.text.splitlines() for block in here if block.language == "sh"]
    return commands, [block.text for block in here if block.language == "text"]


def test_from_a_trial_to_two_secured_machines(lab: Lab) -> None:
    server, application, old = lab.server, lab.application, lab.old
    (start, create, token, use), (identity, profile) = read_quick_start()
    init, serve = start

    server.begin("ddmq serve --data-dir data")  # the trial
    server.run("ddmq topic create orders")
    server.run("ddmq send orders 'order 16'")
    server.end_all()

    server.run(init)
    server.begin(serve)
    server.run(create[0], fails=True)  # it is there
    server.run("ddmq --profile mq.example topic show orders")
    rules = server.folder / "conf" / "security.yaml"
    rules.write_text(rules.read_text().replace("\nidentities:\n", f"\nidentities:\n{identity}", 1))
    explain, make_token = token
    assert "rule `consume orders`" in server.run(explain)
    server.run(make_token)

    home = application.home / ".config" / "ddmq"
    home.mkdir(parents=True)
    shutil.copy(server.folder / "conf" / "ca.crt", home)
    shutil.copy(server.folder / "billing.token", home)
    (home / "billing.yaml").touch(0o600)
    (home / "billing.yaml").write_text(profile)
    send, pull = use
    until(lambda: _succeeds(application, send), "the server knows the new identity")
    pulled = application.run(pull)
    assert "order 16" in pulled
    assert "order 17" in pulled
    assert "lacks the right" in application.run(
        "ddmq --profile billing topic delete orders --yes", fails=True
    )
    assert "billing" in server.run("ddmq --profile mq.example auth usage")

    old_client = f"{shlex.quote(sys.executable)} -c {shlex.quote(OLD_CLIENT)} {lab.address}"
    assert "this port requires TLS" in old.run(old_client, fails=True)
    server.end_all()
    text = rules.read_text().replace("producer: required", "producer: optional")
    text = text.replace("consumer: required", "consumer: optional")
    text = text.replace("\nidentities:\n", f"\nidentities:\n{OLD_APP}", 1)
    text = text.replace("legacy: {}", f"legacy: {{{lab.nodes.address('old')}/32: old-app}}")
    rules.write_text(text)
    server.begin(serve)
    assert "order 18" in old.run(old_client)
    elsewhere = application.run(old_client)
    assert "13 FAILED: a connection without an identity lacks the right `send orders`" in elsewhere

    login = f"{shlex.quote(sys.executable)} -c {shlex.quote(PLAIN_LOGIN)} {lab.address}"
    assert "a token is accepted over TLS or from this machine alone" in application.run(login)

    pulling = application.begin(f"{shlex.quote(sys.executable)} -c {shlex.quote(PULLING)}")
    until(lambda: _waits(server), "its pull waits")
    token_id = (server.folder / "billing.token").read_text().split("_")[1]
    server.run(f"ddmq auth token revoke {token_id} --config conf")
    assert pulling.stdout is not None
    line = next(line for line in pulling.stdout if line.startswith("FAILED"))
    assert line
    until(  # on a busy machine, its time may be up before the answer comes
        lambda: "the login was rejected" in application.run(send, fails=True), "the token is rejected"
    )
    assert "order 18" in old.run(old_client), "others are not concerned"


def _succeeds(machine: Machine, line: str) -> bool:
    try:
        machine.run(line)
    except AssertionError:
        return False
    return True


def _waits(server: Machine) -> bool:
    """Whether a pull of billing waits at the server."""
    return json.loads(server.run("ddmq --profile mq.example group show billing --json"))["waiters"] > 0
