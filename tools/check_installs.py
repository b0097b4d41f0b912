"""No text of ours has people install by name what no package index has.

Whoever registers such a name would be installed in its place. Until ours are published, pages, help and
errors say `pip install '.[kafka]'` in the source tree, or name a wheel's file.
Exit code 1 and one line per breach.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from parsed import walked

ROOT = Path(__file__).resolve().parent.parent
NAME = r"(?<![/\w.-])ddmq[-_\w]*"
# An extra or a version belongs to a name that is to be installed; a link to an index says that it is there.
_INDEXED = re.compile(rf"{NAME}(?:\[[a-z][\w,]*\]|[=<>~!]=\s*\d)|pypi\.org/\S*?ddmq")
_INSTALL = re.compile(
    r"\b(?:pip3?|pipx|uv|poetry|conda)\b[^\n`;&|]*?\b(?:install|download|wheel|add)\b([^\n`;&|]*)"
)
_INSTALLED = re.compile(rf"{NAME}(?![\w.-]*\.whl)")
KINDS = {".py", ".md", ".yaml", ".toml", ".service", ".in", ".sh", ".txt", ".html", ""}
EXCLUDED_FOLDERS = {"__pycache__", ".git", ".venv", "build", "dist", "data", "_compiled", ".scratch"}
INVENTED_NAMES = ROOT / "tests" / "unit" / "suite"


def breaches(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each command that installs something unpublished by name."""
    for match in _INDEXED.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[0]
    for match in _INSTALL.finditer(text):
        if _INSTALLED.search(match[1]):
            yield text.count("\n", 0, match.start()) + 1, match[0].strip()


def breaches_of(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the breaches of a file; in Python, strings are joined before they are checked."""
    yield from breaches(file.read_text(encoding="utf-8", errors="replace"))
    if file.suffix == ".py":
        for node in walked(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for _, command in breaches(node.value):
                    yield node.lineno, command


def files(root: Path) -> Iterator[Path]:
    """The texts below a folder."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if (
                path.name not in EXCLUDED_FOLDERS
                and path != INVENTED_NAMES
                and not path.name.endswith(".egg-info")
            ):
                yield from files(path)
        elif path.suffix in KINDS and path.is_file():
            yield path


def main() -> int:
    """Print every breach of the tree."""
    commands = {(file, line): text for file in files(ROOT) for line, text in breaches_of(file)}
    for (file, line), text in commands.items():
        print(f"{file.relative_to(ROOT)}:{line}: no package index has it: {text}")
    if not commands:
        print("installs: nothing is installed by a name that nobody has published")
    return 1 if commands else 0


if __name__ == "__main__":
    sys.exit(main())
