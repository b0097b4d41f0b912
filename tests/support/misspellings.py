"""Names with one wrong letter."""

from __future__ import annotations

from collections.abc import Iterator


def misspellings(name: str) -> Iterator[str]:
    """The name without one of its letters, with one doubled, and with one in upper case."""
    for at, letter in enumerate(name):
        yield name[:at] + name[at + 1 :]
        yield name[:at] + letter + name[at:]
        yield name[:at] + letter.swapcase() + name[at + 1 :]
