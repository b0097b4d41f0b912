"""docs/testing-handlers.md and the README: every block with a test is a whole test file, and passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import page_blocks
from tests.unit.testkit.test_plugin import run_pytest

PAGES = ("docs/testing-handlers.md", "README.md")


@pytest.mark.slow
def test_every_block_passes(tmp_path: Path) -> None:
    blocks = [block for page in PAGES for block in page_blocks(page, "python") if "def test_" in block.text]
    assert {block.text.count("def test_") for block in blocks} == {1}
    for number, block in enumerate(blocks[1:]):
        (tmp_path / f"test_block_{number}.py").write_text(block.text)
    report = run_pytest(tmp_path, blocks[0].text)
    assert f"{len(blocks)} passed" in report, report
