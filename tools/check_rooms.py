"""Enforce the table of rooms: which package may import which (docs/architecture.md).

Also: RocksDB is used through ddmq_common/rocks.py only, and a `core/` imports no gevent, socket, file, clock,
random, logging, Thrift or RocksDB.
Exit code 1 and one line per breach.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

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
}
ROCKS = Path("ddmq_common", "rocks.py")
ROOMS = {*MAY_IMPORT, "ddmq", "bench", "tests"}
CORE_FORBIDS = {
    "gevent", "socket", "select", "time", "random", "secrets", "logging", "thrift", "thriftpy2",
    "rocksdict", "os", "pathlib", "threading", "subprocess", "tempfile", "io", "mmap",
}  # fmt: skip


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"


def allowed(room: str, module: str) -> bool:
    top = module.partition(".")[0]
    if top not in ROOMS or top == room or room not in MAY_IMPORT:
        return True
    return any(module == door or module.startswith(door + ".") for door in MAY_IMPORT[room])


def breaches(root: Path) -> Iterator[str]:
    for room in MAY_IMPORT:
        for path in sorted((root / room).rglob("*.py")):
            shown = path.relative_to(root)
            for line, module in imports(path):
                if not allowed(room, module):
                    yield f"{shown}:{line}: {room} may not import {module}"
                if module.partition(".")[0] == "rocksdict" and shown != ROCKS:
                    yield f"{shown}:{line}: only {ROCKS} imports rocksdict"
                if "core" in shown.parts and module.partition(".")[0] in CORE_FORBIDS:
                    yield f"{shown}:{line}: a core imports no {module}: pass it in"


def main() -> int:
    found = sorted(set(breaches(Path(__file__).resolve().parent.parent)))
    print("\n".join(found) if found else "rooms: every import stays inside the table")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
