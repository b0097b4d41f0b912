"""Wheels, and environments that hold what was built and nothing of the tree."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
import zipfile
from pathlib import Path


def contents(wheel: Path) -> list[str]:
    """The names of the files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def installed_alone(wheel: Path, home: Path) -> str:
    """Install it into a new environment that has this one's libraries; returns the path of its `ddmq`."""
    venv.create(home)
    install(home, wheel)
    libraries = importlib.util.find_spec("click")
    assert libraries is not None
    assert libraries.origin is not None
    site(home).joinpath("libraries.pth").write_text(str(Path(libraries.origin).parents[1]))
    return str(home / "bin" / "ddmq")


def install(home: Path, *wheels: Path) -> None:
    """Install wheels, without what they need, into the environment `home`."""
    pip(home, "install", "--no-deps", "--no-index", *map(str, wheels))


def pip(home: Path, *line: str) -> None:
    """Run a pip command on the environment `home`, which has none of its own."""
    command = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "--quiet"]
    subprocess.run([*command, *line], check=True)


def site(home: Path) -> Path:
    """The folder of the environment's packages."""
    (folder,) = home.glob("lib/python*/site-packages")
    return folder
