"""Servers of an earlier build are replaced one by one, under load.

The long run: `python -m tests.crash.kafka_upgrade --seed 1 --rounds 12 --brokers 3 --kills`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ddmq.trial.jars import java
from ddmq_common.errors import ConfigError
from tests.crash import kafka_upgrade


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
def test_three_servers_are_upgraded(tmp_path: Path) -> None:
    try:
        java()
    except ConfigError as error:
        pytest.skip(f"NO KAFKA IS TESTED: {error}")
    if not kafka_upgrade.has_earlier_build():
        pytest.skip(f"a shallow clone lacks the commit {kafka_upgrade.EARLIER}")
    printed: list[str] = []
    broken = kafka_upgrade.run(tmp_path, seed=3, rounds=4, brokers=1, print_line=printed.append)
    assert broken == [], "\n".join(printed)
