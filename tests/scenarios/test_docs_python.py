"""Every Python block of the pages for applications is a whole program: it runs against a real server.

Only the addresses are replaced. A program that goes on until it is stopped is stopped as its user would:
Enter where it asks for it, else SIGTERM once it has begun.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddmq_client import Producer
from tests.scenarios.real_server import PATIENCE_S, RealServer, running
from tests.support.waits import until

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (
    "client.md",
    "fetching.md",
    "delay.md",
    "filters.md",
    "order-keys.md",
    "operating-groups.md",
    "retries.md",
    "transactions.md",
    "replies.md",
    "opentelemetry.md",
    "dramatiq.md",
    "from-celery.md",
    "from-rocketmq.md",
)
ENDLESS = re.compile(r"\.run\(|\binput\(")
GROUPS = {
    "billing": {"start": "first"},
    "invoices": {"start": "first", "tags": "created || paid"},
    "caches": {"model": "broadcasting"},
    "loader": {"start": "first"},
}


def blocks() -> Iterator[Any]:
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 2
            yield pytest.param(found[1], id=f"{page}:{line}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    with running(tmp_path_factory.mktemp("docs")) as started:
        for topic in ("orders", "reminders"):
            started.admin("POST", "topics", topic, body={"queues": 4})
        for group, settings in GROUPS.items():
            started.admin("POST", "groups", group, "topics", "orders", body=settings)
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("block", list(blocks()))
def test_it_runs(block: str, server: RealServer, tmp_path: Path) -> None:
    for part, port in (("producer", 9613), ("consumer", 9713), ("admin", 9813)):
        block = block.replace(f"127.0.0.1:{port}", f"127.0.0.1:{server.ports[part]}")
    with Producer(f"127.0.0.1:{server.ports['producer']}") as producer:
        for number in range(12):  # more than a program takes that ends by itself
            producer.send("orders", f"order {number}", key=str(number), tags="created")
    program = subprocess.Popen(
        [sys.executable, "-u", "-c", block],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if ENDLESS.search(block) and "input(" not in block:
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
