"""The demo's way to speak: steps as they happen, and facts that were counted."""

from __future__ import annotations

from collections.abc import Mapping

import click


def say(text: str) -> None:
    """A step of the story."""
    click.echo(f"[demo] {text}")


def tell(facts: Mapping[str, str]) -> None:
    """Tell what was counted, one fact a line."""
    for name, value in facts.items():
        click.echo(f"  {name:<14} {value}")
