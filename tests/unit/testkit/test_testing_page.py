"""Python blocks of docs/testing-handlers.md, and that of README.md with a test, are test files that pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import page_blocks
from tests.unit.testkit.test_plugin import run_pytest


@pytest.mark.slow
def test_every_block_passes(tmp_path: Path) -> None:
    blocks = page_blocks("docs/testing-handlers.md", "python")
    blocks += [block for block in page_blocks("README.md", "python") if "def test_" in block.text]
    for number, block in enumerate(blocks[1:]):
        (tmp_path / f"test_block_{number}.py").write_text(block.text)
    report = run_pytest(tmp_path, blocks[0].text)
    assert f"{len(blocks)} passed" in report, report
