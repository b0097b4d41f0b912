"""An honest client beside attackers who have no login, with TLS and without.

    python -m tests.crash.attack_run --seconds 60 --connections 10000
    python -m tests.crash.attack_run --seconds 60 --connections 10000 --tls

A server with rights on is attacked from another address of this machine, in several ways one after the other
(ATTACKS). Meanwhile a client that has logged in sends, and `/ready` is requested. For each attack, the run
prints the p99 of the client's sends, the ratio to the p99 right before the attack, and the server's memory.
These are errors: a send that fails, an answer of `/ready` other than 200, and memory that has grown by more
than GROWTH_BYTES_MAX; with `--judge` (for quiet machines) also a p99 above RATIO_MAX times that without an
attack.
"""

from __future__ import annotations

import math
import os
import resource
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ddmq_client.idl import producer
from ddmq_rpc.client_side import encode_call
from tests.crash.kit.command import PrintLine, long_run, replay_command
from tests.scenarios.real_server import RealServer, write_config
from tests.support.certificates import write_certificates
from tests.support.rights import P, TokenClient, Who, write_rights

ATTACKER = "127.0.0.2"
ALL = "all"
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)  # the beginning of a handshake
BODY = bytes(1024)
RATIO_MAX = 1.5
GROWTH_BYTES_MAX = 256 << 20
SPARE_FILES = 200
SLOW_PAUSE_S = 0.2  # between the bytes of a slow handshake
BURST = 50  # connections made, or bytes sent, between two pauses
PAUSE_S = 0.005
CLIENTS = Who("honest", frozenset({("send", "mine"), ("metrics", "")}))


class Target(NamedTuple):
    """The port that is attacked. `ca`: the file of its CA; "": it has no TLS."""

    port: int
    ca: str

    def connect(self) -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", self.port), timeout=5, source_address=(ATTACKER, 0)
        )
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return connection

    def shake_hands(self, context: ssl.SSLContext | None) -> socket.socket:
        connection = self.connect()
        return connection if context is None else context.wrap_socket(connection, server_hostname="localhost")


# --- attacks, each in a process of its own that is killed in the end


def hold(open_one: Callable[[], socket.socket], connections: int) -> Iterator[Collection[socket.socket]]:
    """Keep so many connections open, and replace those that the server has ended. Yield the open ones again
    and again."""
    held: dict[int, socket.socket] = {}
    ended = select.poll()
    while True:
        for descriptor, _ in ended.poll(0):
            ended.unregister(descriptor)
            held.pop(descriptor).close()
        for _ in range(min(BURST, connections - len(held))):
            with suppress(OSError):
                connection = open_one()
                held[connection.fileno()] = connection
                ended.register(connection, select.POLLIN)
        yield held.values()
        time.sleep(PAUSE_S)  # the pace of the attack, in a process of its own


def attack_silently(target: Target, connections: int) -> None:
    """Connections that never send a byte."""
    for _ in hold(target.connect, connections):
        pass


def attack_half_open(target: Target, connections: int) -> None:
    """Connections that send the beginning of a handshake, or of a frame, and no more."""
    beginning = HELLO if target.ca else b"\x00\x00"

    def open_one() -> socket.socket:
        connection = target.connect()
        connection.sendall(beginning)
        return connection

    for _ in hold(open_one, connections):
        pass


def attack_slowly(target: Target, connections: int) -> None:
    """Connections that send a byte of a handshake, or of a frame, now and then."""
    data = HELLO if target.ca else (500).to_bytes(4, "big") + bytes(500)
    sent: dict[socket.socket, int] = {}
    for held in hold(target.connect, connections):
        sent = {connection: sent.get(connection, 0) + 1 for connection in held}
        for connection, count in sent.items():
            with suppress(OSError):
                connection.send(data[count - 1 : count])
        time.sleep(SLOW_PAUSE_S)  # slowness is the attack


def attack_without_login(target: Target, connections: int) -> None:
    """Connections that are complete, and never log in or call."""
    context = ssl.create_default_context(cafile=target.ca) if target.ca else None
    for _ in hold(lambda: target.shake_hands(context), connections):
        pass


def attack_by_handshakes(target: Target, connections: int) -> None:
    """Handshakes (without TLS: connections) as fast as this process can, one after the other."""
    context = ssl.create_default_context(cafile=target.ca) if target.ca else None
    while True:
        with suppress(OSError):
            target.shake_hands(context).close()


def attack_by_calls(target: Target, connections: int) -> None:
    """Sends that are rejected, because nobody has logged in, as fast as this process can."""
    context = ssl.create_default_context(cafile=target.ca) if target.ca else None
    message = P.Message(topic="mine", key="", tags="", body=BODY)
    frame = encode_call(producer, "ProducerService", "sendSync", message=message, timeout=0)
    while True:
        with suppress(OSError), target.shake_hands(context) as connection:
            while True:
                connection.sendall(frame)
                if not connection.recv(65_536):
                    break


ATTACKS: dict[str, Callable[[Target, int], None]] = {
    "silent": attack_silently,
    "half-open": attack_half_open,
    "slow": attack_slowly,
    "no-login": attack_without_login,
    "handshakes": attack_by_handshakes,
    "calls": attack_by_calls,
}


@contextmanager
def attacking(kind: str, target: Target, connections: int) -> Iterator[None]:
    """An attack that is in full swing."""
    words = [kind, str(target.port), target.ca, str(connections)]
    with subprocess.Popen([sys.executable, "-m", "tests.crash.attack_run", "--attack", *words]) as process:
        try:
            yield
            assert process.poll() is None, f"the attacker {kind} has ended"
        finally:
            process.kill()


# --- the honest client, and what is seen of the server


class Seen(NamedTuple):
    """What was seen during one period. Times in ms; `errors`: what the client was told, or `/ready` said."""

    sends: int
    p50: float
    p99: float
    longest: float
    memory_bytes: int
    errors: Sequence[str]


class TlsTokenClient(TokenClient):
    """A client over TLS, or in plain text, that logs in."""

    def __init__(self, server: RealServer, ca: str, token: str) -> None:
        super().__init__("producer", server.ports["producer"])
        if ca:
            context = ssl.create_default_context(cafile=ca)
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        assert self.log_in(token).code == 0


def watch(server: RealServer, ca: str, token: str, seconds: float) -> Seen:
    """Send for so long, one message after the other, over two connections of which one is new each second."""
    durations: list[float] = []
    errors: list[str] = []
    memory = 0
    message = P.Message(topic="mine", key="", tags="", body=BODY)
    end, stop = time.monotonic() + seconds, threading.Event()
    probe = threading.Thread(target=ask_ready, args=(server, stop, errors))
    probe.start()
    try:
        while time.monotonic() < end:
            second = time.monotonic() + 1
            with TlsTokenClient(server, ca, token) as client:
                while time.monotonic() < min(second, end):
                    begin = time.perf_counter()
                    answer = client.call("sendSync", message=message, timeout=0)
                    durations.append((time.perf_counter() - begin) * 1_000)
                    if answer.code:
                        errors.append(f"a send: {answer.code} {answer.msg!r}")
            memory = max(memory, memory_bytes(server.pid))
    except (OSError, EOFError, AssertionError) as error:
        errors.append(f"the client: {type(error).__name__} {error}")
    finally:
        stop.set()
        probe.join()
    durations.sort()
    p50, p99 = (
        durations[math.floor(len(durations) * share)] if durations else math.inf for share in (0.5, 0.99)
    )
    return Seen(len(durations), p50, p99, max(durations, default=math.inf), memory, errors)


def ask_ready(server: RealServer, stop: threading.Event, errors: list[str]) -> None:
    """Ask `/ready` again and again."""
    while not stop.wait(0.5):
        try:
            status, text = server.request("GET", "/ready")
        except OSError as error:
            status, text = 0, str(error)
        if status != 200:
            errors.append(f"/ready: {status} {text}")


def memory_bytes(pid: int) -> int:
    """The resident memory of a process without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon")


def run(
    folder: Path,
    seconds: float,
    connections: int,
    tls: bool,
    attack: str,
    judge: bool,
    print_line: PrintLine,
) -> list[str]:
    """Attack a server in each way; return what was broken."""
    names = list(ATTACKS) if attack == ALL else [attack]
    raise_file_limit(connections + SPARE_FILES)
    conf = folder / "conf"
    sections = {"tls": {"certificate": "server.crt", "key": "server.key", "producer": "required"}}
    tokens = write_rights(conf, [CLIENTS], **(sections if tls else {}))
    write_certificates(conf)
    write_config(conf, topics={"topics": {"mine": {"queues": 1}}})
    ca = str(conf / "ca.crt") if tls else ""
    server = RealServer(folder, conf)
    broken = []
    try:
        server.start()
        token = tokens["honest"]
        first = 0
        for name in names:
            watch(server, ca, token, min(seconds, 3.0))  # until the attack before it is over
            calm = watch(server, ca, token, seconds)  # right before: the machine may be slower by the minute
            first = first or calm.memory_bytes
            print_line(describe("no attack", calm, calm))
            broken += [f"no attack: {error}" for error in calm.errors]
            with attacking(name, Target(server.ports["producer"], ca), connections):
                begun = watch(server, ca, token, min(seconds / 4, 5.0))  # until it is in full swing
                seen = watch(server, ca, token, seconds)
            print_line(describe(name, seen, calm))
            broken += [f"{name}: {error}" for error in dict.fromkeys([*begun.errors, *seen.errors])]
            if seen.memory_bytes - first > GROWTH_BYTES_MAX:
                broken.append(f"{name}: memory grew to {seen.memory_bytes >> 20} MiB")
            if judge and seen.p99 > RATIO_MAX * calm.p99:
                broken.append(f"{name}: p99 is {seen.p99 / calm.p99:.2f} x of that without an attack")
        after = watch(server, ca, token, seconds)
        print_line(describe("afterwards", after, calm))
    finally:
        server.end()
    for line in broken:
        print_line(f"BROKEN {line}")
    if broken:
        options = {"seconds": seconds, "connections": connections, "tls": tls, "attack": attack}
        print_line(f"again: {replay_command('attack_run', **options)}")
    return broken


def describe(name: str, seen: Seen, calm: Seen) -> str:
    """One line about a period."""
    return (
        f"{name}: {seen.sends} sends, p50 {seen.p50:.2f} ms, p99 {seen.p99:.2f} ms "
        f"({seen.p99 / calm.p99:.2f} x), longest {seen.longest:.0f} ms, {seen.memory_bytes >> 20} MiB, "
        f"{len(seen.errors)} errors"
    )


def raise_file_limit(count: int) -> None:
    """Allow this process, and those that it starts, at least so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= count, f"the limit of open files is {hard}; {count} are needed"
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))


def main() -> int:
    if sys.argv[1:2] == ["--attack"]:
        kind, port, ca, connections = sys.argv[2:]
        os.nice(5)  # the honest client is on the same processors
        ATTACKS[kind](Target(int(port), ca), int(connections))
    return long_run(
        __doc__,
        "attack",
        run,
        seconds=30.0,
        connections=10_000,
        tls=False,
        attack=(ALL, *ATTACKS),
        judge=False,
    )


if __name__ == "__main__":
    sys.exit(main())
