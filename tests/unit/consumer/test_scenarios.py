"""Text scenarios of the pull buffer: events, and what was decided on them, in a file (docs/testing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from buffer_scenario import Scenario

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def played(text: str, *, traced: bool = False) -> str:
    """The file as it comes out: its commands, each followed by what was decided."""
    scenario, lines = Scenario(traced=traced), list[str]()
    for line in text.splitlines():
        if line.startswith(">"):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            name, *words = line.split()
            told = getattr(scenario, name.replace("-", "_"))(*words)
            lines += [] if told is None else [f"> {told}"]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text) == text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_trace_changes_no_decision(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert played(text, traced=True) == text
