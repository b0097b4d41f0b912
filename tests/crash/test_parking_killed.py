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
BATCHES_MAX = 2  # in one life of the process
LATE_S = 0.02  # a kill comes at most so long after the process was told to fail its last batch
KILLS_MAX = 200  # more than a process needs that fails at least one batch in every second life


def killed_while_failing(directory: Path, batches: int, late_s: float) -> list[int]:
    """The messages that a process delivers which is killed so long after the start of its last batch."""
    with parking_process(directory) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        lines = []
        for _ in range(batches):
            for line in iter(process.stdout.readline, "next\n"):
                assert line, "the process ended by itself"
                lines.append(line)
            process.stdin.write("\n")
            process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(late_s)
        process.send_signal(signal.SIGKILL)
        return delivered_in(lines + process.stdout.readlines())


def fail_until_parked(directory: Path) -> list[int]:
    """The messages that a process delivers until all keys are parked."""
    with parking_process(directory) as process:
        output, _ = process.communicate()
        assert output.endswith("parked\n")
        return delivered_in(output.splitlines())


def parking_process(directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.parking_process", str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)


def delivered_in(lines: list[str]) -> list[int]:
    return [int(line.split()[0]) for line in lines if line.count(" ") == 1]


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
    while len(parked) < KEYS:
        assert kills < KILLS_MAX, f"{sorted(parked)} are parked after {kills} kills, seed {seed}"
        heads = killed_while_failing(
            tmp_path / "log", random.randint(1, BATCHES_MAX), random.uniform(0, LATE_S)
        )
        assert not parked.intersection(heads), f"a parked head was delivered, seed {seed}"
        delivered.update(heads)
        now_parked = used_up(tmp_path / "log")
        assert parked <= now_parked
        met += 0 < len(now_parked) < KEYS
        parked, kills = now_parked, kills + 1
    assert met, f"no kill met keys on their way, seed {seed}"
    heads = fail_until_parked(tmp_path / "log")
    assert not parked.intersection(heads), f"a parked head was delivered, seed {seed}"
    delivered.update(heads)
    assert used_up(tmp_path / "log") == set(range(KEYS))
    assert set(delivered) == set(range(KEYS)), f"of {MESSAGES} only the heads were delivered, seed {seed}"
    assert all(DELIVERIES_MAX <= count <= DELIVERIES_MAX + kills for count in delivered.values())
