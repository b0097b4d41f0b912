"""Links between namespaces are cut and mended; and two rounds of that with real brokers.

The long run: `python -m tests.crash.kafka_partitions --seed 1 --rounds 100`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError
from tests.crash import kafka_partitions
from tests.crash.kafka.namespaces import Namespaces, why_not
from tests.support.waits import until

# Sends back what comes; and asks once for each line: "yes" when something came back, "no" when nothing did.
_ECHO = """import socket
connection, _ = socket.create_server(('', 7)).accept()
while data := connection.recv(9):
    connection.sendall(data)
"""
_CLIENT = """import socket, sys, time
end = time.monotonic() + 30
while True:
    try:
        connection = socket.create_connection((sys.argv[1], 7), 10)
        break
    except ConnectionRefusedError:
        assert time.monotonic() < end
connection.settimeout(1)
for line in sys.stdin:
    connection.sendall(b'?')
    try:
        print('yes' if connection.recv(9) else 'over', flush=True)
    except TimeoutError:
        print('no', flush=True)
"""


@pytest.fixture
def nodes() -> Iterator[Namespaces]:
    if reason := why_not():
        pytest.skip(f"NO PARTITION IS TESTED: {reason}")
    nodes = Namespaces(["one", "other"])
    yield nodes
    nodes.close()


def started(nodes: Namespaces, node: str, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [*nodes.before(node), sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


@pytest.mark.slow
@pytest.mark.parametrize("link", [("one", "other"), ("other", "one")])
def test_a_cut_link_stops_an_open_connection_in_either_direction(
    nodes: Namespaces, link: tuple[str, str]
) -> None:
    echo = started(nodes, "other", _ECHO)
    client = started(nodes, "one", _CLIENT, nodes.address("other"))
    try:
        assert client.stdin is not None
        assert client.stdout is not None

        def echoes() -> str:
            client.stdin.write("\n")
            return client.stdout.readline().strip()

        assert echoes() == "yes"
        nodes.disconnect([link])
        assert echoes() == "no"
        nodes.mend()
        until(lambda: echoes() == "yes", "TCP sends it again")
    finally:
        for process in (echo, client):
            process.kill()
            process.communicate()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
def test_two_rounds(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(f"NO PARTITION IS TESTED: {reason}")
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    printed: list[str] = []
    broken = kafka_partitions.run(tmp_path, seed=5, rounds=2, print_line=printed.append)
    assert broken == [], "\n".join(printed)
