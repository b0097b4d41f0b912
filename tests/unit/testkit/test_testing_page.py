"""docs/testing-handlers.md and the README: every block with a test is a whole test file, and passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.testkit.test_plugin import run_pytest

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "docs" / "testing-handlers.md", ROOT / "README.md")


@pytest.mark.slow
def test_every_block_passes(tmp_path: Path) -> None:
    texts = (page.read_text(encoding="utf-8") for page in PAGES)
    found = [block for text in texts for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)]
    blocks = [block for block in found if "\ndef test_" in block]
    assert {block.count("\ndef test_") for block in blocks} == {1}
    for number, block in enumerate(blocks[1:]):
        (tmp_path / f"test_block_{number}.py").write_text(block)
    report = run_pytest(tmp_path, blocks[0])
    assert f"{len(blocks)} passed" in report, report
