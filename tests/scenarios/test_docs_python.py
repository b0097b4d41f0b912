"""Every Python block of README.md and docs/ is a whole program: it runs against a real server.

Other tests run those of the pages in PYTHON (tests/support/page_classes.py). Only the addresses are replaced.
A program that goes on until it is stopped is stopped as its user would: Enter where it asks for it, else
SIGTERM once it has begun.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddmq_client import Producer
from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.page_classes import PYTHON
from tests.support.pages import Block, blocks
from tests.support.waits import until

ENDLESS = re.compile(r"\.run\(|\binput\(")
GROUPS = {
    "billing": {"start": "first"},
    "invoices": {"start": "first", "tags": "created || paid"},
    "caches": {"model": "broadcasting"},
    "loader": {"start": "first"},
}
PROGRAMS = [block for block in blocks("python") if block.page not in PYTHON]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("docs")) as started:
        for topic in ("orders", "reminders"):
            started.admin("POST", "topics", topic, body={"queues": 4})
        for group, settings in GROUPS.items():
            started.admin("POST", "groups", group, "topics", "orders", body=settings)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_it_runs(block: Block, server: RealServer, tmp_path: Path) -> None:
    text = block.text
    for component, port in (("producer", 9613), ("consumer", 9713), ("admin", 9813)):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[component]}")
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        for number in range(12):  # more than a program takes that ends by itself
            producer.send("orders", f"order {number}", key=str(number), tags="created")
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", text],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if ENDLESS.search(text) and "input(" not in text:
            until(lambda: serves(server, program), "the program waits for messages")
            program.send_signal(signal.SIGTERM)
        _, errors = program.communicate("\n", timeout=PATIENCE_S)
    finally:
        program.kill()
    assert program.returncode == 0, errors
    assert "Traceback" not in errors


def serves(server: RealServer, program: subprocess.Popen[str]) -> bool:
    """Whether a client of its waits at the proxy, or it has ended."""
    return program.poll() is not None or any(each["waiters"] for each in server.admin("GET", "groups"))
