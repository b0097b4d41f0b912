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
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ddmq_common.plain_text import json_plain, plain

BODY_SHOWN = 2_000  # characters of a text body, or of all properties, that people are shown
BYTES_SHOWN = 24  # bytes of a binary one
_NUMBER = re.compile(r"(≥ )?[\d,]+(\.\d+)?\+?\Z")
WIDE = 1_000  # columns where the output is not a terminal: room for every column and the longest names
ENDLESS = 1_000_000
GAP = 2  # between two columns of a table
PROSE = ("last error", "error", "body", "what", "why", "who", "found", "remedy", "repeats", "topics", "from")
PROSE_MIN = 24  # a column of prose is made no narrower than this
STATE_COLUMNS = ("state", "status", "severity")
LOUD_STYLE = "bold red"  # of a line or a name in capital letters, which says that something is wrong
STATE_STYLES = {  # by the beginning of a state, the first that fits
    "ok": "green", "ready": "green", "done": "green", "committed": "green", "fired": "green",
    "in flight": "cyan", "open": "cyan", "pending": "cyan",
    "retrying": "yellow", "parked": "yellow", "behind": "yellow", "warning": "yellow",
    "critical": LOUD_STYLE, "to the dead": "red",
    "dead": "red", "failed": "red", "NOT READY": "bold red", "damaged": "red", "does not run": "red",
}  # fmt: skip
UNBROKEN_MAX = 300  # of a name; the longest that a topic or a group may have is shorter

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    encoding = sys.stdout.encoding or "utf-8"
    text = json_plain(msgspec.json.encode(value).decode(), ascii_only=not encoding.lower().startswith("utf"))
    with _translate_write_errors():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def print_line(text: str, *, err: bool = False) -> None:
    """Print a line on standard output; with `err`, on standard error."""
    _write_line(plain(text), err=err)


def print_alert(text: str) -> None:
    """Print a line about something that is wrong; red on a terminal."""
    _write_line(_add_colour(plain(text), LOUD_STYLE))


def print_verdict(good: bool, text: str) -> None:
    """Print a line that begins with ✓ or ✗, green or red on a terminal."""
    mark = _add_colour("✓", "bold green") if good else _add_colour("✗", LOUD_STYLE)
    _write_line(f"{mark} {plain(text)}")


def _add_colour(text: str, style: str) -> str:
    words = style.split()
    return click.style(text, fg=words[-1], bold="bold" in words or None) if words else text


def hint(text: str) -> None:
    """Print a line for people on standard error."""
    print_line(text, err=True)


def print_notes(answer: Mapping[str, Any]) -> None:
    """Print the notes of the server's answer, if it has any, on standard error."""
    for text in answer.get("notes", ()):
        hint(f"note: {text}")


def print_message_line(
    position: str, facts: Mapping[str, Any], properties: Mapping[str, str], body: str
) -> None:
    """Print one message on one line: its position, its facts that are not empty, and its body."""
    details = "".join(f" {name}={value}" for name, value in facts.items() if value)
    text = join_properties(properties)
    details += f" properties={{{_truncate_text(text)}}}" if text else ""
    _write_line(click.style(plain(position), fg="cyan") + plain(f"{details}  {body}"))


def join_properties(properties: Mapping[str, str]) -> str:
    """Return the properties that the sender gave the message as text; the system's own property of a fired
    delay is left out."""
    own = {"from_chronos": "from_chronos"}  # the wire's, without its package, which doctor may find missing
    return ", ".join(f"{name}={value}" for name, value in properties.items() if own.get(name) != value)


def _truncate_text(text: str) -> str:
    return text if len(text) <= BODY_SHOWN else f"{text[:BODY_SHOWN]}…"


def _write_line(line: str, *, err: bool = False) -> None:
    with _translate_write_errors():
        click.echo(line, err=err, color=None if _can_colour() else False)


def _can_colour() -> bool:
    """Return whether a terminal shows colours: not with NO_COLOR, nor if it is dumb."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextmanager
def _translate_write_errors() -> Iterator[None]:
    """Raise ClickException if standard output cannot be written; a closed pipe stays BrokenPipeError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        close_stdout()
        raise click.ClickException(f"standard output cannot be written: {reason(error)}") from error


def close_stdout() -> None:
    """Drop unwritten output, so that the end of the process does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def pause(seconds: float) -> None:
    """Wait for so many seconds. Raises BrokenPipeError as soon as the reader of standard output has closed
    the pipe."""
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)  # of its end one is told without asking
    if watched.poll(seconds * 1000):
        raise BrokenPipeError


def console(*, err: bool = False, wide: bool = False) -> Console:
    """Return a rich console that prints names literally, never as markup. `wide`: if the output is no
    terminal, use a very wide line."""
    stream = sys.stderr if err else sys.stdout
    width = WIDE if wide and not stream.isatty() else None
    return Console(stderr=err, markup=False, emoji=False, highlight=False, width=width)


def show(renderable: Any, *, wide: bool = False) -> None:
    """Print a table or a view. A table wider than the terminal is not cut: the terminal folds its lines, so
    they can be copied whole."""
    screen = console(wide=wide)
    renderables = renderable.renderables if isinstance(renderable, Group) else [renderable]
    screen.width = max(
        screen.width, *(_measure_narrowest(item) for item in renderables if isinstance(item, Table)), 0
    )
    with _translate_write_errors():
        screen.print(renderable)
        sys.stdout.flush()


def _measure_narrowest(built: Table) -> int:
    """Return the smallest width at which the table breaks no name."""
    endless = Console(width=ENDLESS)
    return Measurement.get(endless, endless.options, built).minimum


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], spare: Sequence[str] = ()
) -> Table:
    """Build a table without lines, with right-aligned numbers.

    Names and numbers are never broken; prose is broken at its spaces. If the table is wider than the
    terminal, first its headings are broken into several lines; then up to `spare` columns are left out,
    beginning with those in which every row is empty or 0.
    """
    rows = list(rows)
    indexes = _columns_that_fit(columns, rows, spare)
    headings = _choose_headings([columns[at] for at in indexes], rows, indexes)
    built = Table(
        title=Text(plain(title), "bold") if title else None, title_justify="left", header_style="bold",
        box=None, pad_edge=False,
    )  # fmt: skip
    for heading, at in zip(headings, indexes, strict=True):
        prose = columns[at] in PROSE
        width = max(_measure_cells(rows, at, prose=prose), *map(len, heading.split("\n")))
        built.add_column(
            heading, justify="right" if _is_numeric(rows, at) else "left", overflow="fold",
            min_width=min(width, UNBROKEN_MAX), no_wrap=not prose and width <= UNBROKEN_MAX,
        )  # fmt: skip
    for row in rows:
        built.add_row(*(_styled_cell(columns[at], row[at]) for at in indexes))
    return built


def state_style(state: str) -> str:
    """Return the colour in which a state is printed; empty for a state without a colour."""
    return next((style for start, style in STATE_STYLES.items() if state.startswith(start)), "")


def _styled_cell(column: str, value: Any) -> Text:
    text = cell(value)
    return Text(text, state_style(text) if column in STATE_COLUMNS else "")


def _columns_that_fit(columns: Sequence[str], rows: list[Sequence[Any]], spare: Sequence[str]) -> list[int]:
    """Return the indexes of the columns that fit into the terminal; the `spare` columns are left out
    first."""
    indexes = list(range(len(columns)))
    idle = [name for name in spare if _is_idle(rows, columns.index(name))]
    for name in dict.fromkeys([*idle, *spare]):
        stacked = _stack_headings([columns[at].replace("_", " ") for at in indexes])
        widths = [
            max(_measure_cells(rows, at, prose=columns[at] in PROSE), *map(len, heading.split("\n")))
            for heading, at in zip(stacked, indexes, strict=True)
        ]
        if sum(widths) + GAP * (len(widths) - 1) <= line_width():
            break
        indexes.remove(columns.index(name))
    return indexes


def _is_idle(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Return whether a column is empty or 0 in every row."""
    return all(cell(row[index]) in ("–", "0", "0.0") for row in rows)


def _choose_headings(
    columns: Sequence[str], rows: list[Sequence[Any]], indexes: Sequence[int]
) -> Sequence[str]:
    headings = [column.replace("_", " ") for column in columns]
    widths = [_measure_cells(rows, at) for at in indexes]
    total_width = sum(max(len(name), width) + GAP for name, width in zip(headings, widths, strict=True))
    return _stack_headings(headings) if total_width > line_width() else headings


def _stack_headings(headings: Sequence[str]) -> list[str]:
    """Return headings with one word per line, aligned at the bottom."""
    split = [name.replace(" ", "\n").replace("/", "\n/").split("\n") for name in headings]
    lines = max(map(len, split), default=1)
    return ["\n".join([*[""] * (lines - len(words)), *words]) for words in split]


def _measure_cells(rows: Sequence[Sequence[Any]], index: int, *, prose: bool = False) -> int:
    """Return the width that a column needs; for `prose`, whose cells may be folded at spaces, the smallest
    width."""
    cells = [cell(row[index]) for row in rows]
    if not prose:
        return max(map(len, cells), default=1)
    words = max((len(word) for text in cells for word in text.split(" ")), default=1)
    return max(words, min(PROSE_MIN, max(map(len, cells), default=1)))


def _is_numeric(rows: Sequence[Sequence[Any]], index: int) -> bool:
    """Return whether all cells of a column are numbers, including texts such as `14+` or `≥ 3`."""
    texts = [cell(row[index]) for row in rows if row[index] is not None]
    return bool(texts) and all(_NUMBER.match(text) for text in texts)


def line_width() -> int:
    """Return how many characters an output line may have: the terminal's width; very many if there is no
    terminal."""
    return console(wide=True).width


def cell(value: Any) -> str:
    """Format a value for people: thousands are separated, and an absent value is a dash."""
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


def count_queues(count: int) -> str:
    """Return a number of queues in words: 1 queue, 8 queues."""
    return "1 queue" if count == 1 else f"{count} queues"


def show_body(body: bytes, size: int | None = None) -> str:
    """Format a body for people as one line without control characters, cut if it is long; of a binary body
    show the first bytes. `size`: the size of the whole body if `body` is only its beginning."""
    size = len(body) if size is None else size
    try:
        text = body.decode()
    except UnicodeDecodeError:
        more = " …" if len(body) > BYTES_SHOWN else ""
        return f"({size:,} bytes, binary: {body[:BYTES_SHOWN].hex(' ')}{more})"
    line = plain(text[:BODY_SHOWN])
    is_complete = len(text) <= BODY_SHOWN and size == len(body)
    return line if is_complete else f"{line}… ({size:,} bytes)"


def show_row_body(row: Mapping[str, Any]) -> str:
    """Format the body of a message from a row of the admin API."""
    size = row.get("body_bytes")
    if "body_base64" in row:
        return show_body(base64.b64decode(row["body_base64"]), size)
    return show_body(str(row.get("body", "")).encode(), size)


def reason(error: BaseException) -> str:
    """Return the text of an OSError without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def confirm(question: str) -> None:
    """Ask the question. Unless the answer is yes, raise ClickException with the text that nothing was
    done."""
    try:
        agreed = click.confirm(plain(question), err=True)
    except click.Abort as error:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.ClickException("not confirmed, nothing was done; --yes does not ask") from error
    if not agreed:
        raise click.ClickException("not confirmed, nothing was done")


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], spare: Sequence[str] = ()
) -> None:
    """Print a table; plain and wide if standard output is not a terminal."""
    built = table(title, columns, rows, spare)
    show(built, wide=True)
    missing = len(columns) - len(built.columns)
    if missing:
        count_text = "1 column has" if missing == 1 else f"{missing} columns have"
        hint(f"{count_text} no room here: a wider terminal shows all, and so does --json")


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one per line."""
    width = max((len(plain(name)) for name in facts), default=0)
    for name, value in facts.items():
        text = cell(value)
        style = LOUD_STYLE if name.isupper() else state_style(text) if name in STATE_COLUMNS else ""
        _write_line(f"{plain(name):<{width}}  " + _add_colour(text, style))
