"""Take the console's JavaScript libraries from npm: exact versions, checked hashes, relative imports.

    python tools/vendor.py            fetch the packages and write ddmq/console/static/vendor (needs npm)
    python tools/vendor.py --check    compare the files with the hashes in vendor/HASHES (needs nothing)

The wheel contains these files, so that users need neither npm nor a network.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).parent.parent / "ddmq/console/static/vendor"
HASHES = "HASHES"
LICENCES = "LICENCES"
APACHE = Path(__file__).parent.parent / "LICENSE"  # which every wheel contains
TERMS_END = "END OF TERMS AND CONDITIONS"


class Package(NamedTuple):
    """A package of npm, its integrity as npm states it, and its files: path in the package to our name."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "preact", "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "hooks.js"},
    ),
    Package(
        "htm", "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js"},
    ),
    Package(
        "@preact/signals", "2.11.4",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "signals.js"},
    ),
    Package(
        "@preact/signals-core", "1.14.5",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "signals-core.js"},
    ),
    Package(
        "uplot", "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
    ),
)  # fmt: skip
EXPORTS = {"uplot.js": b"export default uPlot;\n"}  # of a script that is no module
IMPORTS = {
    "preact/hooks": "./hooks.js",
    "preact": "./preact.js",
    "@preact/signals-core": "./signals-core.js",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare the files with their hashes")
    if parser.parse_args().check:
        return report_changes()
    VENDOR.mkdir(parents=True, exist_ok=True)
    licences: dict[str, tuple[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for package in PACKAGES:
            archive = fetch_package(package, Path(folder))
            for source, target in package.files.items():
                text = read_member(archive, source).replace(b"\r\n", b"\n")
                (VENDOR / target).write_bytes(rewrite_imports(text) + EXPORTS.get(target, b""))
            notice, terms = split_licence(read_member(archive, "LICENSE").decode().strip())
            _, notices = licences.setdefault(" ".join(terms.split()), (terms, []))
            notices.append(f"{package.name} {package.version}: {notice}")
    texts = ["\n".join(notices) + f"\n\n{terms}\n" for terms, notices in licences.values()]
    (VENDOR / LICENCES).write_text(f"\n{'=' * 40}\n".join(texts), encoding="utf-8")
    (VENDOR / HASHES).write_text(list_hashes(), encoding="utf-8")
    return 0


def fetch_package(package: Package, folder: Path) -> Path:
    """Download a package; return its archive. Raises SystemExit if its hash is not the expected one."""
    command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
    output = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    archive = folder / output.split()[-1]
    digest = hashlib.sha512(archive.read_bytes()).digest()
    integrity = "sha512-" + base64.b64encode(digest).decode()
    if integrity != package.integrity:
        raise SystemExit(f"{package.name} {package.version} is {integrity}; wanted: {package.integrity}")
    return archive


def split_licence(text: str) -> tuple[str, str]:
    """Return the copyright notice of a licence, and its terms, which several packages may have in common. The
    terms of the Apache License are not repeated, because it is that of ddmq."""
    terms, _, appendix = text.partition(TERMS_END)
    is_apache = terms.split() == APACHE.read_text(encoding="utf-8").partition(TERMS_END)[0].split()
    lines = (appendix if is_apache else text).splitlines()
    (notice,) = [line.strip() for line in lines if line.strip().startswith("Copyright")]
    if is_apache:
        return notice, "Apache License, Version 2.0, as in the file LICENSE of ddmq"
    return notice, re.sub(r"\n{3,}", "\n\n", text.replace(notice, "")).strip()


def read_member(archive: Path, path: str) -> bytes:
    """Return the content of a file of the package."""
    with tarfile.open(archive) as opened:
        member = opened.extractfile(f"package/{path}")
        if member is None:
            raise SystemExit(f"{archive.name} has no file {path}")
        return member.read()


def rewrite_imports(text: bytes) -> bytes:
    """Replace the names of packages in imports by relative paths; drop the pointer to a source map."""
    for name, path in IMPORTS.items():
        text = text.replace(f'from"{name}"'.encode(), f'from"{path}"'.encode())
    lines = [line for line in text.split(b"\n") if not line.startswith(b"//# sourceMappingURL")]
    return b"\n".join(lines)


def list_hashes() -> str:
    """Return a line with the SHA-256 of each file, as sha256sum prints it."""
    names = sorted(path.name for path in VENDOR.iterdir() if path.name != HASHES)
    rows = (f"{hashlib.sha256((VENDOR / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    return "".join(rows)


def report_changes() -> int:
    """Print which vendored files differ from their recorded hashes; return the exit status."""
    recorded, present = (VENDOR / HASHES).read_text(encoding="utf-8"), list_hashes()
    changed = sorted(set(recorded.splitlines()) ^ set(present.splitlines()))
    for line in changed:
        print(f"{line.split()[1]} is not the file that tools/vendor.py wrote; run it again", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
