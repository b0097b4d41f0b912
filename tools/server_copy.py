"""Copies the modules of the server that the client's test broker runs on into the client's package.

They are what `ddmq.in_process.server` imports, directly or not. In the copy they lie below
ddmq_client/testing/_server under their own names, and their imports of each other go there. Nothing is edited
by hand. What only push sinks and scripts need is left out, because the test broker has neither.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "ddmq.in_process.server"
HOME = "ddmq_client.testing._server"
SERVER_PACKAGES = (
    "backend",
    "ddmq",
    "ddmq_common",
    "ddmq_rpc",
    "delay_service",
    "proxy_consumer",
    "proxy_producer",
)
EXCLUDED_MODULES = (
    "ddmq_common.compiled", "proxy_consumer.push.chain", "proxy_consumer.push.runner",
    "proxy_consumer.push.script_workers", "proxy_consumer.push.sinks",
)  # fmt: skip
_IMPORT = re.compile(rf"^(\s*)(from|import) ({'|'.join(SERVER_PACKAGES)})(?=[. ])", re.M)
_COMPILED = re.compile(r"^from ddmq_common\.compiled import install\n+install\(\)\n", re.M)
MARK = '"""The modules of the server that the test broker runs on; tools/server_copy.py has copied them."""\n'


def copy_server(target: Path) -> list[str]:
    """Copy the modules to `target`, which becomes a package; return their names."""
    names = sorted(find_modules(START))
    target.mkdir(parents=True)
    (target / "__init__.py").write_text(MARK, encoding="utf-8")
    for name in names:
        source = source_of(name)
        assert source is not None
        copy = target / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(moved(source.read_text(encoding="utf-8")), encoding="utf-8")
    return names


def moved(text: str) -> str:
    """Return a module's text with its imports of the server going to the copy."""
    return _IMPORT.sub(rf"\1\2 {HOME}.\3", _COMPILED.sub("", text))


def find_modules(start: str) -> set[str]:
    """Return a module, every module of the server that it imports, and the packages that they lie in."""
    names: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in names or name.startswith(EXCLUDED_MODULES) or source_of(name) is None:
            continue
        names.add(name)
        waiting += imports_of(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
    return names


def imports_of(name: str) -> Iterator[str]:
    """Yield what a module imports of the server, at whatever place; names in a package as modules, too."""
    source = source_of(name)
    assert source is not None
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.partition(".")[0] in SERVER_PACKAGES
        ):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def source_of(name: str) -> Path | None:
    """Return the file of a module or package; None for what is no module."""
    path = ROOT / name.replace(".", "/")
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((each for each in candidates if each.is_file()), None)
