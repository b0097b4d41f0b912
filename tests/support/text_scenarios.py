"""Scenarios as text: events, one a line, and after each, behind `>`, what came of it (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def played(text: str, play: Callable[[str], Iterable[str]]) -> str:
    """The file as it comes out: comments and empty lines as they are, each event followed by its outcome."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += play(line)
    return "\n".join(lines) + "\n"


def by_name(scenario: object) -> Callable[[str], Iterable[str]]:
    """Plays a line: its first word names a method of the scenario, the others are the arguments."""

    def play(line: str) -> Iterable[str]:
        name, *words = line.split()
        outcome = getattr(scenario, name.replace("-", "_"))(*words)
        return () if outcome is None else (f"> {outcome}",)

    return play
