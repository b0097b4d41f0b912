"""Stories as text: what is known of a message, and what is told of it, in a file (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from story_scenario import StoryScenario

FILES = sorted((Path(__file__).parent / "told").glob("*.txt"))


def played(text: str) -> str:
    """The file as it comes out: its lines, each `tell` followed by what is told."""
    scenario, lines = StoryScenario(), list[str]()
    for line in text.splitlines():
        if line.startswith(">"):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            name, *words = line.split()
            told = getattr(scenario, name)(*words)
            lines += [] if told is None else [f"> {told}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_story(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text) == text
