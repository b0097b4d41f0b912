"""Small elements of HTML. Every text that goes in is escaped here, so no name of a topic can become a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

SIGNS = {"critical": "✗", "warning": "▲", "info": "·"}
OTHERS_MAX = 300  # rows of one list: a page is for reading


class Cell(NamedTuple):
    """A table cell with a CSS class: number, good or bad. `href`: where its text leads."""

    text: str
    kind: str = ""
    href: str = ""


def number_cell(text: str) -> Cell:
    return Cell(text, "number")


def mark_cell(good: bool, yes: str, no: str) -> Cell:
    """Return a cell that shows whether something is good by a sign, a word and a colour, each of which is
    sufficient alone."""
    return Cell(f"✓ {yes}", "good") if good else Cell(f"✗ {no}", "bad")


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Return an HTML table. A column is right-aligned if its first cell is a number.

    On narrow screens, page.css makes a card of each row, in which each cell has its column's name before it.
    """
    cells = [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
    first = cells[0] if cells else [Cell("")] * len(columns)
    head = "".join(_build_head_cell(name, cell.kind) for name, cell in zip(columns, first, strict=True))
    body = "".join(
        "<tr>" + "".join(_build_cell(*pair) for pair in zip(columns, row, strict=True)) + "</tr>"
        for row in cells
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll" tabindex="0">{table}</div>'  # so that the arrow keys can scroll it


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


def _build_head_cell(name: str, kind: str) -> str:
    class_attribute = ' class="number"' if kind == "number" else ""
    return f'<th scope="col"{class_attribute}>{escape(name)}</th>' if name else f"<td{class_attribute}></td>"


def _build_cell(column: str, cell: Cell) -> str:
    class_attribute = f' class="{cell.kind}"' if cell.kind else ""
    text = build_link(cell.text, cell.href) if cell.href else escape(cell.text)
    return f'<td{class_attribute} data-head="{escape(column)}"><div>{text}</div></td>'


def build_link(text: str, address: str) -> str:
    return f'<a href="{escape(address)}" rel="noreferrer">{escape(text)}</a>'


def build_badge(severity: str) -> str:
    """Return a severity as a word and a sign, each of which is sufficient without the colour."""
    return f'<span class="badge {severity}">{SIGNS[severity]} {severity}</span>'


def paragraph(text: str, kind: str = "") -> str:
    class_attribute = f' class="{kind}"' if kind else ""
    return f"<p{class_attribute}>{escape(text)}</p>"


def render_section(name: str, title: str, *blocks: str, wide: bool = False) -> str:
    """Return a card with an anchor. `blocks` are HTML."""
    kind = ' class="wide"' if wide else ""
    return f'<section id="{name}"{kind}><h2>{escape(title)}</h2>{"".join(blocks)}</section>'


def render_chart(name: str, label: str) -> str:
    """Return the HTML element into which a figure is drawn. `label`: what it shows, in words."""
    return f'<div class="chart" id="{name}" role="img" aria-label="{escape(label)}"></div>'


def build_placeholder(text: str) -> str:
    """Return the HTML text that replaces an empty chart."""
    return f'<div class="empty">{escape(text)}</div>'
