"""A delay service killed again and again: each message once, none early, every cancel's answer true.

The long run: `python -m tests.crash.kill_delay --seed S --rounds 200`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.kill_delay import run


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    violations, kills = run(tmp_path, seed=11, rounds=20)
    assert not violations, violations[:20]
    assert kills["running"] >= 10
