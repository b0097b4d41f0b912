"""docs/testing-handlers.md: every Python block is a whole test file, and passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.testkit.test_plugin import run_pytest

PAGE = Path(__file__).parents[3] / "docs" / "testing-handlers.md"


@pytest.mark.slow
def test_every_block_passes(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for number, block in enumerate(blocks[1:]):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    report = run_pytest(tmp_path, blocks[0])
    assert f"{len(blocks)} passed" in report, report
