"""Find compiled functions in which two `except` clauses bind the same name to different classes.

mypyc gives a variable one type in the whole function. The first of two clauses `except A as error` and
`except B as error` decides: if A is a compiled class, the second clause raises "TypeError: A object expected;
got B" instead of handling B. Interpreted, both clauses work. A built-in class in the first clause has no such
effect, because mypyc stores it as any object. Whether A is compiled is not examined, since that may change.
"""

from __future__ import annotations

import ast
import builtins
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from parsed import FUNCTIONS, walked


def count_reused_names(root: Path, files: Mapping[str, Path]) -> dict[str, int]:
    """Count the `except` clauses that bind one name to different classes: FILE:FUNCTION:NAME → clauses.

    `files` contains the product's modules by name. Only modules that pyproject.toml lists as compiled count.
    """
    return {
        f"{path.relative_to(root)}:{function.name}:{name}": len(classes)
        for path in (files[module] for module in _list_compiled(root) if module in files)
        for function in walked(path)
        if isinstance(function, FUNCTIONS)
        for name, classes in _group_clauses(function).items()
        if not _has_builtin(classes[0]) and len(set(map(ast.unparse, classes))) > 1
    }


def _list_compiled(root: Path) -> list[str]:
    project = root / "pyproject.toml"
    if not project.exists():
        return []
    return list(tomllib.loads(project.read_text(encoding="utf-8"))["tool"]["ddmq"]["compiled"])


def _group_clauses(function: ast.AST) -> dict[str, list[ast.expr]]:
    """Return the classes of the clauses by the name that they bind, in the order of the source."""
    clauses: dict[str, list[ast.expr]] = {}
    for clause in sorted(_iterate_clauses(function), key=lambda clause: clause.lineno):
        if clause.name is not None and clause.type is not None:
            clauses.setdefault(clause.name, []).append(clause.type)
    return clauses


def _iterate_clauses(node: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Yield the clauses of a function, without those of the functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler):
            yield child
        if not isinstance(child, FUNCTIONS):
            yield from _iterate_clauses(child)


def _has_builtin(classes: ast.expr) -> bool:
    """Return whether one of the classes of a clause is built in: the variable then has a built-in type."""
    items = classes.elts if isinstance(classes, ast.Tuple) else [classes]
    return any(isinstance(item, ast.Name) and hasattr(builtins, item.id) for item in items)
