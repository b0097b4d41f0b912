"""kill -9 while heads use up their deliveries: their keys stay parked, and nothing overtakes them."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from backend.records import QueueRef
from proxy_consumer.core.jobs import unpack_attempts
from tests.crash.failing_process import GROUP, PATIENCE_S, TOPIC, opened
from tests.crash.parking_process import DELIVERIES_MAX, KEYS, MESSAGES

REPOSITORY = Path(__file__).resolve().parents[2]
KILLS = 6
KILLS_MAX = 200  # until one of them has met some keys parked and others not


def deliveries(directory: Path, seconds: float | None) -> list[int]:
    """The messages that the process delivers until it is killed, after so many seconds or when all are
    parked."""
    command = [sys.executable, "-m", "tests.crash.parking_process", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    with process, contextlib.suppress(subprocess.TimeoutExpired):
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            process.wait(seconds)
        finally:
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().splitlines()
    assert seconds is not None or lines[-1] == "parked"
    return [int(line.split()[0]) for line in lines if line != "parked" and line.count(" ") == 1]


def used_up(directory: Path) -> set[int]:
    """The messages whose attempts are durably used up. Asserts that none is finished, or a dead letter."""
    log = opened(directory)
    try:
        assert log.topic(f"%DLQ%{GROUP}") is None
        info = log.topic(TOPIC)
        assert info is not None
        used = set()
        for queue in info.refs():
            (view,) = log.progress(GROUP, [QueueRef(*queue)]).wait(PATIENCE_S)
            assert (view.committed or 0, list(view.finished)) == (0, [])
            for offset, packed in view.attempts.items():
                fails, timeouts, _, _ = unpack_attempts(packed)
                assert fails + timeouts <= DELIVERIES_MAX
                if fails + timeouts == DELIVERIES_MAX:
                    used.add(2 * offset + queue.queue_id)
        return used
    finally:
        log.close()


@pytest.mark.slow
def test_parked_keys_stay_parked_whenever_the_process_dies(tmp_path: Path) -> None:
    seed = 20_261_128
    random = Random(seed)
    delivered: Counter[int] = Counter()
    parked: set[int] = set()
    kills = met = 0
    while kills < KILLS or not met:
        assert kills < KILLS_MAX, f"no kill met keys on their way, seed {seed}"
        heads = deliveries(tmp_path / "log", random.uniform(0.02, 0.1 + 0.03 * kills))
        assert not parked.intersection(heads), f"a parked head was delivered, seed {seed}"
        delivered.update(heads)
        now_parked = used_up(tmp_path / "log")
        assert parked <= now_parked
        met += 0 < len(now_parked) < KEYS
        parked, kills = now_parked, kills + 1
    heads = deliveries(tmp_path / "log", None)
    assert not parked.intersection(heads), f"a parked head was delivered, seed {seed}"
    delivered.update(heads)
    assert used_up(tmp_path / "log") == set(range(KEYS))
    assert set(delivered) == set(range(KEYS)), f"of {MESSAGES} only the heads were delivered, seed {seed}"
    assert all(DELIVERIES_MAX <= count <= DELIVERIES_MAX + kills for count in delivered.values())
