"""The console's pure modules under node's own test runner, where node is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_pure_modules_behave_as_their_tests_say():
    command = ["node", "--test", str(FOLDER / "pure.test.mjs")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
