"""The house by one real message each: no route passes more files than it did (tools/walk.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_no_route_has_grown() -> None:
    walk = subprocess.run(
        [sys.executable, "tools/walk.py", "--files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert walk.returncode == 0, walk.stdout + walk.stderr
    assert walk.stdout.count("(at most") == 7
