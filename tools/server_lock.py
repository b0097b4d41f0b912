"""Write conf/docker/server.lock and build.lock from requirements.lock; `--check` only says if they are so.

The image installs the server with the extra for Kafka, and what builds its wheel. Each file is the closure
of its requirements (by the metadata of the packages in this environment, for Linux), with the versions and
hashes of requirements.lock, so that pip takes nothing else with --require-hashes.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "conf" / "docker"
HEAD = "# Made from requirements.lock by: python tools/server_lock.py\n"
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==.*?(?=^[A-Za-z0-9]|\Z)", re.MULTILINE | re.DOTALL)


def locks() -> dict[str, str]:
    """Return the text of each file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    required = {
        "server.lock": [
            *project["project"]["dependencies"],
            *project["project"]["optional-dependencies"]["kafka"],
        ],
        "build.lock": [*project["build-system"]["requires"], *project["project"]["dependencies"]],
    }
    entries = _entries((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return {
        name: HEAD + "".join(entries[package] for package in sorted(_closure(requirements)))
        for name, requirements in required.items()
    }


def _entries(lock: str) -> dict[str, str]:
    """Return the lines of each package, by its normal name."""
    return {_normal(entry[1]): entry[0] for entry in _ENTRY.finditer(lock)}


def _closure(requirements: Iterable[str]) -> set[str]:
    """Return the normal names of all packages that these need on Linux."""
    names: set[str] = set()
    pending = list(requirements)
    while pending:
        requirement = Requirement(pending.pop())
        name = _normal(requirement.name)
        if name in names or (requirement.marker is not None and not requirement.marker.evaluate(LINUX)):
            continue
        names.add(name)
        pending += importlib.metadata.requires(name) or []
    return names


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    stale = [
        name
        for name, text in locks().items()
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        for name in stale:
            print(f"conf/docker/{name} is not what requirements.lock says; run: python tools/server_lock.py")
        return 1 if stale else 0
    for name, text in locks().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
