"""Text scenarios of the pull buffer: events, and what was decided on them, in a file (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from buffer_scenario import Scenario

from tests.support.text_scenarios import by_name, played

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text, by_name(Scenario())) == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_trace_changes_no_decision(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text, by_name(Scenario(traced=True))) == text
