"""The demo's material: every file of the running Python's standard library, and what proves it intact."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BODY_BYTES_MAX = 2 << 20
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages"}


class LibraryFile(NamedTuple):
    """A file: `module` is its top-level module, `path` relative to the library."""

    module: str
    path: str
    size: int

    def read(self) -> bytes:
        return (root() / self.path).read_bytes()


def root() -> Path:
    """Return the folder of the standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def files() -> tuple[list[LibraryFile], list[LibraryFile]]:
    """(those that fit into a message, those that do not: empty ones, and ones over 2 MiB)."""
    fit: list[LibraryFile] = []
    rest: list[LibraryFile] = []
    for found in _walk():
        (fit if 0 < found.size <= BODY_BYTES_MAX else rest).append(found)
    return fit, rest


def _walk() -> Iterator[LibraryFile]:
    base = root()
    for path in sorted(base.rglob("*")):
        relative = path.relative_to(base)
        if not _LEFT_OUT.intersection(relative.parts) and path.is_file():
            module = relative.parts[0].removesuffix(".py")
            yield LibraryFile(module, str(relative), path.stat().st_size)


def checksum(body: bytes) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(body).hexdigest()
