"""A machine without time zone data of its own: crons work, with the package's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_zones_are_available_without_the_machines_data() -> None:
    expression = "Cron.from_expression('0 9 * * 1-5', 'Asia/Shanghai').next_ms(0)"
    code = f"from ddmq_common.delays.cron import Cron; print({expression})"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONTZPATH": ""},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.stdout.strip() == str(1 * 3_600_000), ran.stderr  # Thursday, 9:00 in Shanghai
