"""People get tables, programs get JSON: every command prints through here.

`--json` prints one JSON document (or, for streams, one a line) on standard output and nothing else
there; whatever is meant for people's eyes (progress, hints) goes to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table whose numeric cells are right-aligned."""
    rows = list(rows)
    built = Table(title=title or None, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        built.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        built.add_row(*(cell(value) for value in row))
    return built


def cell(value: Any) -> str:
    """How people read a value: thousands apart, absent as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """The table on standard output; plain and wide when that is not a terminal."""
    console = Console(soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console = Console(width=200)
    console.print(table(title, columns, rows))


def print_facts(facts: Mapping[str, Any]) -> None:
    """Name and value, one a line."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {cell(value)}")


def hint(text: str) -> None:
    """A line for people, on standard error."""
    click.echo(text, err=True)
