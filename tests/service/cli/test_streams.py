"""Commands that run on: an interrupt ends them with 130 and no trace, a closed pipe with 0."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.scenarios.real_server import PATIENCE_S, RealServer, ddmq_command
from tests.service.cli.conftest import Shell


@contextmanager
def running_command(server: RealServer, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    addresses = {f"DDMQ_{component.upper()}": f"127.0.0.1:{port}" for component, port in server.ports.items()}
    process = subprocess.Popen(
        ddmq_command(*arguments),
        env=os.environ | addresses | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=_take_interrupts,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _take_interrupts() -> None:
    """Tests that run in the background were started with interrupts ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "line", ["tail {} --json", "pull {} --follow --json", "stats --watch --json --interval 0.1"]
)
def test_an_interrupt_ends_it(server: RealServer, shell: Shell, topic: str, line: str) -> None:
    shell("send", topic, "hello")
    with running_command(server, *line.format(topic).split()) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in error


@pytest.mark.parametrize("line", ["tail {}", "tail {} --json", "pull {} --follow", "pull {} --json"])
def test_a_closed_pipe_ends_it(server: RealServer, shell: Shell, topic: str, line: str) -> None:
    """`ddmq tail t | head -1`."""
    shell("send", topic, "hello", "--repeat", "3000")
    with running_command(server, *line.format(topic).split(), "--count", "1000") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"hello" in process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
    assert b"Traceback" not in error
    assert b"Broken" not in error


def test_what_pull_took_and_did_not_show_is_free_at_once(
    server: RealServer, shell: Shell, topic: str
) -> None:
    body = "hello" * 500  # a pipe does not hold a hundred of them
    shell("send", topic, body, "--repeat", "300", "--queue", "0")
    with running_command(server, "pull", topic, "--group", f"{topic}-cut", "--json") as process:
        assert process.stdout is not None
        assert b"hello" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
    shown = shell.lines("pull", topic, "--group", f"{topic}-cut")
    offsets = sorted(row["offset"] for row in shown)
    assert offsets == list(range(offsets[0], 300)), "nothing in between is kept until its ack timeout"
    assert offsets[0] < 100
    assert {row["attempt"] for row in shown} == {1}


@pytest.mark.parametrize("line", ["tail {}", "tail {} --json"])
def test_a_closed_pipe_ends_it_while_nothing_comes(
    server: RealServer, shell: Shell, topic: str, line: str
) -> None:
    shell("send", topic, "hello")
    with running_command(server, *line.format(topic).split()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"hello" in process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert b"Error" not in process.stderr.read()


def test_tail_sees_what_comes(server: RealServer, shell: Shell, topic: str) -> None:
    shell("send", topic, "before")
    with running_command(server, "tail", topic, "--count", "0") as process:
        assert process.stdout is not None
        output = b""
        for number in range(1_000):
            shell("send", topic, f"after {number}", "--queue", "0")
            if os.get_blocking(process.stdout.fileno()):
                os.set_blocking(process.stdout.fileno(), False)
            output += process.stdout.read() or b""
            if b"after" in output:
                break
        assert b"after" in output
        assert b"before" not in output


def test_stats_watch_shows_rates(server: RealServer, shell: Shell, topic: str) -> None:
    """Not on a terminal, the last view is printed when it ends."""
    shell("send", topic, "hello")
    shell("pull", topic, "--group", "watched", "--count", "1")
    with running_command(server, "stats", "--watch", "--interval", "0.1", "--json") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
    assert second["at_ms"] > first["at_ms"]
    assert topic in {row["topic"] for row in second["topics"]}
    assert "watched" in {cell["group"] for cell in second["counters"]["ddmq_acked_total"]}
