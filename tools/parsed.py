"""The files of the house as syntax trees, each parsed and walked once by all tools of one process."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def walked(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file."""
    return tuple(ast.walk(parsed(file)))


def statements(tree: ast.AST, enters: Callable[[ast.AST], bool] = lambda _: True) -> Iterator[ast.stmt]:
    """The statements, those inside of others too; what `enters` refuses is left out with what it holds."""
    left = [tree]
    while left:
        node = left.pop()
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            for inner in getattr(node, part, ()):
                if enters(inner):
                    left.append(inner)
                    if isinstance(inner, ast.stmt):
                        yield inner
