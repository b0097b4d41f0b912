"""Stories as text: what is known of a message, and what is told of it, in a file (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from story_scenario import StoryScenario

from tests.support.text_scenarios import by_name, played

FILES = sorted((Path(__file__).parent / "told").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_story(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text, by_name(StoryScenario())) == text
