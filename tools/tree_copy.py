"""Copy the source tree, as a clone of it would be: without what .gitignore names.

Tools and tests use it that build and run ddmq in other folders.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
INSTALLED_FROM = ("LICENSE", "NOTICE", "README.md", "pyproject.toml", "tools")  # beside the packages


def copy_tree(target: Path) -> None:
    """Copy the whole tree to `target`, which must not exist."""
    shutil.copytree(ROOT, target, ignore=_ignored())


def copy_installed(target: Path) -> None:
    """Copy to `target` what `pip install` reads: the packages and the files of the build."""
    target.mkdir(parents=True)
    for name in (*(folder.parent.name for folder in ROOT.glob("*/__init__.py")), *INSTALLED_FROM):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=_ignored())
        else:
            shutil.copy(source, target)


def _ignored() -> Callable[[str, list[str]], Iterable[str]]:
    patterns = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    return shutil.ignore_patterns(".git", *(Path(pattern).name for pattern in patterns))
