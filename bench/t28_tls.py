"""T28: what TLS costs: T1's sends of 1 KiB over TLS and in plain text, and an echo server beside both.

The server's port has TLS mode `optional`, so both kinds of clients use the same process in turn. The floor of
each series with TLS is the same series without it. The main figure is the server's processor time of a call.
The echo server, over the same ssl module, shows what TLS costs where nothing else is done. "A connection for
each call": handshake, one call, end. The attackers have another address: "silent", so many connections that
never make a call, each replaced when the server closes it; "handshakes", connections that do a handshake and
end, as fast as the clients' core allows. Their p99 beside the p99 without them is the figure; nothing is
asserted.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from bench import frames, load
from bench.harness import ARGUMENTS, CLIENT_CORE, Series, pin, run, sized
from bench.servers import Running, ddmq, start
from tests.support.certificates import write_certificates

CONNECTIONS = 64
CALLS = sized(60_000, 1_000)
RECONNECTS = sized(2_000, 50)
ATTACKED_CALLS = sized(20_000, 500)
HONEST = 4  # connections of the honest client
SILENT = 10_000
ATTACKER = "127.0.0.2"
ATTACK = "--attack"
ATTACK_S = sized(5.0, 1.0)
NO_ATTACK = "an honest client, no attack"
BODY = 1024
MODE = "tls: {certificate: server.crt, key: server.key, producer: optional}"


def measure_sends(
    server: Running, tls: ssl.SSLContext | None, calls: int = CALLS, count: int = CONNECTIONS
) -> dict[str, float]:
    """One round of T1; raises when an answer is not code 0."""
    requests = [frames.send_sync(b"bench", b"key-%d" % index, bytes(BODY), index) for index in range(count)]
    connections = load.connect(server.addresses["producer"], count, tls)
    return cpu_first(load.driven(connections, load.answered_ok(requests, calls), calls, server.cpu_us))


def measure_echo(server: Running, tls: ssl.SSLContext | None) -> dict[str, float]:
    """One round of frames of the same size that come back."""
    requests = [BODY.to_bytes(4, "big") + bytes(BODY)] * CONNECTIONS
    connections = load.connect(server.addresses["echo"], CONNECTIONS, tls)
    calls = load.answered_ok(requests, CALLS, lambda reply: len(reply) == BODY)
    return cpu_first(load.driven(connections, calls, CALLS, server.cpu_us))


def measure_reconnects(server: Running, tls: ssl.SSLContext | None) -> dict[str, float]:
    """One call for each connection, one after the other."""
    request = frames.send_sync(b"bench", b"key", bytes(BODY), 1)

    def act() -> int:
        for _ in range(RECONNECTS):
            (connection,) = load.connect(server.addresses["producer"], 1, tls)
            load.closed_loop([connection], load.answered_ok([request], 1))
            connection.close()
        return RECONNECTS

    return {"cpu_us": server.cpu_us(act)}


def attack(kind: str, host: str, port: int, ca: str) -> None:
    """Attack the server until this process is killed."""
    tls = ssl.create_default_context(cafile=ca)
    silent: deque[socket.socket] = deque()
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=2, source_address=(ATTACKER, 0))
            if kind == "handshakes":
                with tls.wrap_socket(connection, server_hostname="localhost"):
                    continue
            connection.sendall(b"\x16\x03\x01\x02\x00")
            silent.append(connection)
        except OSError:
            time.sleep(0.01)
        if len(silent) > SILENT:
            silent.popleft().close()


@contextmanager
def attacked(server: Running, kind: str, ca: Path) -> Iterator[None]:
    host, port = server.addresses["producer"]
    command = [sys.executable, "-m", "bench.t28_tls", ATTACK, kind, host, str(port), str(ca)]
    with subprocess.Popen(command) as process:
        try:
            time.sleep(ATTACK_S)  # until it is in full swing
            yield
        finally:
            process.kill()


def measure_attacked(server: Running, tls: ssl.SSLContext, kind: str, ca: Path) -> dict[str, float]:
    """The sends of an honest client beside an attack; `memory_mib`: what the server holds meanwhile."""
    with attacked(server, kind, ca) if kind else nullcontext():
        figures = measure_sends(server, tls, ATTACKED_CALLS, HONEST)
        with urlopen(f"http://127.0.0.1:{server.addresses['admin'][1]}/ready", timeout=10) as ready:
            assert ready.status == 200
        return {"p99_ms": figures["p99_ms"], "memory_mib": server.anonymous_bytes() / (1 << 20), **figures}


def cpu_first(figures: dict[str, float]) -> dict[str, float]:
    return {"cpu_us": figures["cpu_us"], **figures}


def main() -> None:
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        folder = write_certificates(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        (folder / "security.yaml").write_text(MODE)
        tls = ssl.create_default_context(cafile=folder / "ca.crt")
        server = stack.enter_context(ddmq(config=folder))
        echo = stack.enter_context(start(["bench.echo_server"]))
        pair = [str(folder / "server.crt"), str(folder / "server.key")]
        echo_tls = stack.enter_context(start(["bench.echo_server", "--tls", *pair]))
        measure_sends(server, None, sized(2_000, 200))
        every = []
        for name, measure, plain, secure, reach in (
            ("sendSync", measure_sends, server, server, "cpu_us ≤ 1.4 × plain"),
            ("echo", measure_echo, echo, echo_tls, ""),
            ("a connection for each call", measure_reconnects, server, server, ""),
        ):
            every.append(Series(f"{name}, plain", partial(measure, plain, None)))
            every.append(Series(f"{name}, TLS 1.3", partial(measure, secure, tls), f"{name}, plain", reach))
        for kind in ("", "silent", "handshakes"):
            name = f"an honest client, {kind or 'no'} attack"
            measure_kind = partial(measure_attacked, server, tls, kind, folder / "ca.crt")
            floor, reach = (NO_ATTACK, "p99 ≤ 1.5 × without the attack") if kind else (None, "")
            every.append(Series(name, measure_kind, floor, reach))
        run("t28_tls", __doc__ or "", every, connections=CONNECTIONS, calls=CALLS)


if __name__ == "__main__":
    if ARGUMENTS[:1] == [ATTACK]:
        attack(ARGUMENTS[1], ARGUMENTS[2], int(ARGUMENTS[3]), ARGUMENTS[4])
    else:
        main()
