"""People get tables, programs get JSON: every command prints through here.

`--json` prints one JSON document (or, for streams, one a line) on standard output and nothing else
there; whatever is meant for people's eyes (progress, hints) goes to standard error. What others wrote into
keys, bodies, names and errors is text here and nothing else (ddmq_common/plain_text.py): no markup, no escape
sequence, no line of its own; so commands print with these functions alone.
"""

from __future__ import annotations

import base64
import os
import re
import select
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddmq_common.plain_text import json_plain, plain

BODY_SHOWN = 2_000  # characters of a text body, or of all properties, that people are shown
BYTES_SHOWN = 24  # bytes of a binary one
_NUMBER = re.compile(r"(≥ )?[\d,]+(\.\d+)?\+?\Z")
WIDE = 200  # columns where the output is no terminal

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    encoding = sys.stdout.encoding or "utf-8"
    text = json_plain(msgspec.json.encode(value).decode(), ascii_only=not encoding.lower().startswith("utf"))
    with _writing():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def say(text: str, *, err: bool = False) -> None:
    """A line on standard output; `err`: on standard error."""
    _echo(plain(text), err=err)


def hint(text: str) -> None:
    """A line for people, on standard error."""
    say(text, err=True)


def say_message(place: str, facts: Mapping[str, Any], properties: Mapping[str, str], body: str) -> None:
    """Print one message on one line: where it is, what is known of it (not empty), its body."""
    known = "".join(f" {name}={value}" for name, value in facts.items() if value)
    known += f" properties={{{_cut(', '.join(map('='.join, properties.items())))}}}" if properties else ""
    _echo(click.style(plain(place), fg="cyan") + plain(f"{known}  {body}"))


def _cut(text: str) -> str:
    return text if len(text) <= BODY_SHOWN else f"{text[:BODY_SHOWN]}…"


def _echo(line: str, *, err: bool = False) -> None:
    with _writing():
        click.echo(line, err=err, color=None if _coloured() else False)


def _coloured() -> bool:
    """Whether a terminal may be sent colours."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _writing() -> Iterator[None]:
    """Raises ClickException when standard output takes no more; a closed pipe is as its reader wants it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise click.ClickException(f"standard output cannot be written: {reason(error)}") from error


def close_stdout() -> None:
    """Drop what is still to be written there, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def pause(seconds: float) -> None:
    """Wait while nothing is to be said. Raises BrokenPipeError once nobody reads standard output any more."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)  # of its end one is told without asking
    if watched.poll(seconds * 1000):
        raise BrokenPipeError


def console(*, err: bool = False, wide: bool = False) -> Console:
    """Return the console that rich prints on, to which names are never markup. `wide`: it is, where that
    is no terminal."""
    stream = sys.stderr if err else sys.stdout
    width = WIDE if wide and not stream.isatty() else None
    return Console(stderr=err, markup=False, emoji=False, highlight=False, width=width)


def show(renderable: Any, *, wide: bool = False) -> None:
    """A table or a view on standard output."""
    with _writing():
        console(wide=wide).print(renderable)
        sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], whole: str = "") -> Table:
    """A table without lines, its numbers right-aligned and never wrapped, as the column `whole`.

    Where it does not fit the terminal, its headings take several lines before a cell does.
    """
    rows = list(rows)
    built = Table(
        title=Text(plain(title), "bold") if title else None, title_justify="left", header_style="bold",
        box=None, pad_edge=False,
    )  # fmt: skip
    named = [column.replace("_", " ") for column in columns]
    widths = [_width(rows, index) for index in range(len(columns))]
    if sum(max(len(name), width) + 2 for name, width in zip(named, widths, strict=True)) > _room():
        named = _stacked(named)
    for index, column in enumerate(columns):
        numeric = _numeric(rows, index)
        unbroken = max(widths[index], *map(len, named[index].split("\n"))) if numeric else widths[index]
        built.add_column(
            named[index], justify="right" if numeric else "left", overflow="fold",
            min_width=unbroken if numeric or column == whole else None, no_wrap=column == whole,
        )  # fmt: skip
    for row in rows:
        built.add_row(*(Text(cell(value)) for value in row))
    return built


def _stacked(named: Sequence[str]) -> list[str]:
    """Headings one word a line, all with their last line at the bottom."""
    split = [name.replace(" ", "\n").replace("/", "\n/").split("\n") for name in named]
    lines = max(map(len, split), default=1)
    return ["\n".join([*[""] * (lines - len(words)), *words]) for words in split]


def _width(rows: Sequence[Sequence[Any]], index: int) -> int:
    return max((len(cell(row[index])) for row in rows), default=1)


def _numeric(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Whether numbers stand there, also ones with a word such as 14+ or ≥ 3."""
    known = [cell(row[index]) for row in rows if row[index] is not None]
    return bool(known) and all(_NUMBER.match(text) for text in known)


def _room() -> int:
    return console(wide=True).width


def cell(value: Any) -> str:
    """Format a value for people: thousands apart, absent as a dash."""
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
    return plain(str(value))


def show_body(body: bytes, size: int | None = None) -> str:
    """A body for people: one line without control characters, cut when long; binary as its first bytes.

    `size`: of the whole where `body` is its beginning.
    """
    size = len(body) if size is None else size
    try:
        text = body.decode()
    except UnicodeDecodeError:
        more = " …" if len(body) > BYTES_SHOWN else ""
        return f"({size:,} bytes, binary: {body[:BYTES_SHOWN].hex(' ')}{more})"
    shown = plain(text[:BODY_SHOWN])
    whole = len(text) <= BODY_SHOWN and size == len(body)
    return shown if whole else f"{shown}… ({size:,} bytes)"


def show_row_body(row: Mapping[str, Any]) -> str:
    """Print the body of a message as the admin API tells it."""
    size = row.get("body_bytes")
    if "body_base64" in row:
        return show_body(base64.b64decode(row["body_base64"]), size)
    return show_body(str(row.get("body", "")).encode(), size)


def reason(error: BaseException) -> str:
    """Return what an error says, without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def confirm(question: str) -> None:
    """Ask; without a yes nothing happens, and that is said. Exit code 1."""
    try:
        agreed = click.confirm(plain(question), err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.ClickException("not confirmed, nothing was done; --yes does not ask") from error
    if not agreed:
        raise click.ClickException("not confirmed, nothing was done")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], whole: str = "") -> None:
    """The table on standard output; plain and wide when that is not a terminal."""
    show(table(title, columns, rows, whole), wide=True)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Name and value, one a line."""
    width = max((len(plain(name)) for name in facts), default=0)
    for name, value in facts.items():
        say(f"{plain(name):<{width}}  {cell(value)}")
