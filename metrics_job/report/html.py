"""Small pieces of HTML. Every text that goes in is escaped here, so no name of a topic can become a tag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

OTHERS_MAX = 300  # rows of one list: a page is for reading


class Cell(NamedTuple):
    """A table's cell with a class: number, good, bad."""

    text: str
    kind: str = ""


def number(text: str) -> Cell:
    return Cell(text, "number")


def mark(good: bool, yes: str, no: str) -> Cell:
    """Told by sign, word and colour, so by each of them alone too."""
    return Cell(f"✓ {yes}", "good") if good else Cell(f"✗ {no}", "bad")


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """A table; a column is right-aligned as its first cell is."""
    cells = [[value if isinstance(value, Cell) else Cell(value) for value in row] for row in rows]
    first = cells[0] if cells else [Cell("")] * len(columns)
    head = "".join(_tag("th", name, cell.kind) for name, cell in zip(columns, first, strict=True))
    body = "".join("<tr>" + "".join(_tag("td", *cell) for cell in row) + "</tr>" for row in cells)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def first(columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], shown: int) -> str:
    """A table of the first ones; the others, of thousands the first hundreds, open on a click."""
    top = table(columns, rows[:shown])
    if len(rows) <= shown:
        return top
    return top + others(len(rows) - shown, table(columns, rows[shown : shown + OTHERS_MAX]))


def others(count: int, inside: str) -> str:
    """`… and 9 more`, and what opens under it, HTML already."""
    said = f"… and {count:,} more" + (f", {OTHERS_MAX} of them here" if count > OTHERS_MAX else "")
    return f"<details><summary>{said}</summary>{inside}</details>"


def _tag(name: str, text: str, kind: str = "") -> str:
    kind = "number" if name == "th" and kind == "number" else kind if name == "td" else ""
    chosen = f' class="{kind}"' if kind else ""
    return f"<{name}{chosen}>{escape(text)}</{name}>"


def paragraph(text: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f"<p{chosen}>{escape(text)}</p>"


def section(name: str, title: str, *parts: str, wide: bool = False) -> str:
    """A card with an anchor; the parts are HTML already."""
    kind = ' class="wide"' if wide else ""
    return f'<section id="{name}"{kind}><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def chart(name: str) -> str:
    """The place of a figure."""
    return f'<div class="chart" id="{name}"></div>'


def empty(text: str) -> str:
    """What is said where a chart would be empty."""
    return f'<div class="empty">{escape(text)}</div>'
