"""Small elements of HTML. Every text that goes in is escaped here, so no name of a topic can become a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

OTHERS_MAX = 300  # rows of one list: a page is for reading


class Cell(NamedTuple):
    """A table cell with a CSS class: number, good or bad."""

    text: str
    kind: str = ""


def number_cell(text: str) -> Cell:
    return Cell(text, "number")


def mark_cell(good: bool, yes: str, no: str) -> Cell:
    """Return a cell that shows whether something is good by a sign, a word and a colour, each of which is
    sufficient alone."""
    return Cell(f"✓ {yes}", "good") if good else Cell(f"✗ {no}", "bad")


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Return an HTML table. A column is right-aligned if its first cell is a number."""
    cells = [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
    first = cells[0] if cells else [Cell("")] * len(columns)
    head = "".join(_build_tag("th", name, cell.kind) for name, cell in zip(columns, first, strict=True))
    body = "".join("<tr>" + "".join(_build_tag("td", *cell) for cell in row) + "</tr>" for row in cells)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def first_rows_table(columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], shown: int) -> str:
    """Return a table of the first `shown` rows. Up to OTHERS_MAX more rows open on a click."""
    top = build_table(columns, rows[:shown])
    if len(rows) <= shown:
        return top
    return top + fold_others(len(rows) - shown, build_table(columns, rows[shown : shown + OTHERS_MAX]))


def fold_others(count: int, inside: str) -> str:
    """Return the HTML of a line such as `… and 9 more` that opens `inside` (HTML) on a click."""
    summary = f"… and {count:,} more" + (f", {OTHERS_MAX} of them here" if count > OTHERS_MAX else "")
    return f"<details><summary>{summary}</summary>{inside}</details>"


def _build_tag(name: str, text: str, kind: str = "") -> str:
    kind = "number" if name == "th" and kind == "number" else kind if name == "td" else ""
    class_attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{class_attribute}>{escape(text)}</{name}>"


def paragraph(text: str, kind: str = "") -> str:
    class_attribute = f' class="{kind}"' if kind else ""
    return f"<p{class_attribute}>{escape(text)}</p>"


def render_section(name: str, title: str, *blocks: str, wide: bool = False) -> str:
    """Return a card with an anchor. `blocks` are HTML."""
    kind = ' class="wide"' if wide else ""
    return f'<section id="{name}"{kind}><h2>{escape(title)}</h2>{"".join(blocks)}</section>'


def chart(name: str) -> str:
    """Return the HTML element into which a figure is drawn."""
    return f'<div class="chart" id="{name}"></div>'


def build_placeholder(text: str) -> str:
    """Return the HTML text that replaces an empty chart."""
    return f'<div class="empty">{escape(text)}</div>'
