"""People get tables, programs get JSON: every command prints through here.

`--json` prints one JSON document (or, for streams, one a line) on standard output and nothing else
there; whatever is meant for people's eyes (progress, hints) goes to standard error.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

BODY_SHOWN = 2_000  # characters of a text body that people are shown
BYTES_SHOWN = 24  # bytes of a binary one
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    9: "\\t", 10: "\\n", 13: "\\r"
}  # fmt: skip

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
        built.add_column(column.replace("_", " "), justify="right" if numeric else "left", overflow="fold")
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
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "–"
    return str(value)


def body_fields(body: bytes) -> dict[str, str]:
    """A body for programs, whole: `body`, or `body_base64` where it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}


def show_body(body: bytes) -> str:
    """A body for people: one line without control characters, cut when long; binary as its first bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        more = " …" if len(body) > BYTES_SHOWN else ""
        return f"({len(body):,} bytes, binary: {body[:BYTES_SHOWN].hex(' ')}{more})"
    shown = text[:BODY_SHOWN].translate(_ESCAPES)
    return shown if len(text) <= BODY_SHOWN else f"{shown}… ({len(body):,} bytes)"


def show_row_body(row: Mapping[str, Any]) -> str:
    """The same for a message as the admin API tells it."""
    if "body_base64" in row:
        return show_body(base64.b64decode(row["body_base64"]))
    return show_body(str(row.get("body", "")).encode())


def reason(error: BaseException) -> str:
    """What an error says, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def confirm(question: str) -> None:
    """Ask; without a yes nothing happens, and that is said. Exit code 1."""
    try:
        agreed = click.confirm(question)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.ClickException("not confirmed, nothing was deleted; --yes does not ask") from error
    if not agreed:
        raise click.ClickException("not confirmed, nothing was deleted")


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
