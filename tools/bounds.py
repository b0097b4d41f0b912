"""Write docs/bounds.md from bounds.yaml beside this file; `--check` only says whether it is up to date.

Every number of the configuration files is a bound there, or is listed as none:
tests/unit/ddmq/test_bounds_listed.py looks that none is in neither.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import yaml

SOURCE = Path(__file__).with_name("bounds.yaml")
PAGE = Path(__file__).resolve().parent.parent / "docs" / "bounds.md"
WIDTH = 120


class Scope(Enum):
    """What a bound holds for: the title and the words of its section, and what several proxies come to."""

    INSTALLATION = (
        "All processes combined",
        "These limits apply to the state that processes share when they use the same directory or the same "
        "Kafka namespace. Each limit is enforced by a single process or by a lock, so it also holds if "
        "several proxies make changes at the same time. The third column lists the exceptions.",
        "exactly the limit",
    )
    OWNER = (
        "What one process owns at a time",
        "A queue, a shard or a message has one owner at a time, and only the owner counts towards the limit. "
        "Additional proxies raise only the limits with an N in the third column.",
        "1 ×",
    )
    PROCESS = (
        "Each process",
        "These limits apply to the memory, connections and work in progress of each process. With "
        "`ddmq serve --processes`, each service is a separate process. With N proxies, the total limit is N "
        "times as high. To limit the total, divide the desired limit by the number of proxies.",
        "N ×",
    )
    CONNECTION = (
        "Each connection or client address",
        "These limits apply to each Thrift server separately, so for a client that uses N proxies, the total "
        "limit is N times as high.",
        "N ×",
    )
    REQUEST = (
        "Each message, request or reply",
        "Each process applies these limits to the messages, requests and replies that it handles. The limits "
        "are the same for any number of proxies.",
        "1 ×",
    )

    def __init__(self, title: str, words: str, together: str) -> None:
        self.title = title
        self.words = words
        self.together = together


class Bound(NamedTuple):
    """One row. `key`: FILE.KEY of the configuration, or words where it has none. `at_it`: what happens at the
    bound. `together`: what several proxies come to."""

    scope: Scope
    key: str
    at_it: str
    together: str

    @property
    def configured(self) -> str:
        """The key of the configuration, "" where there is none."""
        return self.key.split(" ", 1)[0] if "." in self.key.split(" ", 1)[0] else ""


HEAD = """# Limits, and where they apply

This page lists all limits, what happens when a limit is reached, and how each limit applies to several
proxies.

**Before you run a second proxy**, note that the limits in the first table apply to all proxies combined.
The limits in the third table apply to each process separately: with three proxies, three times as many
requests may be in flight, and a topic accepts three times its configured rate.

A limit is written as `FILE.KEY`, where the file is one of those in [conf/](../conf/). A limit without a key
is described in words, followed by its value. In the third column, 1 × and N × are multiples of the limit, and
N is the number of proxies. On this page, a process is `ddmq serve` or one of its services, and a proxy is the
producer or consumer proxy of a process. The command `python tools/bounds.py` generates this page from
`tools/bounds.yaml`.
"""


def bounds() -> list[Bound]:
    """Return every row of the source."""
    return [
        Bound(scope, row[0], row[1], row[2] if len(row) > 2 else scope.together)
        for scope in Scope
        for row in _source()[scope.name.lower()]
    ]


def not_bounds() -> Iterator[str]:
    """Return the numbers of the configuration that bound nothing, as FILE.KEY."""
    for file, keys in _source()["not_bounds"].items():
        yield from (f"{file}.{key}" for key in keys)


def _source() -> dict[str, Any]:
    source: dict[str, Any] = yaml.safe_load(SOURCE.read_text())
    return source


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(scope, bounds()) for scope in Scope)


def _section(scope: Scope, rows: list[Bound]) -> str:
    footnotes: list[str] = []
    table = "".join(_row(bound, footnotes) for bound in rows if bound.scope is scope)
    listed = "".join(_filled(f"{number}. {text}", "   ") for number, text in enumerate(footnotes, 1))
    head = "| limit | effect at the limit | several proxies combined |\n|---|---|---|\n"
    after = f"\n{listed}" if listed else ""
    return f"\n## {scope.title}\n\n{_filled(scope.words)}\n{head}{table}{after}"


def _row(bound: Bound, footnotes: list[str]) -> str:
    """One row. If it is too wide, its last cell becomes a numbered note below the table."""
    key = f"`{bound.configured}`{bound.key.removeprefix(bound.configured)}" if bound.configured else bound.key
    row = f"| {key} | {bound.at_it} | {bound.together} |\n"
    if len(row) <= WIDTH + 1:
        return row
    footnote = f"{bound.together[:1].upper()}{bound.together[1:]}."
    if footnote not in footnotes:
        footnotes.append(footnote)
    return f"| {key} | {bound.at_it} | ({footnotes.index(footnote) + 1}) |\n"


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv:
        fresh = PAGE.exists() and PAGE.read_text() == page()
        print("bounds: the page is up to date" if fresh else "bounds: run `python tools/bounds.py`")
        return 0 if fresh else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
