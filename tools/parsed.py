"""The files of the house as syntax trees, each parsed and walked once by all tools of one process."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

# The product's packages; which of them may import which, the contracts in pyproject.toml say.
PACKAGES = (
    "proxy_producer",
    "proxy_consumer",
    "delay_service",
    "backend",
    "ddmq_rpc",
    "ddmq_common",
    "ddmq_client",
    "metrics_job",
    "ddmq",
    "ddmq_command",
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def walked(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file."""
    return tuple(ast.walk(parsed(file)))


def statements(tree: ast.AST, enters: Callable[[ast.AST], bool] = lambda _: True) -> Iterator[ast.stmt]:
    """The statements, those inside of others too; what `enters` refuses is left out with what it holds."""
    pending = [tree]
    while pending:
        node = pending.pop()
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            for inner in getattr(node, field, ()):
                if enters(inner):
                    pending.append(inner)
                    if isinstance(inner, ast.stmt):
                        yield inner


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Return the full names of what a file imports, for types alone included."""
    names: list[str] = []
    for node in statements(parsed(file)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)
