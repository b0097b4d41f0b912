"""The pytest plugin, as an application's tests meet it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import sys

def test_nothing_is_loaded_before_it_is_asked_for():
    assert "ddmq_client.testing.broker" not in sys.modules

def test_a_broker(ddmq_broker):
    seen = []
    ddmq_broker.consumer("billing", "orders", seen.append)
    ddmq_broker.producer().send("orders", b"one")
    ddmq_broker.run_until_idle()
    assert len(seen) == 1

def test_another_broker(ddmq_broker):
    ddmq_broker.create_topic("orders")
    assert ddmq_broker.messages("orders") == []
"""
SERVER = """
from ddmq_client import Producer

def test_a_server(ddmq_server):
    with Producer(ddmq_server.producers) as producer:
        assert producer.send("orders", b"one").offset == 0

def test_the_same_server(ddmq_server):
    with Producer(ddmq_server.producers) as producer:
        assert producer.send("orders", b"two", queue=0).stored
    assert ddmq_server.consumers and ddmq_server.admin
"""
NO_SERVER = """
import importlib.util
import ddmq_client.testing.server as server
server.find_spec = lambda name: None
"""


def run_pytest(folder: Path, text: str, conftest: str = "") -> str:
    """Run the tests of this text in a process of its own, with the plugin; return its report."""
    (folder / "test_application.py").write_text(text)
    (folder / "conftest.py").write_text(conftest)
    command = [sys.executable, "-m", "pytest", "-p", "ddmq_client.testing.plugin", "-rs", str(folder)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(
        [*command, "--rootdir", str(folder), "-c", os.devnull],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    return ended.stdout + ended.stderr


@pytest.mark.slow
def test_each_test_has_a_broker_of_its_own(tmp_path: Path) -> None:
    assert "3 passed" in run_pytest(tmp_path, TESTS)


@pytest.mark.slow
def test_all_tests_share_one_real_server(tmp_path: Path) -> None:
    assert "2 passed" in run_pytest(tmp_path, SERVER)


@pytest.mark.slow
def test_without_the_server_its_tests_are_skipped_and_say_why(tmp_path: Path) -> None:
    report = run_pytest(tmp_path, SERVER, NO_SERVER)
    assert "2 skipped" in report
    assert "the server's distribution is not installed: there is no module `ddmq`" in report
