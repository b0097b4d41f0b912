"""A short mixed run against real servers.

The long ones: `python -m tests.crash.mixed_run --seed 1`, and the same with --processes, and with --kafka 3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError
from tests.crash import mixed_run
from tests.crash.mixed.clients import Load


@pytest.mark.slow
def test_a_short_mixed_run(tmp_path: Path) -> None:
    printed: list[str] = []
    load = Load(1_000, 150, mixed_run.TOPICS, poison_share=0.01, stone_share=0.0)  # a stone takes 12 s to die
    broken = mixed_run.run(tmp_path, 4, load, seconds=4.0, print_line=printed.append)
    assert broken == 0, "\n".join(printed)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
def test_a_short_mixed_run_on_kafka(tmp_path: Path) -> None:
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    printed: list[str] = []
    load = Load(1_000, 150, mixed_run.TOPICS, poison_share=0.01, stone_share=0.0)
    broken = mixed_run.run(tmp_path, 4, load, seconds=10.0, print_line=printed.append, kafka=1)
    assert broken == 0, "\n".join(printed)
