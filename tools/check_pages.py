"""Check the pages: no line is over 120 columns, and each link to a file or a heading has its target.

python tools/check_pages.py     one line per breach; exit code 1 when there is any

Exempt from the width are rows of tables, and the output of commands in examples.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLUMNS_MAX = 120
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def pages(root: Path) -> list[Path]:
    """Return the pages that are checked."""
    names = ("README.md", "CHANGELOG.md", "SECURITY.md")
    return [*(root / name for name in names), *sorted((root / "docs").rglob("*.md"))]


def breaches(root: Path) -> Iterator[str]:
    """Yield a line for each breach in any page."""
    for path in (path for path in pages(root) if path.exists()):
        shown = path.relative_to(root)
        text = path.read_text(encoding="utf-8")
        yield from (
            f"{shown}:{number}: {width} columns; allowed: {COLUMNS_MAX}" for number, width in wide(text)
        )
        yield from (f"{shown}: {link} has no target" for link in broken_links(path, text))


def wide(text: str) -> Iterator[tuple[int, int]]:
    """Yield number and width of each line that is too wide."""
    in_output = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_output = not in_output and "console" in line
        is_exempt = line.lstrip().startswith("|") or (in_output and not line.startswith("$"))
        if len(line) > COLUMNS_MAX and not is_exempt:
            yield number, len(line)


def broken_links(path: Path, text: str) -> Iterator[str]:
    """Yield the links of a page, as they are written, whose file or heading does not exist."""
    for link in LINK.findall(without_code(text)):
        file, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            yield link


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    slugs: list[str] = []
    for title in re.findall(r"^#+ +(.+)$", without_code(text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", title).lower()).strip().replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def without_code(text: str) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def main() -> int:
    lines = list(breaches(ROOT))
    print("\n".join(lines) or "pages: lines are short enough, and links have their targets")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
