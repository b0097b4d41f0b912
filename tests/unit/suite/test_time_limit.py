"""A test over its time limit fails alone, wherever it waits; the next one runs in the same process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(CONFTEST.parents[1])}  # what it imports is there
STORY = """
import os, socket, threading
import gevent, gevent.event, pytest

pids = []

@pytest.mark.timeout(0.3)
def test_waits_for_an_event():
    pids.append(os.getpid())
    gevent.spawn(gevent.sleep, 60)
    gevent.event.Event().wait()

@pytest.mark.timeout(0.3)
def test_waits_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

@pytest.mark.timeout(0.3)
def test_waits_for_a_socket():
    ours, theirs = socket.socketpair()
    ours.recv(1)

@pytest.mark.timeout(0.3)
def test_works_while_greenlets_do():
    def busy():
        while True:
            gevent.sleep(0)
    other = gevent.spawn(busy)
    try:
        other.join()
    finally:
        other.kill()

def test_goes_on_in_the_same_process():
    assert pids == [os.getpid()]
"""


@pytest.mark.slow
def test_over_the_limit(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_story.py").write_text(STORY)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-rf"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert "4 failed, 1 passed" in run.stdout, run.stdout
    assert run.stdout.count("Failed: over its time limit of 0.3 s") >= 4
