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


class Scope(Enum):
    """What a bound holds for: the title and the words of its section, and what several proxies come to."""

    INSTALLATION = (
        "All processes together",
        "These bound what all processes over one directory, or on one namespace of Kafka, share. One process "
        "decides, or a lock does, so several proxies stay within the bound however they race; the third "
        "column says where something comes on top.",
        "exactly the bound",
    )
    OWNER = (
        "What one process owns at a time",
        "A queue, a shard or a message has one owner at a time, which alone counts. More proxies raise these "
        "bounds only where the third column says so.",
        "1 ×",
    )
    PROCESS = (
        "Each process by itself",
        "These bound memory, connections and work under way of one process (of one of the parts, with "
        "`ddmq serve --processes`). N proxies allow N times as much: divide by the number of proxies where a "
        "total is meant.",
        "N ×",
    )
    CONNECTION = (
        "Each connection or client address",
        "These hold at one Thrift server: a client that uses N proxies has N times as much.",
        "N ×",
    )
    REQUEST = (
        "Each message, request or answer",
        "These are checked on the thing itself, by whichever process has it: they are the same with any "
        "number of proxies.",
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


HEAD = """# Bounds, and what they hold for

Made by `python tools/bounds.py`. A bound is written `FILE.KEY`, as in [conf/](../conf/); one that has no key
is in words, with its number. A process is `ddmq serve`, or one part of it; a proxy is its producer or
consumer part.

**Before you run a second proxy**: the bounds of the first table stay what they are. Those of the third count
in each process by itself: with three proxies three times as many requests are in flight, and a topic takes
three times its rate.
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
    table = "| bound | at it | several proxies together |\n|---|---|---|\n"
    return (
        f"\n## {scope.title}\n\n{textwrap.fill(scope.words, 118, break_on_hyphens=False)}\n\n{table}"
        + "".join(_row(bound) for bound in rows if bound.scope is scope)
    )


def _row(bound: Bound) -> str:
    key = f"`{bound.configured}`{bound.key.removeprefix(bound.configured)}" if bound.configured else bound.key
    return f"| {key} | {bound.at_it} | {bound.together} |\n"


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
