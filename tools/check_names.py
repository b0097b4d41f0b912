"""Every name of the house that tests, benchmarks, tools and pages use is there, found without importing any.

Checked, wherever it is written in tests/, bench/ and tools/, also inside strings that are scripts, and in
the Python blocks of the pages:

* `from module import name`, `import module`, and `module.name` of a module that was imported;
* the paths that `monkeypatch.setattr` is given, and modules that are run by `-m`;
* files that any text names from the root on (`backend/port.py`); in pages and in the product also those that
  it names by their end (`port.py`).

What the product imports is mypy's affair; tests/unit/suite/ makes up names for the tools it tests.
Exit code 1 and one line per name that is gone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from parsed import PACKAGES, parsed, walked  # noqa: E402

READ = ("tests", "bench", "tools")
INVENTED_NAMES = Path("tests", "unit", "suite")
TOPS = (*PACKAGES, *READ)
PAGES = ("README.md", "SECURITY.md", "docs/*.md", "packaging/**/*.md", "tests/**/*.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FROM = re.compile(rf"^\s*from ((?:{'|'.join(TOPS)})[\w.]*) import (\w+(?:, \w+)*)", re.MULTILINE)
_RUN = re.compile(rf"-m ((?:{'|'.join(TOPS)})\.[\w.]*\w)")
_PYTHON_FILE = re.compile(r"(?<![\w./@-])(?:[a-z0-9_]+/)*[a-z_][a-z0-9_]*\.py\b")
_FILE = re.compile(rf"(?<![\w./@-])(?:{'|'.join(TOPS)})(?:/[a-z0-9_]+)+\.(?:py|json|thrift)\b")
MissingNames = Iterator[tuple[int, str]]


class House:
    """The modules below a root and the names that each has, read on first use."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.names = cache(self._names)
        self._files = cache(self._find)
        self._beside: defaultdict[str, list[Path]] = defaultdict(list)
        files = [path.relative_to(root).parts for top in TOPS for path in (root / top).rglob("*.py")]
        self._ends = {"/".join(components[at:]) for components in files for at in range(len(components))}
        for path in (root / "tests").rglob("*.py"):
            self._beside[path.stem].append(path)

    def module(self, name: str) -> bool:
        return bool(self._files(name))

    def _find(self, name: str) -> list[Path]:
        """The module's file or its package's folder, or those that tests import by the last name."""
        path = self._root.joinpath(*name.split("."))
        if path.with_suffix(".py").is_file():
            return [path.with_suffix(".py")]
        return [path] if path.is_dir() else self._beside.get(name, [])

    def knows(self, name: str) -> bool:
        """Whether the first part of a module's name is a package of the house, or a module of its tests."""
        top = name.partition(".")[0]
        return top in TOPS or (top in self._beside and top not in sys.stdlib_module_names)

    def has(self, module: str, name: str) -> bool:
        names = self.names(module)
        return name in names or "__getattr__" in names or self.module(f"{module}.{name}")

    def reaches(self, path: str) -> bool:
        """Whether `package.module.NAME…` leads to a name; what lies inside of one is not looked at."""
        components = path.split(".")
        depth = next(
            (at for at in range(len(components), 0, -1) if self.module(".".join(components[:at]))), 0
        )
        return depth == len(components) or (
            depth > 0 and self.has(".".join(components[:depth]), components[depth])
        )

    def _names(self, module: str) -> frozenset[str]:
        files = [path / "__init__.py" if path.is_dir() else path for path in self._files(module)]
        bound = {name for file in files if file.is_file() for name in _bound(parsed(file).body)}
        for name in [name for name in bound if name.startswith("*")]:
            bound |= self.names(name[1:])
        return frozenset(bound) | {"__file__", "__name__", "__doc__", "__path__"}

    def find_missing_names(self, file: Path) -> MissingNames:
        """Yield the line and name of everything that a file names and that does not exist."""
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            yield from self._find_missing(walked(file))
        else:
            for block in _BLOCK.finditer(text):
                line = text.count("\n", 0, block.start(1))
                yield from ((line + at, name) for at, name in self._find_missing(_nodes(block[1], file)))
        for match in _FROM.finditer(text):
            for name in match[2].split(", "):
                if not self.has(match[1], name):
                    yield _line(text, match), f"{match[1]}.{name}"
        for match in _RUN.finditer(text):
            if not self.module(match[1]):
                yield _line(text, match), match[1]
        yield from self.find_missing_files(text, by_end=file.suffix == ".md")

    def find_missing_files(self, text: str, by_end: bool) -> MissingNames:
        """Yield the line and name of missing files. `by_end`: a name may leave out the first folders."""
        for match in _PYTHON_FILE.finditer(text) if by_end else ():
            if match[0] not in self._ends:
                yield _line(text, match), match[0]
        for match in _FILE.finditer(text):
            if not (self._root / match[0]).exists():
                yield _line(text, match), match[0]

    def _find_missing(self, nodes: Collection[ast.AST]) -> MissingNames:
        modules: dict[str, str] = {}
        for node in nodes:
            for imported, bound in _imported(node):
                if self.knows(imported):
                    if not self.reaches(imported):
                        yield node.lineno, imported  # type: ignore[attr-defined]
                    elif self.module(imported):
                        modules[bound] = imported
        for name in {
            node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }:
            modules.pop(name, None)
        for name in {node.arg for node in nodes if isinstance(node, ast.arg)}:
            modules.pop(name, None)
        for node in nodes:
            for path in _used(node, modules):
                if not self.reaches(path):
                    yield node.lineno, path  # type: ignore[attr-defined]


def _nodes(text: str, file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text, str(file))))


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that a module's statements bind; `*module` for all those of another."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"*{node.module}" if alias.name == "*" else alias.asname or alias.name
        else:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    yield from _bound([child])
                elif isinstance(child, ast.ExceptHandler | ast.match_case):
                    yield from _bound(child.body)
                else:
                    yield from (each.id for each in ast.walk(child) if isinstance(each, ast.Name))


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """What an import asks for, and the name that it is bound to."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name
    elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        for alias in node.names:
            yield (
                node.module if alias.name == "*" else f"{node.module}.{alias.name}",
                alias.asname or alias.name,
            )


def _used(node: ast.AST, modules: dict[str, str]) -> Iterator[str]:
    """Paths of names that are used of imported modules, or patched."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
        yield f"{modules[node.value.id]}.{node.attr}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
        match node.args:
            case [ast.Constant(value=str(path)), _] if path.partition(".")[0] in TOPS:
                yield path
            case [ast.Name(id=module), ast.Constant(value=str(name)), *_] if module in modules:
                yield f"{modules[module]}.{name}"
    elif isinstance(node, ast.List):
        for flag, run in zip(node.elts, node.elts[1:], strict=False):
            match flag, run:
                case ast.Constant(value="-m"), ast.Constant(value=str(path)) if (
                    path.partition(".")[0] in TOPS
                ):
                    yield path


def report_missing(root: Path) -> Iterator[str]:
    """Yield a line for each name that does not exist."""
    house = House(root)
    users = [path for top in READ for path in (root / top).rglob("*.py")]
    pages = [page for pattern in PAGES for page in root.glob(pattern)]
    for path in sorted(path for path in [*users, *pages] if not path.is_relative_to(root / INVENTED_NAMES)):
        for line, name in sorted(set(house.find_missing_names(path))):
            yield f"{path.relative_to(root)}:{line}: there is no {name}"
    for path in sorted(path for top in PACKAGES for path in (root / top).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for line, name in sorted(set(house.find_missing_files(text, by_end=True))):
            yield f"{path.relative_to(root)}:{line}: there is no {name}"


def main() -> int:
    lines = list(report_missing(ROOT))
    print("\n".join(lines) if lines else "names: everything that is named is there")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
