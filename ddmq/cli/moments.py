"""Moments on the command line: without a zone they are in local time."""

from __future__ import annotations

import time

import click

from ddmq.moments import ALLOWED, moment


def parse_moment(text: str, option: str, others: str = "") -> int:
    """Epoch milliseconds. `others` goes before what is allowed. Raises UsageError."""
    try:
        return moment(text, int(time.time() * 1000), local=True)
    except ValueError as error:
        raise click.UsageError(f"{option} {text!r}: allowed: {others}{ALLOWED}") from error


def parse_start(text: str, option: str = "--start") -> str:
    """`first`, `last`, or epoch milliseconds as text."""
    return text if text in ("first", "last") else str(parse_moment(text, option, "first, last, "))
