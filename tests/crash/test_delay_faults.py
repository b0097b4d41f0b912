"""A delay service whose storage fails: each message once, none early, every cancel's answer true (R2).

The long run: `python -m tests.crash.fault_delay --seed S --rounds 200`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.fault_delay import run


@pytest.mark.slow
def test_twelve_faults(tmp_path: Path) -> None:
    violations, met = run(tmp_path, seed=5, rounds=12)
    assert not violations, violations[:20]
    assert sum(count for what, count in met.items() if "nothing" not in what) >= 6, met
