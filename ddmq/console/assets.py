"""The console's files as the admin port serves them: below /console/, compressed once, safe to cache.

Every path below /console/ that is not a file is a page, and all pages are the same HTML, which contains no
data: the browser's path decides what is shown. Files have a path with the hash of all files in it, so that a
browser keeps them for ever and never mixes two releases.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = "console"
STATIC = Path(__file__).parent / "static"
VERSION_CHARS = 12
GZIP_LEVEL = 9  # once per file and process
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_INDEX = "index.html"
_MAIN = "app.js"
_IMPORT = re.compile(rb'\bfrom ?"(\.[^"]+)"')
_FOREVER = "public, max-age=31536000, immutable"
_POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self'",
        "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'", "trusted-types 'none'",
    )
)  # fmt: skip
_PAGE_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-cache"),
)


class Asset(NamedTuple):
    """A file as it is sent: its content type, its bytes plain and compressed, and further headers."""

    content_type: str
    plain: bytes
    compressed: bytes
    headers: tuple[tuple[str, str], ...]


def is_page(path: str) -> bool:
    """Return whether the path is that of the console's HTML, which links from other sites may open."""
    return path == "/" or path == f"/{ROOT}" or (
        path.startswith(f"/{ROOT}/") and not path.startswith(f"/{ROOT}/assets/")
    )  # fmt: skip


def find_asset(segments: list[str]) -> Asset | None:
    """Return what is served for the segments of a path below /console; None if there is no such file."""
    assets = load_assets()
    return assets.get("/".join(segments[1:])) if segments[1:2] == ["assets"] else assets[_INDEX]


@cache
def load_assets() -> Mapping[str, Asset]:
    """Read all files; return them by their path below /console/."""
    files = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in _list_files()}
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in sorted(files.items())))
    version = digest.hexdigest()[:VERSION_CHARS]
    page = files.pop(_INDEX).replace(b"{preloads}", "\n".join(_list_preloads(files)).encode())
    page = page.replace(b"{assets}", f"/{ROOT}/assets/{version}".encode())
    assets = {_INDEX: _make_asset("text/html; charset=utf-8", page, _PAGE_HEADERS)}
    for name, content in files.items():
        content_type = _TYPES[Path(name).suffix]
        headers = (("Cache-Control", _FOREVER),)
        assets[f"assets/{version}/{name}"] = _make_asset(content_type, content, headers)
    return assets


def _list_files() -> list[Path]:
    return [path for path in STATIC.rglob("*") if path.suffix in (*_TYPES, ".html")]


def _list_preloads(files: Mapping[str, bytes]) -> list[str]:
    """Return a link for each module that the main one imports: a browser requests them all at once."""
    names = [_MAIN]
    for name in names:
        imports = [path.decode() for path in _IMPORT.findall(files[name])]
        targets = [posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in imports]
        names += [target for target in dict.fromkeys(targets) if target not in names]
    return [f'<link rel="modulepreload" href="{{assets}}/{name}">' for name in names[1:]]


def _make_asset(content_type: str, content: bytes, headers: tuple[tuple[str, str], ...]) -> Asset:
    return Asset(content_type, content, gzip.compress(content, GZIP_LEVEL, mtime=0), headers)
